"""A program imports NumPy without the threads of OpenBLAS, and its child processes may have them."""

import os
import subprocess
import sys

import pytest

from repository.core.imports import BLAS_THREADS, without_blas_threads
from tests.support.serving_process import PATIENCE_S, ROOT

PROGRAM = f"""
import os
from repository.core.imports import without_blas_threads
with without_blas_threads():
    import numpy
print(len(os.listdir("/proc/self/task")), "{BLAS_THREADS}" in os.environ)
"""


def test_numpy_starts_no_threads_and_child_processes_do_not_hear_of_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != BLAS_THREADS}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.decode().split() == ["1", "False"]


def test_a_number_of_threads_that_somebody_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BLAS_THREADS, "3")
    with without_blas_threads():
        assert os.environ[BLAS_THREADS] == "3"
    assert os.environ[BLAS_THREADS] == "3"
