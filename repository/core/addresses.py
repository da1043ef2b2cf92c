"""What an address or a path leads to, in the one form in which it is compared with what is allowed.

Whoever reads an address may decode it, and resolve "..", before it looks: so that is done here first, and what leads elsewhere
than it seems to is refused. Source: RFC 3986, sections 2.4 (when to decode), 5.2.4 (dot segments) and 6.2.2 (normal form).
"""

import re
import urllib.parse
from pathlib import Path

from repository.core.errors import UnsafePath

_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SEPARATORS = re.compile(r"[/\\]")
_NOT_IN_PART = "/\\%?#;"
_MAX_DECODED = 10  # times that one address is decoded: nobody's is, more than twice


def leads_into(path: Path, folder: Path) -> bool:
    """Return whether a path is a folder or lies in it, with all links followed."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a link that leads to itself
        return False


def part_problem(text: str) -> str:
    """Return why a text cannot be one part of an address' path, as the end of a sentence; "" where it can.

    Percent-encoding would let any text be one. But some servers, and proxies before them, decode more than the parts, or see a
    parameter behind ";", and then end up somewhere else.
    """
    if not text.strip(" ."):
        return "a name with more than dots and spaces"
    if not text.isprintable() or any(character in text for character in _NOT_IN_PART):
        return f"a name without control characters and without {' '.join(_NOT_IN_PART)}"
    return ""


def normal_path(path: str) -> str:
    """Return the path of an address with nothing encoded that need not be. UnsafePath for one that a server may resolve to
    another than it shows: with ".." however often it is encoded, before a ";", and between backslashes."""
    seen = path
    for _ in range(_MAX_DECODED):
        if any(part.partition(";")[0].strip() == ".." for part in _SEPARATORS.split(seen)):
            break
        try:
            decoded = urllib.parse.unquote(seen, errors="strict")
        except UnicodeDecodeError:
            raise UnsafePath("the address has bytes that are no UTF-8") from None
        if decoded == seen:
            return _ESCAPE.sub(_least, path)
        if not decoded.isprintable():
            raise UnsafePath("the address has characters that cannot be printed")
        seen = decoded
    raise UnsafePath("the address leads out of a folder that it names, by '..'")


def _least(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16))
    return character if character in _UNRESERVED else escape[0].upper()


def local_path(url: str) -> Path:
    """Return the file that a file:// address means, decoded once, links not followed. UnsafePath for one of another machine,
    and for one that is not written as it is."""
    parts = urllib.parse.urlsplit(url)
    if parts.netloc.lower() not in ("", "localhost"):
        raise UnsafePath("the address is of a file on another machine")
    normal_path(parts.path)
    path = Path(urllib.parse.unquote(parts.path))
    if not path.is_absolute():
        raise UnsafePath("the address names no file by its whole path")
    return path
