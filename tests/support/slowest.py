"""Which files of tests take longest, told at the end of a run of many."""

from collections import Counter

import pytest

FILES = 10
_seconds: Counter[str] = Counter()  # by file: set-up, tests and what follows them, in whichever process


def note(report: pytest.TestReport) -> None:
    _seconds[report.nodeid.partition("::")[0]] += report.duration


def tell(reporter: pytest.TerminalReporter) -> None:
    if len(_seconds) > FILES:
        reporter.section(f"the {FILES} slowest files")
        for name, seconds in _seconds.most_common(FILES):
            reporter.line(f"{seconds:7.1f} s  {name}")
