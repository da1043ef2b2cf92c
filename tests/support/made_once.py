"""Makes once, for all processes of a run of tests, what many tests need and what takes seconds to make.

Each test copies what it changes.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from repository.files.storage import locked
from tests.support.serving_process import START_TIMEOUT_S

VARIABLE = "TEST_RUN_FOLDER"


def begin() -> None:
    """Make the folder of the run. Called before pytest starts its other processes, which inherit the variable."""
    if VARIABLE not in os.environ:
        folder = os.environ[VARIABLE] = tempfile.mkdtemp(prefix="slipway-run-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the path of what `make` has written to the path that it was given. Only the first call in the run makes it."""
    begin()
    path = Path(os.environ[VARIABLE], name)
    with locked(path.with_name(f"{name}.lock"), name, wait_s=START_TIMEOUT_S):
        if not path.exists():
            new = Path(tempfile.mkdtemp(dir=path.parent), name)
            make(new)
            new.rename(path)
    return path
