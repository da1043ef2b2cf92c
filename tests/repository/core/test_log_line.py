"""Lines of the log about a model: one program writes them, the other reads them."""

import pytest

from repository.core.log_line import LogLine, mark_of, parse


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
