"""Waits that others cancel: one whose condition is met at that moment still ends its task."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_nothing_waits_by_what_keeps_a_cancellation_to_itself() -> None:
    """asyncio.wait_for returns, and does not raise, where it is cancelled in the turn in which what it waits for is done
    (Python 3.11): a loop around it would go on for ever, and a program would not end. asyncio.timeout has no such case."""
    sources = [path for room in ("dashboard", "serving", "repository") for path in (ROOT / room).rglob("*.py")]
    assert len(sources) > 300
    found = [path for path in sources if re.search(r"\basyncio\.wait_for\(", path.read_text())]
    assert found == []
