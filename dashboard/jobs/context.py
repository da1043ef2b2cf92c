"""The context of a running job: progress, log, cancellation. Every write checks that the worker still has the job."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from django.db import Error, close_old_connections, connection
from django.db.models import F, QuerySet, Value
from django.db.models.functions import Concat, Length
from django.utils import timezone

from dashboard.models import Job
from dashboard.shared.choices import JobState
from repository.core.plain_text import plain

HEARTBEAT_SECONDS = 5.0
LOG_LIMIT = 1 << 20


class JobCancelled(Exception):
    """Somebody cancelled the job; the runner records it as cancelled."""


class JobSuperseded(Exception):
    """This worker was taken for dead, and the job runs elsewhere or has ended: stop, and record nothing."""


@contextlib.contextmanager
def undone_by(undo: Callable[[Exception], None]) -> Iterator[None]:
    """Call `undo` with an exception that the block raises, then raise it again.

    A superseded worker undoes nothing, because the work belongs to another worker now. A killed worker undoes nothing either;
    the next attempt finds its remains.
    """
    try:
        yield
    except JobSuperseded:
        raise
    except Exception as error:
        undo(error)
        raise


class JobContext:
    """Progress, log and cancellation of one attempt at one job. A thread sends its heartbeats."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.params = job.params
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat-{job.pk}", daemon=True)

    def __enter__(self) -> "JobContext":
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def progress(self, percent: float, step: str = "") -> None:
        """Record the progress of the job and its step. Raises JobCancelled or JobSuperseded as `check_cancelled` does."""
        changes: dict[str, object] = {"progress": max(0, min(100, int(percent)))}
        if step:
            changes["step"] = step[:200]
        self._write(**changes)
        self.check_cancelled()

    def begin_step(self, percent: float, step: str) -> None:
        """Record that a step begins, also as a line of the log.

        Raises JobCancelled or JobSuperseded as `check_cancelled` does.
        """
        self.log(step)
        self.progress(percent, step)

    def report(self, result: dict[str, object]) -> None:
        """Record the job's result so far; it stays if the job fails or is cancelled."""
        self.job.result = result
        self._write(result=result)

    def log(self, line: str) -> None:
        """Append one line to the job's log, unless the log has LOG_LIMIT characters."""
        rows = self._own().annotate(length=Length("log")).filter(length__lt=LOG_LIMIT)
        rows.update(log=Concat(F("log"), Value(plain(line.rstrip()) + "\n")), heartbeat_at=timezone.now())

    def check_cancelled(self) -> None:
        """Raise JobCancelled if somebody cancelled the job, JobSuperseded if the job is not this worker's any more."""
        row = self._own().values_list("cancel_requested", flat=True).first()
        if row is None:
            raise JobSuperseded
        if row:
            raise JobCancelled

    def refuse_superseded(self) -> None:
        """Raise JobSuperseded if the job is not this worker's any more. Within a transaction it stays so until the end."""
        self._write()

    def _own(self) -> QuerySet[Job]:
        return Job.objects.filter(pk=self.job.pk, state=JobState.RUNNING, attempt=self.job.attempt)

    def _write(self, **changes: object) -> None:
        if not self._own().update(heartbeat_at=timezone.now(), **changes):
            raise JobSuperseded

    def _beat(self) -> None:
        try:
            while not self._stop.wait(HEARTBEAT_SECONDS):
                # If the database is busy or unreachable, one heartbeat is lost, but the job continues.
                with contextlib.suppress(Error):
                    self._own().update(heartbeat_at=timezone.now())
                close_old_connections()
        finally:
            connection.close()
