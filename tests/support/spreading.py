"""How the tests are spread over processes: whole files, as what is shared is shared in a file, and long ones first.

Most tests wait for a process more than they compute, so two of our processes share a core.
"""

import gc
import os

import pytest
from xdist.scheduler import LoadFileScheduling

BROWSER = "tests/e2e/browser/"  # its files share one `manage.py up`, and go to one process
# These start one of their own, so that they may run beside the others.
WITH_THEIR_OWN_UP = {f"{BROWSER}test_browser_{name}.py" for name in ("accessibility", "releases")}


class FileScheduling(LoadFileScheduling):
    """Give a process the tests of a file, or of the files of the browser that share what they look at."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return BROWSER if file.startswith(BROWSER) and file not in WITH_THEIR_OWN_UP else file


def worker_count() -> int:
    return 2 * len(os.sched_getaffinity(0))


def put_long_files_first(items: list[pytest.Item]) -> None:
    """Otherwise one process would run a long file at the end while the others have nothing to do."""
    items.sort(key=lambda item: not (item.get_closest_marker("long") or item.get_closest_marker("browser")))


def collect_without_garbage() -> None:
    """While thousands of tests are made there is no garbage to look for; called before the first is read."""
    gc.disable()


def spare_collected_tests() -> None:
    """They stay to the end: collecting garbage, which some of them do often, need not look at them."""
    gc.collect()
    gc.freeze()
    gc.enable()
