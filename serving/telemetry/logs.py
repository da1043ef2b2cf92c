"""The server's log, on standard error or in a file, and its settings, which clients may change.

Source of the settings: Triton, docs/protocol/extension_logging.md.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from repository.core.json_log import json_line
from repository.core.log_line import CONTINUED
from repository.core.plain_text import plain
from serving.cli.options import Options
from serving.core import log_context
from serving.core.errors import invalid, unavailable, unsupported
from serving.plugins.plugin import imported
from serving.plugins.table import PLUGINS
from serving.telemetry.log_rotation import rotate

# Libraries whose debug lines contain whole requests, including signatures and session tokens. Those lines are never logged.
TALKATIVE = ("botocore", "aiobotocore", "s3fs", "fsspec", "gcsfs", "adlfs", "azure", "google", "urllib3", "aiohttp")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        model, version = log_context.model()
        exception = self.formatException(record.exc_info) if record.exc_info else ""
        about = ({"model": model} if model else {}) | ({"version": version} if version else {})
        return json_line(record, "server", exception, **about)


FORMATS: dict[str, logging.Formatter] = {
    "default": logging.Formatter("%(asctime)s %(levelname)s %(name)s%(about)s: %(message)s"),
    "ISO8601": logging.Formatter("%(asctime)s %(levelname)s %(name)s%(about)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"),
    "json": _JsonFormatter(),
    **{name: imported(place) for plugin in PLUGINS for name, place in plugin.log_formats.items()},
}
FORMATS["ISO8601"].converter = time.gmtime
MAX_WAITING = 20_000  # lines that may wait to be written
CLOSE_S = 2.0
_SETTINGS = ("log_info", "log_warning", "log_error", "log_verbose_level", "log_format")


@dataclass(frozen=True, slots=True)
class LogValues:
    """The values of the settings, named as in the protocol."""

    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"


class LogSettings:
    """The current settings. The log's formatter reads `current` for each line."""

    def __init__(self, values: LogValues | None = None) -> None:
        self.current = values or LogValues()
        self._listeners: list[Callable[[LogValues], None]] = []

    @classmethod
    def from_options(cls, options: Options) -> "LogSettings":
        return cls(
            LogValues(options.log_info, options.log_warning, options.log_error, options.log_verbose, options.log_format)
        )

    def subscribe(self, listener: Callable[[LogValues], None]) -> None:
        """Call `listener` immediately, and after each change of the settings."""
        self._listeners.append(listener)
        listener(self.current)

    def values(self) -> dict[str, bool | int | str]:
        """Return the settings with the protocol's names, in Triton's order."""
        return {"log_file": ""} | {name: getattr(self.current, name) for name in _SETTINGS}

    def update(self, changes: Mapping[str, object]) -> None:
        """Apply all of the changes, or none. A value of None does not change its setting. Raises INVALID_ARG for a wrong value,

        and UNSUPPORTED for `log_file`, because clients must not choose the file.
        """
        values = self.current
        for name, value in changes.items():
            if value is not None:
                values = _changed(values, name, value)
        self.replace(values)

    def replace(self, values: LogValues) -> None:
        self.current = values
        for listener in self._listeners:
            listener(values)


def _changed(values: LogValues, name: str, value: object) -> LogValues:
    match name:
        case "log_file":
            raise unsupported("log file location can not be updated through network protocol")
        case "log_info":
            return replace(values, log_info=_switch(name, value))
        case "log_warning":
            return replace(values, log_warning=_switch(name, value))
        case "log_error":
            return replace(values, log_error=_switch(name, value))
        case "log_verbose_level":
            if type(value) is not int or not 0 <= value < 1 << 31:
                raise invalid("expected 'log_verbose_level' to be a whole number of at least 0")
            return replace(values, log_verbose_level=value)
        case "log_format":
            if not isinstance(value, str) or value not in FORMATS:
                # UNAVAILABLE, as in Triton
                expected = " or ".join(FORMATS)
                raise unavailable(f"invalid argument for log_format, expected {expected}, got: {str(value)[:100]}")
            return replace(values, log_format=value)
    raise invalid(f"unrecognized log setting '{name[:100]}'; expected one of {', '.join(_SETTINGS)}")


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid(f"expected '{name}' to be a boolean")
    return value


def configure_logging(
    settings: LogSettings, path: Path | None = None, console: bool = False, max_bytes: int = 0
) -> None:
    """Set up the root logger, which follows later changes of the settings. Debug lines appear from verbose level 1.

    path: the file to write. If it is moved away, a new file begins. Without a path, or with `console`, lines go to standard
    error. max_bytes: the size at which a new file begins; 0 for no limit. Raises OSError if the file cannot be written.
    """
    handlers: list[logging.Handler] = [_BoundedFileHandler(path, max_bytes)] if path else []
    if console or not path:
        handlers.append(logging.StreamHandler(sys.stderr))
    formatter = _SettingsFormatter(settings)
    for handler in handlers:
        handler.addFilter(formatter.filter)
        handler.setFormatter(formatter)
    logging.basicConfig(handlers=handlers)
    settings.subscribe(_set_levels)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


class _BoundedFileHandler(logging.Handler):
    """Begins a new file at a given size, and keeps KEPT older files. Other processes that write the file switch to the new one.

    A separate thread writes, so that no caller waits for the disk. Lines are lost if too many wait for it; the file contains
    the number of lost lines.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__()
        self._path = path
        self._max_bytes = max_bytes
        self._file = _opened(path)  # a FileHandler would be closed before this handler at exit
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._lost = 0
        self._thread = threading.Thread(target=self._write_lines, name="log-file", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= MAX_WAITING:
            self._lost += 1
            return
        try:
            self._lines.put(self.format(record))
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Write the waiting lines, as many as the disk takes within CLOSE_S."""
        self._lines.put(None)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            with suppress(OSError):
                self._file.close()
        super().close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            lost, self._lost = self._lost, 0
            if lost:
                said = f"{lost} lines before this one were lost: the disk was too slow for the log"
                line += "\n" + self.format(
                    logging.makeLogRecord({"msg": said, "levelname": "WARNING", "name": __name__})
                )
            with suppress(OSError, ValueError):  # the disk is full or gone; a later line may succeed
                self._write(line)

    def _write(self, line: str) -> None:
        file = self._current_file()
        file.write(line + "\n")
        file.flush()

    def _current_file(self) -> TextIO:
        """Return the file to write: a new file if the last one is full, or was moved or deleted."""
        there = _status(self._path)
        if there and self._max_bytes and there.st_size >= self._max_bytes:
            with suppress(OSError):  # the old file continues to grow
                rotate(self._path)
            there = _status(self._path)
        if self._file.closed or not there or not os.path.samestat(there, os.fstat(self._file.fileno())):
            with suppress(OSError):  # the disk is full; the file is closed nevertheless
                self._file.close()
            self._file = _opened(self._path)
        return self._file


def _opened(path: Path) -> TextIO:
    return path.open("a", encoding="utf-8", errors="backslashreplace")


def _status(path: Path) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return path.stat()
    return None


def _set_levels(values: LogValues) -> None:
    """Set the levels of the loggers, so that a hidden debug line costs nothing."""
    logging.getLogger().setLevel(logging.DEBUG if values.log_verbose_level else logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.DEBUG if values.log_verbose_level > 1 else logging.INFO)


class _SettingsFormatter(logging.Formatter):
    """Filters and formats lines by the current settings."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        values = self._settings.current
        if record.levelno < logging.INFO:
            return values.log_verbose_level > 0
        if record.levelno < logging.WARNING:
            return values.log_info
        return values.log_warning if record.levelno < logging.ERROR else values.log_error

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record. If the record is about a model, its first line names the model, and each further line
        has the mark CONTINUED."""
        mark = record.__dict__["about"] = log_context.mark()
        text = plain(FORMATS[self._settings.current.log_format].format(record))
        return text.replace("\n", f"\n{CONTINUED}") if mark else text
