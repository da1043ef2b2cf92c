"""The inference server's log by model: each model has its own file, so that a model with many lines does not displace others.

`up` copies the server's output to the server's log, and each line about a model to the model's file as well; pages read these
files. A file and its predecessor together hold the model's newest LINES_BYTES to 2 * LINES_BYTES. Above MOST_MODELS files, the
file that was not written for the longest time is removed.
"""

from collections import OrderedDict
from pathlib import Path

from django.conf import settings

from dashboard.shared.log_files import RotatingLog, tail
from repository.core.errors import InvalidName
from repository.core.layout import check_name
from repository.core.log_line import CONTINUED, LogLine, parse

LINES_BYTES = 256 << 10
MOST_MODELS = 1000
_OPEN_FILES = 16
_LONGEST_LINE = 64 << 10
_CONTINUED = CONTINUED.encode()


def model_logs_folder() -> Path:
    return Path(settings.LOG_DIR) / "models"


def model_log_path(name: str) -> Path:
    """Return the path of a model's log."""
    return model_logs_folder() / f"{name}.log"


def model_log_tail(name: str, lines: int) -> list[str]:
    """Return the newest lines about a model, as `shorten_line` writes them; the oldest first."""
    path = model_log_path(name)
    found = tail(path, lines, 2 * LINES_BYTES)
    if len(found) < lines:
        found = [*tail(path.with_name(f"{path.name}.1"), lines - len(found), 2 * LINES_BYTES), *found]
    return [part for line in found for part in shorten_line(line).split("\n")][-lines:]


def shorten_line(line: str) -> str:
    """Return a line of a model's log without the logger and the model, which are the same in every line. Of JSON it makes
    text, which may have several lines."""
    found = parse(line)
    if found is None:
        return line
    version = f"version {found.version}: " if found.version else ""
    return f"{found.at} {found.level} {version}{found.text}"


class ModelLogs:
    """Writes each line of the server's output that is about a model, with its continuation lines, to the model's file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[str, RotatingLog] = OrderedDict()
        self._rest = b""
        self._name = ""  # the model of the previous line

    def write(self, data: bytes) -> None:
        """Take output, which may end within a line. Lines that cannot be written are lost; no error is raised."""
        lines = (self._rest + data).splitlines(keepends=True)
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest + b"\n")
            self._rest = b""
        for name, text in self._by_model(lines):
            try:
                self._file(name).write(text)
            except OSError:
                continue

    def _by_model(self, lines: list[bytes]) -> list[tuple[str, bytes]]:
        """Return the models of the lines with their text; consecutive lines of one model are joined."""
        found: list[tuple[str, bytes]] = []
        for line in lines:
            if not line.startswith(_CONTINUED):
                self._name = _model(line)
            if not self._name:
                continue
            if found and found[-1][0] == self._name:
                found[-1] = (self._name, found[-1][1] + line)
            else:
                found.append((self._name, line))
        return found

    def _file(self, name: str) -> RotatingLog:
        file = self._open.get(name)
        if file is None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            path = self._folder / f"{name}.log"
            if not path.exists():
                self._make_room()
            file = self._open[name] = RotatingLog(path, LINES_BYTES, kept=1)
        self._open.move_to_end(name)
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return file

    def _make_room(self) -> None:
        """Remove the file that was not written for the longest time, if there are MOST_MODELS."""
        files = list(self._folder.glob("*.log"))
        if len(files) >= MOST_MODELS:
            oldest = min(files, key=lambda path: path.stat().st_mtime)
            oldest.unlink(missing_ok=True)
            oldest.with_name(f"{oldest.name}.1").unlink(missing_ok=True)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()


def _model(line: bytes) -> str:
    """Return the name of a line's model; "" for a line about no model."""
    if b"]: " not in line and not line.startswith(b"{"):
        return ""
    found: LogLine | None = parse(line.decode(errors="replace").rstrip("\r\n"))
    try:
        return check_name(found.model) if found else ""
    except InvalidName:
        return ""
