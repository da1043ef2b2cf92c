"""The package `ts` in the test's own process, for its parts that need no child process."""

import sys
from pathlib import Path

import pytest

from tests.support.torchserve_archives import TS_PATH


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a test, as a child process has that of its archive: what lies there can be imported, and `ts`."""
    monkeypatch.syspath_prepend(str(TS_PATH))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    return tmp_path
