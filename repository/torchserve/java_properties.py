"""Java's property files: `key=value` lines with comments, escapes and continuation lines.

The library javaproperties reads each line. This module joins continuation lines itself, because the library takes time that
grows with the square of their number, and its errors name no line. Source: java.util.Properties, load(InputStream).
"""

import re
from collections.abc import Iterator

import javaproperties

_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"


class MalformedProperties(Exception):
    """The text is no property file. The message names the line."""


def parse(text: str) -> dict[str, str]:
    """Return the properties; the last value of a repeated key wins. Raises MalformedProperties if a \\u escape is broken."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        try:
            found |= javaproperties.loads(line, _without_lone_surrogates)
        except javaproperties.InvalidUEscapeError:
            raise MalformedProperties(f"line {number}: expected four hexadecimal digits behind \\u") from None
    return found


def decode(content: bytes) -> str:
    """Return the text of a file: UTF-8 if it is valid UTF-8, or else ISO 8859-1, which Java reads."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line that is no comment, joined with its continuation lines, and the number of its first line."""
    natural = enumerate(_LINE_ENDS.split(text), 1)
    for number, line in natural:
        line = line.lstrip(_BLANK)
        if not line or line[0] in "#!":
            continue
        parts = []
        while _is_continued(line):
            parts.append(line[:-1])
            line = next(natural, (0, ""))[1].lstrip(_BLANK)
        parts.append(line)
        joined = "".join(parts)
        # A line that continues a lone backslash is no comment, even if it looks like a comment.
        yield number, "\\" + joined if joined[:1] in ("#", "!") else joined


def _is_continued(line: str) -> bool:
    """Return whether a line ends with an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _without_lone_surrogates(pairs: Iterator[tuple[str, str]]) -> dict[str, str]:
    """Return the pairs as texts that can be encoded: lone surrogates, which come from \\u escapes, are replaced."""
    return {_encodable(key): _encodable(value) for key, value in pairs}


def _encodable(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
