"""Caches the reports of the inspector, because many tests upload the same files and its process takes most of a second."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from django.conf import settings

LARGE = 1 << 20  # bytes

Run = Callable[[list[str], Path, IO[bytes], IO[bytes], Any], int]

_reports: dict[bytes, tuple[int, bytes, bytes]] = {}  # digest of the files -> status, report, log


def remembering(run: Run) -> Run:
    """Return `run` with a cache: its process runs for new files only; others get the same status, report and log again."""

    def remembered(command: list[str], scratch: Path, output: IO[bytes], errors: IO[bytes], context: Any) -> int:
        key = _digest(command)
        if key is None:
            return run(command, scratch, output, errors, context)
        if key not in _reports:
            status = run(command, scratch, output, errors, context)
            _reports[key] = status, _content(output), _content(errors)
            return status
        status, report, log = _reports[key]
        output.write(report)
        errors.write(log)
        return status

    return remembered


def _digest(command: list[str]) -> bytes | None:
    """Return the digest of everything that the inspector reads; None if the folder holds a large or special file."""
    folder, _, name, *config = command
    texts = [Path(path).read_text() for path in config[1:]]
    digest = hashlib.sha256(repr((name, texts, settings.INSPECT_MEMORY_BYTES, settings.INSPECT_TIMEOUT)).encode())
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()) or path.stat().st_size > LARGE:
            return None
        content = path.read_bytes() if path.is_file() else b""
        digest.update(repr((path.relative_to(folder), path.is_file(), len(content))).encode() + content)
    return digest.digest()


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
