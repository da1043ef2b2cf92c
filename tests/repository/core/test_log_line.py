"""Lines of the log about a model: one program writes them, the other reads them."""

import json
import logging

import pytest

from repository.core.json_log import json_line
from repository.core.log_line import LogLine, as_text, mark_of, parse


@pytest.mark.parametrize("name", ["digits", "my model", "a]b", "100%", "%5D", "模型", "x]: y", "[z"])
@pytest.mark.parametrize("version", [0, 3, (1 << 63) - 1])
def test_a_mark_is_read_as_it_was_written(name: str, version: int):
    line = f"2026-11-30 17:05:00,123 WARNING serving.models{mark_of(name, version)}: it: [is] late"
    assert parse(line) == LogLine("2026-11-30 17:05:00,123", "WARNING", name, version, "it: [is] late")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "2026-11-30 17:05:00,123 INFO serving: ready",
        "2026-11-30 17:05:00,123 INFO serving: [digits/3]: is only said",
        "\tTraceback (most recent call last):",
        "[digits/3]: nothing before it",
        "2026-11-30 17:05:00,123 LOUD serving [digits/3]: no level",
    ],
)
def test_other_lines_are_about_no_model(line: str):
    assert parse(line) is None


def test_a_line_in_the_other_format_of_times_is_read_too():
    found = parse(f"2026-11-30T17:05:00Z INFO serving.models{mark_of('digits')}: loaded")
    assert found == LogLine("2026-11-30T17:05:00Z", "INFO", "digits", 0, "loaded")


@pytest.mark.parametrize("name", ["digits", "a]b", "模型"])
def test_a_line_of_json_is_read_as_the_same_line_of_text(name: str):
    record = logging.makeLogRecord(
        {"created": 0.5, "levelname": "ERROR", "name": "serving.models", "msg": "it is\nlate"}
    )
    line = json_line(record, "server", "Traceback\n  ValueError", model=name, version=3)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["model"] == name
    said = "it is\n\tlate\n\tTraceback\n\t  ValueError"
    assert parse(line) == LogLine("1970-01-01T00:00:00.500Z", "ERROR", name, 3, said)


@pytest.mark.parametrize(
    "line",
    [
        '{"time": "now", "level": 3}',
        '{"time": "now", "level": "INFO", "logger": "x", "message": "y", "version": "3"}',
        '{"time": "now", "level": "INFO"',
        '{"time": "now", "level": ' + "[" * 100_000,
    ],
)
def test_what_only_begins_like_json_stays_as_it_is(line: str):
    assert as_text(line) == line
    assert parse(line) is None
