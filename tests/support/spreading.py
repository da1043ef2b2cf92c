"""How the tests are spread over processes: whole files, because fixtures are shared in a file, and long ones first.

Most tests wait for a process more than they compute, so two processes run for each core.
"""

import gc
import os

import pytest
from xdist.scheduler import LoadFileScheduling

BROWSER = "tests/e2e/browser/"  # its files share one `manage.py up`, and go to one process
# These start one of their own, so that they may run beside the others.
WITH_THEIR_OWN_UP = {f"{BROWSER}test_browser_{name}.py" for name in ("accessibility", "releases")}


class FileScheduling(LoadFileScheduling):
    """Give a process the tests of a file, or of the browser's files that share one Slipway."""

    def _split_scope(self, nodeid: str) -> str:
        return BROWSER if _shares_up(nodeid) else super()._split_scope(nodeid)


def _shares_up(nodeid: str) -> bool:
    return nodeid.startswith(BROWSER) and nodeid.partition("::")[0] not in WITH_THEIR_OWN_UP


def worker_count() -> int:
    return 2 * len(os.sched_getaffinity(0))


def put_long_files_first(items: list[pytest.Item]) -> None:
    """Otherwise one process would run a long file at the end while the others are idle. The browser's files, which go to one
    process, take longest of all."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if _shares_up(item.nodeid):
        return 0
    return 1 if item.get_closest_marker("long") or item.get_closest_marker("browser") else 2


def collect_without_garbage() -> None:
    """While thousands of tests are made there is no garbage to look for; called before the first is read."""
    gc.disable()


def spare_collected_tests() -> None:
    """Exempt the collected tests from garbage collection: they stay to the end, and some tests collect often."""
    gc.collect()
    gc.freeze()
    gc.enable()
