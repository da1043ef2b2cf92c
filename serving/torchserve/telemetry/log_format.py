"""TorchServe's format for the lines of the server's log."""

import logging


class _Log4jFormatter(logging.Formatter):
    """Begins lines as TorchServe's Log4j does: 2026-11-22T15:35:00,210 [WARN ] MainThread serving.program - text."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"

    def format(self, record: logging.LogRecord) -> str:
        record.__dict__["log4j"] = {"WARNING": "WARN", "CRITICAL": "FATAL"}.get(record.levelname, record.levelname)
        return super().format(record)


FORMAT = _Log4jFormatter("%(asctime)s [%(log4j)-5s] %(threadName)s %(name)s%(about)s - %(message)s")
