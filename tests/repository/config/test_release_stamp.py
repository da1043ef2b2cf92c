"""The number of a release in a text: written as the last line, and no part of the text to whoever compares or edits it."""

import pytest

from repository.config import model_config
from repository.config.release import release_of
from repository.config.release_stamp import same_text, stamped, unstamped

TEXT = '# Mine.\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
OTHER = 'parameters { key: "other" value { string_value: "1" } }\n'


@pytest.mark.parametrize("text", [TEXT, "", TEXT + OTHER, OTHER + TEXT, "# no line's end", TEXT + "parameters: []\n"])
def test_a_stamped_text_says_its_release_and_is_otherwise_the_text(text: str) -> None:
    once = stamped(text, 7)
    assert release_of(model_config.parse(once)) == 7
    assert unstamped(once).rstrip("\n") == text.rstrip("\n")
    assert stamped(once, 7) == once
    assert release_of(model_config.parse(stamped(once, 8))) == 8


@pytest.mark.parametrize(
    "written",
    [
        'parameters {\n  key: "slipway.release"\n  value { string_value: "3" }\n}\n',
        'parameters [ { key: "slipway.release" value { string_value: "3" } }, { key: "a" value { string_value: "b" } } ]\n',
        "parameters { key: 'slipway.release' value: { string_value: '3' } } # by hand\n",
    ],
)
def test_a_stamp_that_a_person_wrote_is_found_too(written: str) -> None:
    text = TEXT + written
    plain = unstamped(text)
    assert "slipway.release" not in plain
    assert plain.startswith(TEXT)
    assert release_of(model_config.parse(stamped(text, 9))) == 9


def test_texts_are_the_same_whatever_their_stamps() -> None:
    assert same_text(stamped(TEXT, 1), stamped(TEXT, 2))
    assert same_text(stamped(TEXT, 1), TEXT.rstrip("\n"))
    assert not same_text(stamped(TEXT, 1), stamped(TEXT + "# more\n", 1))


def test_a_text_with_mistakes_is_left_as_it_is() -> None:
    broken = "max_batch_size: banana\n# slipway.release\n"
    assert unstamped(broken) == broken
    assert unstamped(stamped(broken, 3)) == broken
