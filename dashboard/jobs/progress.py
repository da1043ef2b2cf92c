"""Reports the progress of the repository's long work to its job, and stops the work when the job is cancelled."""

import time

from dashboard.jobs.context import JobContext
from repository.files.progress import Progress

WRITE_SECONDS = 0.5
SHARE = 95  # the percentage for copying and hashing files; the later steps are short


class JobProgress(Progress):
    """Writes the progress at each step, and every WRITE_SECONDS while bytes are copied or hashed."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._whole = self._done = 0
        self._next = 0.0

    def plan(self, size: int) -> None:
        self._whole += size

    def step(self, name: str) -> None:
        self._context.begin_step(self._percent, name)
        self._next = time.monotonic() + WRITE_SECONDS

    def advance(self, size: int) -> None:
        self._done += size
        if time.monotonic() >= self._next:
            self._context.progress(self._percent)
            self._next = time.monotonic() + WRITE_SECONDS

    @property
    def _percent(self) -> float:
        return SHARE * self._done / max(self._whole, 1)
