"""Log lines as JSON, one object for each line, for programs that collect logs (SLIPWAY_LOG_FORMAT=json)."""

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

# The word of a command line that names its process.
_PROCESSES = {"daphne": "dashboard", "celery": "worker", "watch": "watch", "up": "up"}


def process_name(arguments: list[str]) -> str:
    """Return the name of the process with this command line, as in `up`; "manage" for any other command."""
    program, *rest = arguments or [""]
    words = (Path(program).name, Path(program).parent.name, *rest[:1])
    return next((_PROCESSES[word] for word in words if word in _PROCESSES), "manage")


class JsonFormatter(logging.Formatter):
    """Writes a record as an object of ASCII characters: `time` (RFC 3339, UTC), `level`, `logger`, `process`, `message`, and
    `exception` (a stack trace) where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "process": process_name(sys.argv),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
