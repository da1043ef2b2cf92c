"""Numbers and times as the pages write them, by the server and by the browser alike."""

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dashboard.templatetags import units
from tests.support.serving_process import PATIENCE_S

FORMAT_JS = Path(__file__).resolve().parents[3] / "static" / "js" / "format.js"
EXAMPLES = [
    ("count", 0, "0"),
    ("count", 7, "7"),
    ("count", 999.6, "1 k"),
    ("count", 1_234_567, "1.23 M"),
    ("rate", 0.25, "0.25/s"),
    ("rate", 8912.3, "8.91 k/s"),
    ("latency", 0, "0 ms"),
    ("latency", 0.1236, "124 µs"),
    ("latency", 1.2449, "1.24 ms"),
    ("latency", 12.35, "12.3 ms"),
    ("latency", 999.7, "1 s"),
    ("share", 0.00001, "< 0.01 %"),
    ("share", 0.0153, "1.53 %"),
    ("share", 1, "100 %"),
    ("size", 512, "512 B"),
    ("size", 1024, "1 KiB"),
    ("size", 13_002_342, "12.4 MiB"),
    ("size", None, "–"),
    ("duration", 0.25, "250 ms"),
    ("duration", 3.5, "3.5 s"),
    ("duration", 42, "42 s"),
    ("duration", 200, "3 min 20 s"),
    ("duration", 7500, "2 h 5 min"),
    ("duration", 356_400, "4 d 3 h"),
]
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
AGES = [
    (2, "just now"),
    (42, "42 s ago"),
    (200, "3 min ago"),
    (7300, "2 h ago"),
    (3 * 86400, "3 d ago"),
    (-7300, "in 2 h"),
]


@pytest.mark.parametrize(("name", "value", "text"), EXAMPLES)
def test_a_number_has_a_unit_and_at_most_three_digits(name: str, value: float, text: str) -> None:
    assert getattr(units, name)(value) == text


@pytest.mark.parametrize(("seconds", "text"), AGES)
def test_a_moment_is_relative(seconds: int, text: str) -> None:
    assert units.relative(NOW - timedelta(seconds=seconds), NOW) == text


def test_an_old_moment_is_a_date() -> None:
    assert units.relative(NOW - timedelta(days=100), NOW) == "24 Jan 2026"


def test_what_was_not_measured_is_a_dash() -> None:
    assert {units.size(""), units.rate(None), units.latency(""), units.share(None)} == {units.NOTHING}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which nothing else of the project does")
def test_the_browser_writes_the_same() -> None:
    asked = json.dumps([[name, value] for name, value, _ in EXAMPLES])
    ages = json.dumps([seconds for seconds, _ in AGES])
    script = f"""
        const {{ FORMATS, ago }} = await import({json.dumps(FORMAT_JS.as_uri())});
        console.log(JSON.stringify([
            ...{asked}.map(([name, value]) => FORMATS[name](value)),
            ...{ages}.map((seconds) => ago(1e12 - seconds * 1000, 1e12)),
        ]));
    """
    command = ["node", "--no-warnings", "--experimental-default-type=module", "--input-type=module", "-e", script]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert json.loads(answer.stdout) == [text for _, _, text in EXAMPLES] + [text for _, text in AGES]
