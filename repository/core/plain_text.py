"""Makes the text of models and clients safe to show in a log, on a page or in a terminal.

Such text may contain characters that control a terminal (escape sequences, backspaces), reverse the order of characters
(bidirectional marks), or end a line. They are written as escapes, as in Python's source. Only colours are removed, because they
have no meaning in a log.

Source: Unicode, UAX #9 (bidirectional marks); ECMA-48 (SGR, control characters).
"""

import codecs
import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# All control characters except tab and line feed; LS, PS; marks that change the direction; surrogates.
_UNPLAIN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_OPEN_COLOUR = re.compile(rb"\x1b(?:\[[0-9;:]{0,32})?\Z")


def plain(text: str) -> str:
    """Return the text with unsafe characters written as escapes. Line feeds and tabs stay."""
    return _UNPLAIN.sub(_written_out, _COLOUR.sub("", text)) if _UNPLAIN.search(text) else text


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class PlainOutput:
    """Makes the output of a process safe for a log. The output arrives in pieces that may end inside a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the new output as plain text. An incomplete character or colour at its end is kept for the next call."""
        data = (self._rest + data).replace(b"\r\n", b"\n")
        cut = _OPEN_COLOUR.search(data) if data else None
        end = len(data) if cut is None else cut.start()
        end -= cut is None and data.endswith(b"\r")
        self._rest = data[end:]
        return plain(self._decoder.decode(data[:end])).encode()

    def end(self) -> bytes:
        """Return the rest, after the process has ended its output."""
        rest, self._rest = self._rest, b""
        return plain(self._decoder.decode(rest, final=True)).encode()
