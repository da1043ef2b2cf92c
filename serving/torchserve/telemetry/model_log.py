"""model_log.log: the output of handlers, line by line, in TorchServe's form.

    2026-11-22T15:35:00,210 [INFO ] W-9000-noop_1.0-stdout MODEL_LOG - hello from the handler

Lines have the worker's number where TorchServe writes the worker's port. Source: docs/logging.md of TorchServe 0.12, and its
files.
"""

import logging
from pathlib import Path

from serving.core import log_context
from serving.core.errors import ServingError
from serving.torchserve.registry import version_names
from serving.torchserve.registry.source import TorchServeSource
from serving.torchserve.telemetry.log_file import LogFile, stamp

FIRST_WORKER = 9000
_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}  # Log4j's names of levels


class ModelLog:
    """Writes the file from `start` to `close`."""

    def __init__(self, source: TorchServeSource, path: Path) -> None:
        self._handler = _Handler(source, path)

    def start(self) -> None:
        self._handler.file = LogFile(self._handler.path)
        logging.getLogger(log_context.OUTPUT).addHandler(self._handler)

    async def close(self) -> None:
        logging.getLogger(log_context.OUTPUT).removeHandler(self._handler)
        self._handler.close()


class _Handler(logging.Handler):
    """Called on the threads that read the output of workers, one after another."""

    def __init__(self, source: TorchServeSource, path: Path) -> None:
        super().__init__()
        self.path = path
        self.file: LogFile | None = None
        self._source = source

    def emit(self, record: logging.LogRecord) -> None:
        if self.file is None or not isinstance(record.args, tuple) or len(record.args) != 2:
            return
        instance, text = map(str, record.args)
        model, number = log_context.model()
        index = instance.rpartition("_")[2]
        worker = FIRST_WORKER + (int(index) if index.isdecimal() else 0)
        level = _LEVELS.get(record.levelname, record.levelname)
        start = (
            f"{stamp(record.created)} [{level:<5}] W-{worker}-{model}_{self._version(model, number)}-stdout MODEL_LOG"
        )
        self.file.append("".join(f"{start} - {line}\n" for line in text.splitlines()))

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        super().close()

    def _version(self, model: str, number: int) -> str:
        """Return the name of a version, which may not serve yet."""
        registrations = self._source.registrations
        registered = registrations.models.get(model) if registrations is not None else None
        if registered is not None:
            versions = list(registered.versions.values())
            return next((one.version for one in versions if one.number == number), str(number))
        try:
            return version_names.label(self._source.server, model, number)
        except ServingError:
            return str(number)
