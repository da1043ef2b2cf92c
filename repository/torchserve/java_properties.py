"""Java's property files: `key=value` lines with comments, escapes and lines that go on; read and written.

Source: java.util.Properties, load(InputStream) and store.
"""

import re
from collections.abc import Iterator, Mapping

_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE = re.compile(r"[0-9a-fA-F]{4}")


class MalformedProperties(Exception):
    """The text is no property file; the message says where."""


def parse(text: str) -> dict[str, str]:
    """Return the properties; of a key that stands twice the last value. MalformedProperties for a broken \\u escape."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        try:
            key, value = _split(line)
            found[_unescaped(key)] = _unescaped(value)
        except MalformedProperties as error:
            raise MalformedProperties(f"line {number}: {error}") from None
    return found


def decode(content: bytes) -> str:
    """Return the text of a file: Java reads ISO 8859-1; a file that is UTF-8 was meant as such."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def write(properties: Mapping[str, str], comment: str = "") -> str:
    """Return a file that `parse`, and Java, read as these properties."""
    lines = [f"#{comment}"] if comment else []
    lines += [f"{_escaped(key, key=True)}={_escaped(value, key=False)}" for key, value in properties.items()]
    return "\n".join(lines) + "\n"


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Give each line that says something, joined with those that it goes on in, and the number of the first."""
    natural = enumerate(_LINE_ENDS.split(text), 1)
    for number, line in natural:
        line = line.lstrip(_BLANK)
        if not line or line[0] in "#!":
            continue
        parts = []
        while _goes_on(line):
            parts.append(line[:-1])
            line = next(natural, (0, ""))[1].lstrip(_BLANK)
        parts.append(line)
        yield number, "".join(parts)


def _goes_on(line: str) -> bool:
    """Whether a line ends with an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Return key and value, still escaped: the key ends at the first "=", ":" or blank without a backslash before it."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANK:
        position += 2 if line[position] == "\\" else 1
    key, rest = line[:position], line[position:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return key, rest


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    parts, position = [], 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            parts.append(character)
        elif text[position : position + 1] == "u":
            digits = _UNICODE.match(text, position + 1)
            if digits is None:
                raise MalformedProperties("expected four hexadecimal digits behind \\u")
            parts.append(chr(int(digits[0], 16)))
            position += 5
        elif position < len(text):
            parts.append(_ESCAPES.get(text[position], text[position]))
            position += 1
    # Two \u escapes may be the halves of one character.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(text: str, *, key: bool) -> str:
    parts = []
    for position, character in enumerate(text):
        if character in "\t\n\r\f":
            parts.append("\\" + "tnrf"["\t\n\r\f".index(character)])
        elif character in "\\#!=:" or (character == " " and (key or position == 0)):
            parts.append("\\" + character)
        elif " " <= character <= "~":
            parts.append(character)
        else:
            halves = character.encode("utf-16-be", "surrogatepass")
            parts += [f"\\u{halves[at]:02X}{halves[at + 1]:02X}" for at in range(0, len(halves), 2)]
    return "".join(parts)
