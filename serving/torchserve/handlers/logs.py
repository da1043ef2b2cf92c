"""Sends log records of a handler from level INFO to the model's log, at their own level, as TorchServe's workers do."""

import logging
import sys

_LETTERS = {logging.DEBUG: "V", logging.INFO: "I", logging.WARNING: "W"}


class _ToServer(logging.Handler):
    """Writes records in the form that the server's OutputLog reads (serving/backends/child/process.py)."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record).replace("\n", "\x1f")
            sys.stderr.write(f"\x1e{_LETTERS.get(record.levelno, 'E')}{text}\n")
        except Exception:
            self.handleError(record)


def log_as_torchserve() -> None:
    """Configure the root logger before the handler does."""
    logging.basicConfig(level=logging.INFO, handlers=[_ToServer()], format="%(message)s")
