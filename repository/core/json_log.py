"""Log lines as JSON, one object for each line, for programs that collect logs. The server and the dashboard write the same."""

import json
import logging
from datetime import UTC, datetime

from repository.core.plain_text import plain


def json_line(record: logging.LogRecord, process: str, exception: str, **about: object) -> str:
    """Return a record as an object of ASCII characters: `time` (RFC 3339, UTC), `level`, `logger`, `process`, `message`, what
    else it is about and, unless it is "", `exception` (a stack trace)."""
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    line = {
        "time": at.replace("+00:00", "Z"),
        "level": record.levelname,
        "logger": record.name,
        "process": process,
        "message": plain(record.getMessage()),
        **about,
    }
    return json.dumps(line | {"exception": plain(exception)} if exception else line)
