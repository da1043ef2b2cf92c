"""Text that comes from elsewhere, as a log, a page or a terminal may show it.

What a model prints or a client sends may hold what a terminal obeys (escape sequences, backspaces), what turns the order of
characters round (bidirectional marks), and what ends a line where none ends. It is written out, as in Python's source.
Colours alone are left away: they say nothing in a log.

Source: Unicode, UAX #9 (bidirectional marks); ECMA-48 (SGR, control characters).
"""

import codecs
import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# All controls but the tab and the ends of lines; LS, PS; the marks that change the direction; halves of surrogate pairs.
_UNPLAIN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_OPEN_COLOUR = re.compile(rb"\x1b(?:\[[0-9;:]{0,32})?\Z")


def plain(text: str) -> str:
    """Return the text with what it must not hold written out; line feeds and tabs stay."""
    return _UNPLAIN.sub(_written_out, _COLOUR.sub("", text)) if _UNPLAIN.search(text) else text


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class PlainOutput:
    """The output of a process, which comes in pieces that end anywhere, as bytes that a log may hold."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return what has come, but for the beginning of a character or of a colour whose end has still to come."""
        data = (self._rest + data).replace(b"\r\n", b"\n")
        cut = _OPEN_COLOUR.search(data) if data else None
        end = len(data) if cut is None else cut.start()
        end -= cut is None and data.endswith(b"\r")
        self._rest = data[end:]
        return plain(self._decoder.decode(data[:end])).encode()

    def end(self) -> bytes:
        """Return what is left when no more comes."""
        rest, self._rest = self._rest, b""
        return plain(self._decoder.decode(rest, final=True)).encode()
