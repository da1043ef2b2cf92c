"""Lets NumPy start no threads in a test process and in all that it starts, such as Python models.

OpenBLAS starts a thread for each core when NumPy is imported. They spin for some 60 ms, which costs as much as the import, in
thousands of processes; and no test multiplies large matrices.
"""

import os

from repository.core.imports import BLAS_THREADS


def use_one() -> None:
    """Called once, before any test is imported."""
    os.environ.setdefault(BLAS_THREADS, "1")
