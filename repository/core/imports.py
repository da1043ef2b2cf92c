"""How a program imports its modules, which takes most of its start."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def without_garbage() -> Iterator[None]:
    """Import modules in this block without collections of garbage: importing leaves none, and what is imported stays."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@contextmanager
def without_blas_threads() -> Iterator[None]:
    """Import NumPy in this block without a thread of OpenBLAS for each core: all of them spin for some time at first, and the
    programs multiply no large matrices. Child processes, such as Python models, do have these threads."""
    given = os.environ.get(BLAS_THREADS)
    os.environ.setdefault(BLAS_THREADS, "1")
    try:
        yield
    finally:
        if given is None:
            del os.environ[BLAS_THREADS]
