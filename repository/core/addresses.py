"""Brings addresses and paths into a normal form, in which they are compared with the allowed addresses and paths.

A server may decode an address and resolve ".." before it uses the address. So this module does both before the comparison, and
refuses an address that resolves to another path than it shows.
Source: RFC 3986, sections 2.4 (when to decode), 5.2.4 (dot segments) and 6.2.2 (normal form).
"""

import re
import urllib.parse
from pathlib import Path

from repository.core.errors import UnsafePath

_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SEPARATORS = re.compile(r"[/\\]")
_NOT_IN_PART = "/\\%?#;"
_MAX_DECODED = 10  # the most times that one address is decoded; no honest address needs more than two


def leads_into(path: Path, folder: Path) -> bool:
    """Return whether a path is `folder` itself or is in that folder, after all links are followed."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a link that leads to itself
        return False


def part_problem(text: str) -> str:
    """Return why a text cannot be one part of an address' path, as the end of a sentence; "" if it can.

    Percent-encoding would allow any text. But some servers and proxies decode the whole path before they split it, or read a
    parameter after ";", and then open another path.
    """
    if not text.strip(" ."):
        return "a name with more than dots and spaces"
    if not text.isprintable() or any(character in text for character in _NOT_IN_PART):
        return f"a name without control characters and without {' '.join(_NOT_IN_PART)}"
    return ""


def normal_path(path: str) -> str:
    """Return the path of an address without needless encoding.

    Raises UnsafePath if a server may resolve the path to another one: if ".." occurs in it at any level of encoding, before a
    ";", or between backslashes.
    """
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
    """Return the file of a file:// address, decoded once, without following links.

    Raises UnsafePath if the address names another machine, or if `normal_path` refuses it.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.netloc.lower() not in ("", "localhost"):
        raise UnsafePath("the address is of a file on another machine")
    normal_path(parts.path)
    path = Path(urllib.parse.unquote(parts.path))
    if not path.is_absolute():
        raise UnsafePath("the address names no file by its whole path")
    return path
