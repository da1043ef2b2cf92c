"""Prints the slowest files of tests at the end of a run of many files."""

from collections import Counter

import pytest

FILES = 10
_seconds: Counter[str] = Counter()  # file -> seconds of its set-ups, tests and tear-downs, in all processes


def note(report: pytest.TestReport) -> None:
    _seconds[report.nodeid.partition("::")[0]] += report.duration


def tell(reporter: pytest.TerminalReporter) -> None:
    if len(_seconds) > FILES:
        reporter.section(f"the {FILES} slowest files")
        for name, seconds in _seconds.most_common(FILES):
            reporter.line(f"{seconds:7.1f} s  {name}")
