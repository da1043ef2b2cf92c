"""The mark in a line of the inference server's log that names the model version; the server writes it, the dashboard reads it.

    2026-11-30 17:05:00,123 WARNING serving.models.model_loader [digits/3]: the file ends too early
    \tand this line continues the line above

"]" in a name is escaped. "[digits/]" marks a line about the model, not about one of its versions. With --log-format=json the
same line is an object (repository.core.json_log) with `model` and, unless it is 0, `version`.
"""

import json
import re
from dataclasses import dataclass
from urllib.parse import unquote

CONTINUED = "\t"
_ESCAPES = str.maketrans({"%": "%25", "]": "%5D"})
_LINE = re.compile(
    r"(\S+(?: \S+)?) (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.-]+ \[([^\]/]+)/(\d{0,19})\]: (.*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line about a model. version: 0 if the line is about no particular version."""

    at: str
    level: str
    model: str
    version: int
    text: str


def mark_of(model: str, version: int = 0) -> str:
    """Return the mark that follows the logger's name in a line about a model."""
    return f" [{model.translate(_ESCAPES)}/{version or ''}]"


def marked(mark: str) -> tuple[str, int]:
    """Return the model and the version of a mark; "" and 0 for an empty mark."""
    name, _, version = mark[2:-1].rpartition("/")
    return unquote(name), int(version or 0)


def parse(line: str) -> LogLine | None:
    """Return the fields of a line, or None for a line about no model, or one that continues another line."""
    found = _LINE.fullmatch(as_text(line))
    if found is None:
        return None
    at, level, model, version, text = found.groups()
    return LogLine(at, level, unquote(model), int(version or 0), text)


def as_text(line: str) -> str:
    """Return a line of JSON as the lines of text that say the same; any other line as it is."""
    if not line.startswith('{"time": "'):
        return line
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return line
    at, level, logger, message, model = (
        found.get(name, "") for name in ("time", "level", "logger", "message", "model")
    )
    version, exception = found.get("version", 0), found.get("exception", "")
    if (
        not all(isinstance(text, str) for text in (at, level, logger, message, model, exception))
        or type(version) is not int
    ):
        return line
    mark = mark_of(model, version) if model else ""
    said = f"{at} {level} {logger}{mark}: {message}" + (f"\n{exception}" if exception else "")
    return said.replace("\n", f"\n{CONTINUED}")
