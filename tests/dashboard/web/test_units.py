"""Numbers and times as the pages write them; tests/javascript/core/format.test.js holds the browser to the same examples."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dashboard.templatetags import units

EXAMPLES = json.loads((Path(__file__).resolve().parents[2] / "javascript" / "core" / "units.json").read_text())
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(("name", "value", "text"), EXAMPLES["numbers"])
def test_a_number_has_a_unit_and_at_most_three_digits(name: str, value: float, text: str) -> None:
    assert getattr(units, name)(value) == text


@pytest.mark.parametrize(("seconds", "text"), EXAMPLES["ages"])
def test_a_moment_is_relative(seconds: int, text: str) -> None:
    assert units.relative(NOW - timedelta(seconds=seconds), NOW) == text


def test_an_old_moment_is_a_date() -> None:
    assert units.relative(NOW - timedelta(days=100), NOW) == "24 Jan 2026"


def test_what_was_not_measured_is_a_dash() -> None:
    assert {units.size(""), units.rate(None), units.latency(""), units.share(None)} == {units.NOTHING}
