"""Reads an archive's requirements.txt for pip: packages by name, and files of the archive.

The administrator decides where packages come from, by PIP_* variables or pip.conf. So lines that name an index, an address, a
repository or a file outside the archive are refused. pip gets only the lines that this module understands, never the
archive's own file, because pip has its own rules for encodings, line ends and abbreviated options. Source: pip's documentation,
"Requirements File Format", PEP 508 (names), PEP 440 (versions).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from repository.core.addresses import leads_into
from serving.core.errors import ServingError, invalid

MAX_BYTES = 1 << 20  # the most bytes of a file
_MAX_FILES = 20  # the most files that are read because others name them
_COMMENT = re.compile(r"(^|\s+)#.*$")
_FLAGS = frozenset(("--pre", "--prefer-binary", "--require-hashes"))
_FORMATS = re.compile(r"(?:--no-binary|--only-binary)(?:=|\s+)[A-Za-z0-9._,:-]+", re.ASCII)
_OTHER_FILE = re.compile(r"(-r\s*|--requirement(?:=|\s+)|-c\s*|--constraint(?:=|\s+))([^\s=].*)")
_HASHES = re.compile(r"(?:\s+--hash[=\s]\s*[a-z0-9]+:[0-9a-f]+)+$", re.ASCII)
_PACKAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[A-Za-z0-9._,\s-]*\])?\s*\(?[A-Za-z0-9<>=!~.*+,_\s]*\)?\s*(?:;[^@]*)?", re.ASCII
)
_FILE = re.compile(r"([^\s;\[\]]+)(\s*\[[A-Za-z0-9._,\s-]*\])?\s*(;[^@]*)?", re.ASCII)


class Line(NamedTuple):
    """A line with its continuation lines, without its comment. number: the number of its first physical line, from 1."""

    file: Path
    number: int
    text: str


class Wanted(NamedTuple):
    """The lines of pip's requirements and of its constraints."""

    packages: list[str]
    constraints: list[str]


def read_requirements(requirements: Path, folder: Path) -> Wanted:
    """Return the lines that pip may read. Raises INVALID_ARG, with the line's number, for any other line.

    folder: the folder of the archive, which must contain the files that the lines name."""
    wanted = Wanted([], [])
    waiting = [(requirements, wanted.packages)]
    seen = set()
    while waiting:
        file, found = waiting.pop()
        if (file, found is wanted.packages) in seen:
            continue
        seen.add((file, found is wanted.packages))
        if len(seen) > _MAX_FILES:
            raise invalid(f"{requirements.name} of the archive leads to more than {_MAX_FILES} files")
        for line in _lines(file, folder):
            other = _OTHER_FILE.fullmatch(line.text)
            if other is None:
                found.append(_line(line, folder))
            else:
                bounds = other[1].startswith(("-c", "--c"))
                waiting.append((_inside(line, other[2], folder), wanted.constraints if bounds else found))
    return wanted


def _lines(file: Path, folder: Path) -> Iterator[Line]:
    try:
        content = file.read_bytes() if file.stat().st_size <= MAX_BYTES and leads_into(file, folder) else None
        text = None if content is None else content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        text = None
    if text is None:
        raise invalid(f"{file.name} of the archive is no text in UTF-8 of at most {MAX_BYTES >> 10} KiB")
    begun, number = "", 0
    for index, physical in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        number = number if begun else index
        begun += physical
        if begun.endswith("\\"):
            begun = begun[:-1]
            continue
        line = Line(file, number, _COMMENT.sub("", begun).strip())
        begun = ""
        if not line.text.replace("\t", " ").isprintable():
            raise _refused(line, "it has characters that cannot be printed")
        if line.text:
            yield line
    if begun:
        raise invalid(f"{file.name} of the archive ends within line {number}")


def _line(line: Line, folder: Path) -> str:
    text = line.text
    if "${" in text:
        raise _refused(line, "environment variables are not supported")
    if text.startswith("-"):
        if text in _FLAGS or _FORMATS.fullmatch(text):
            return text
        raise _refused(line, _ELSEWHERE)
    hashes = _HASHES.search(text)
    wanted = text[: hashes.start()] if hashes else text
    tail = text[hashes.start() :] if hashes else ""
    if _PACKAGE.fullmatch(wanted) and not wanted.partition(";")[0].rstrip().endswith(_ARCHIVES):
        return text
    local = _FILE.fullmatch(wanted)
    if local is None or "@" in wanted:
        raise _refused(line, _ELSEWHERE)
    return f"{_inside(line, local[1], folder).as_uri()}{local[2] or ''} {local[3] or ''}{tail}".rstrip()


_ARCHIVES = (".whl", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".tlz", ".lz", ".lzma")
_ELSEWHERE = (
    "expected packages by name or files of the archive: the server's environment (PIP_INDEX_URL) or pip.conf sets "
    "where packages come from"
)


def _inside(line: Line, name: str, folder: Path) -> Path:
    path = line.file.parent / name.strip()
    if any(character in name for character in ":\\") or not leads_into(path, folder):
        raise _refused(line, _ELSEWHERE)
    return path.resolve()


def _refused(line: Line, why: str) -> ServingError:
    return invalid(f"{line.file.name} of the archive, line {line.number} ({line.text[:80]!a}): {why}")
