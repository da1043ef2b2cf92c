"""Prints the slowest files of tests at the end of a run of many files, and what all of them cost.

The processor time of a file says more than its seconds when other work runs on the machine. It counts the test's own process,
and those that have ended: a Slipway that several files share counts for the last of them.
"""

import os
from collections import Counter

import pytest

FILES = 30
COST = "cpu_s"  # the name of a report's property
_seconds: Counter[str] = Counter()  # file -> seconds of its set-ups, tests and tear-downs, in all processes
_cost: Counter[str] = Counter()  # the same, of processor time
_counted_s = 0.0  # the processor time of this process at the last call of `count`


def count() -> float:
    """Return the processor time of this process since the last call."""
    global _counted_s
    before_s, _counted_s = _counted_s, sum(os.times()[:4])
    return _counted_s - before_s


def measure(report: pytest.TestReport) -> None:
    """Add to a report, in the process that ran its test, the processor time since the report before."""
    report.user_properties = [*report.user_properties, (COST, count())]


def note(report: pytest.TestReport) -> None:
    file = report.nodeid.partition("::")[0]
    _seconds[file] += report.duration
    _cost[file] += sum(value for name, value in report.user_properties if name == COST)


def tell(reporter: pytest.TerminalReporter) -> None:
    if len(_seconds) > FILES:
        reporter.section(f"the {FILES} slowest files: seconds, and seconds of processors")
        for name, seconds in _seconds.most_common(FILES):
            reporter.line(f"{seconds:7.1f} s {_cost[name]:7.1f} s  {name}")
        reporter.line(f"{_seconds.total():7.0f} s {_cost.total():7.0f} s  all {len(_seconds)} files")
