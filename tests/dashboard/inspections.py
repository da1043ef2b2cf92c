"""Caches the reports of the inspector, because many tests upload the same files and its process takes most of a second."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from django.conf import settings

from dashboard.confinement import program
from dashboard.confinement.bounds import Outcome

LARGE = 1 << 20  # bytes

_reports: dict[bytes, tuple[Outcome, bytes, list[str]]] = {}  # digest of the files -> outcome, report, lines


def remembering(run: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Return `run` with a cache: its process runs for new files only; others get the same outcome, report and lines again."""

    def remembered(command: list[str], *, output: IO[bytes], on_line: Callable[[str], None], **more: Any) -> Outcome:
        key = _digest(command)
        if key is None:
            return run(command, output=output, on_line=on_line, **more)
        if key not in _reports:
            lines: list[str] = []
            outcome = run(command, output=output, on_line=lines.append, **more)
            _reports[key] = outcome, _content(output), lines
        else:
            output.write(_reports[key][1])
        outcome, _, lines = _reports[key]
        for line in lines:
            on_line(line)
        return outcome

    return remembered


def _digest(command: list[str]) -> bytes | None:
    """Return the digest of everything that the inspector reads; None if the folder holds a large or special file."""
    *_, folder, _, name = command[:6]
    config = command[6:]
    texts = [Path(path).read_text() for path in config[1:]]
    limits = (settings.INSPECT_MEMORY_BYTES, settings.INSPECT_TIMEOUT, program.protections())
    digest = hashlib.sha256(repr((name, texts, limits)).encode())
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()) or path.stat().st_size > LARGE:
            return None
        content = path.read_bytes() if path.is_file() else b""
        digest.update(repr((path.relative_to(folder), path.is_file(), len(content))).encode() + content)
    return digest.digest()


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
