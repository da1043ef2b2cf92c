"""Spreads the tests over processes: whole files, because the tests of a file share fixtures, and long files first.

Most tests wait for a process more than they compute, so two processes run for each core.
"""

import gc
import os

import pytest
from xdist.scheduler import LoadFileScheduling

BROWSER = "tests/e2e/browser/"  # the files in this folder share a `manage.py up` in each of three processes
SECOND_HALF = f"{BROWSER}test_browser_i"


def _files(*names: str) -> set[str]:
    return {f"{BROWSER}test_browser_{name}.py" for name in names}


IN_ONE_HOUSE = _files(
    "benchmark", "releases", "replay", "tune"
)  # the third: they measure, kill and stop what they share
LONGEST = _files("accessibility")
# These files start a `manage.py up` of their own, so that they may run in parallel with the others.
WITH_THEIR_OWN_UP = LONGEST | _files("drift", "rollouts", "sources", "usage")


class FileScheduling(LoadFileScheduling):
    """Gives a process all tests of a file, or of those files for the browser that share a Slipway."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.partition("::")[0] in IN_ONE_HOUSE:
            return "in one house"
        if _shares_up(nodeid):
            return SECOND_HALF if nodeid >= SECOND_HALF else BROWSER
        return super()._split_scope(nodeid)


def _shares_up(nodeid: str) -> bool:
    return nodeid.startswith(BROWSER) and nodeid.partition("::")[0] not in WITH_THEIR_OWN_UP


def worker_count() -> int:
    return 2 * len(os.sched_getaffinity(0))


def put_long_files_first(items: list[pytest.Item]) -> None:
    """Sort long files first, because otherwise one process would run a long file at the end while all others are idle. The
    files for the browser that share a Slipway take longest."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if _shares_up(item.nodeid):
        return 0
    if item.nodeid.partition("::")[0] in LONGEST:
        return 1
    return 2 if item.get_closest_marker("long") or item.get_closest_marker("browser") else 3


def collect_without_garbage() -> None:
    """Switch off garbage collection during the collection of thousands of tests, which leaves no garbage. Called before it."""
    gc.disable()


def spare_collected_tests() -> None:
    """Exempt the collected tests from garbage collection: they exist until the end, and some tests collect garbage often."""
    gc.freeze()
    gc.enable()
