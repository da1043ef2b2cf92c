"""Log lines as JSON, one object for each line, for programs that collect logs (SLIPWAY_LOG_FORMAT=json)."""

import logging
import sys
from pathlib import Path

from repository.core.json_log import json_line

# The word of a command line that names its process.
_PROCESSES = {"daphne": "dashboard", "celery": "worker", "watch": "watch", "up": "up"}


def process_name(arguments: list[str]) -> str:
    """Return the name of the process with this command line, as in `up`; "manage" for any other command."""
    program, *rest = arguments or [""]
    words = (Path(program).name, Path(program).parent.name, *rest[:1])
    return next((_PROCESSES[word] for word in words if word in _PROCESSES), "manage")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        exception = self.formatException(record.exc_info) if record.exc_info else ""
        return json_line(record, process_name(sys.argv), exception)
