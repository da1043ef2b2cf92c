"""Text of models and clients is written so that no terminal obeys it and no reader is deceived by it."""

import random

import pytest

from repository.core.plain_text import PlainOutput, plain

HOSTILE = (
    "\x1b[2J\x1b]0;title\x07 \x08\x08gone \x9b31m \u202egnp.exe\u2069 \u2028forged \r over \x00 \u200f \ud800 \x7f"
)


def test_characters_that_a_terminal_obeys_are_written_out() -> None:
    assert plain(HOSTILE) == (
        "\\x1b[2J\\x1b]0;title\\x07 \\x08\\x08gone \\x9b31m \\u202egnp.exe\\u2069 \\u2028forged \\x0d over \\x00 "
        "\\u200f \\ud800 \\x7f"
    )
    assert plain("\x1b[1;31mred\x1b[0m alert") == "red alert"
    assert plain("a\tb\n\tc: déjà vu, \u05d0, 日本, 🙂") == "a\tb\n\tc: déjà vu, \u05d0, 日本, 🙂"


@pytest.mark.parametrize("seed", range(20))
def test_output_in_pieces_is_the_same_as_in_one(seed: int) -> None:
    text = f"one\r\n{HOSTILE[:-12]}\r\n\x1b[1;31mred\x1b[0m déjà 日本 🙂\x1b"
    data, chance, output = text.encode(), random.Random(seed), PlainOutput()
    said = b""
    while data:
        size = chance.randrange(1, 5)
        said += output.feed(data[:size])
        data = data[size:]
    assert (said + output.end()).decode() == plain(text.replace("\r\n", "\n"))
