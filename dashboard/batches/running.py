"""Runs a batch job: copies its sources, splits its files, sends part after part, joins the parts.

Each step finds what an earlier attempt has done, and goes on from there. Two parts are under way at a time, so that the model
has work while the answers to one part are written.
"""

import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from django.conf import settings
from django.db import transaction
from django.db.models import F, Sum
from django.utils import timezone

from dashboard.access.authorisation import Actor, Right, require
from dashboard.batches.formats.table import Answer, Column, Limits, Rows, Span, Table, open_table
from dashboard.batches.selectors import answering
from dashboard.batches.sending.sender import SendingThread
from dashboard.batches.services import input_path, reasons_keep, result_path, target_of
from dashboard.batches.sources import source_copy
from dashboard.jobs.context import JobContext
from dashboard.models import BatchFile, BatchJob, BatchPart, Job
from dashboard.servers.selectors import server_asked
from dashboard.shared.exceptions import Forbidden, Invalid, NotFound
from dashboard.shared.repository_errors import repository_errors
from repository.files import storage

PART = Limits(rows=5_000, size=8 << 20)
UNDER_WAY = 2  # parts
LOCK_WAIT_S = 30.0  # a worker that was wrongly taken for dead lets go at its next part
TELL_S = 1.0
RATE_WINDOW_S = 30.0
_AT_ONCE = 500  # rows of the database that are written by one statement
_COPYING, _SPLITTING, _SENDING, _JOINING = 0, 3, 5, 97  # percent at which the steps begin


@repository_errors()
def batch_run(context: JobContext) -> dict[str, object]:
    """Run the job `batch`, and return the numbers of its rows. Raises Invalid if too many rows were refused."""
    batch = BatchJob.objects.filter(pk=context.params["batch"]).first()
    if batch is None:
        raise NotFound("the batch job was removed")
    _refuse_without_right(context.job)
    with storage.locked(batch.folder / "lock", "this batch job", wait_s=LOCK_WAIT_S):
        batch.refresh_from_db()
        return _Run(context, batch).run()


def batch_attempts_in_vain(job: Job) -> int:
    """Return how many attempts in a row have ended with the death of a worker, without a part that was stored."""
    last = BatchJob.objects.filter(pk=job.params["batch"]).values_list("progress_attempt", flat=True).first()
    return job.attempt + 1 - (last or 0)


def _refuse_without_right(job: Job) -> None:
    """Raise Forbidden if the person who started the job may not infer any more."""
    if job.created_by is None:
        raise Forbidden("the account that started this batch job is gone")
    require(Actor(user=job.created_by), Right.INFER)


class _Waiting(NamedTuple):
    """A part whose answers are awaited, with the table that writes it."""

    part: BatchPart
    table: Table
    rows: Rows
    answers: "Future[list[Answer]]"


class _Run:
    def __init__(self, context: JobContext, batch: BatchJob) -> None:
        self._context, self._batch = context, batch
        self._columns = [Column(row["column"], row["datatype"], row["is_list"]) for row in batch.plan["outputs"]]
        self._marks: deque[tuple[float, int]] = deque()  # seconds, rows done by then

    def run(self) -> dict[str, object]:
        batch = self._batch
        if batch.finished_at is None:
            self._remove_temporary_files()
            files = list(batch.files.all())
            self._copy(files)
            self._split(files)
            self._send()
            self._join(files)
            self._finish()
        storage.remove_tree(batch.folder / "parts")
        storage.remove_tree(batch.folder / "inputs")
        batch.refresh_from_db()
        return {"batch": str(batch.pk), "done": batch.rows_done, "refused": batch.error_rows}

    def _remove_temporary_files(self) -> None:
        """Remove the files of an attempt that was killed; this attempt holds the lock."""
        for path in self._batch.folder.glob("*/*.tmp"):
            path.unlink()

    # -- before the first row ------------------------------------------------------------------------------------------
    def _copy(self, files: list[BatchFile]) -> None:
        for file in files:
            path = input_path(file)
            if not self._batch.source or path.exists() or file.result_bytes is not None:
                continue
            self._context.begin_step(_COPYING, f"Copying {file.name}")
            temporary = path.with_suffix(".tmp")
            source_copy(self._batch.source, file, temporary)
            storage.sync(temporary)
            temporary.replace(path)
            storage.sync(path.parent)

    def _split(self, files: list[BatchFile]) -> None:
        """Record the parts of each file, in one transaction for a file."""
        for file in files:
            if file.rows is None:
                self._context.begin_step(_SPLITTING, f"Looking for the rows of {file.name}")
                spans = self._spans(file)
                with transaction.atomic():
                    self._context.refuse_superseded()
                    file.parts.all().delete()
                    parts = (
                        BatchPart(file=file, number=number, offset=span.offset, length=span.length, rows=span.rows)
                        for number, span in enumerate(spans)
                    )
                    BatchPart.objects.bulk_create(parts, batch_size=_AT_ONCE)
                    file.rows = sum(span.rows for span in spans)
                    file.save(update_fields=["rows"])
        self._batch.rows = sum(file.rows or 0 for file in files)
        BatchJob.objects.filter(pk=self._batch.pk).update(rows=self._batch.rows)

    def _spans(self, file: BatchFile) -> list[Span]:
        """Return the parts of a file. Raises Invalid, with the name of the file, if it lacks a column or cannot be read."""
        found = []
        try:
            with input_path(file).open("rb") as opened:
                table = open_table(self._batch.format, opened)
                self._refuse_other_columns(table)
                for number, span in enumerate(table.split(PART)):
                    if number % 100 == 99:
                        self._context.check_cancelled()
                    found.append(span)
        except Invalid as error:
            raise Invalid(f"'{file.name}': {error.message}") from None
        return found

    def _refuse_other_columns(self, table: Table) -> None:
        """Raise Invalid if the columns are not those that the plan was made for; each line of JSONL has columns of its own."""
        if self._batch.format == "jsonl":
            return
        needed = [column for row in self._batch.plan["inputs"] for column in row["columns"]]
        if lacking := [column for column in needed if column not in table.columns]:
            raise Invalid(f"the file has no column '{lacking[0]}', which an input needs")
        if taken := [column.name for column in self._columns if column.name in table.columns]:
            raise Invalid(f"the file has a column '{taken[0]}', and the answers would have the same name; rename it")

    # -- the rows ------------------------------------------------------------------------------------------------------
    def _send(self) -> None:
        parts = list(
            BatchPart.objects.filter(file__batch=self._batch, done=False)
            .select_related("file")
            .order_by("file__number", "number")
        )
        if not parts:
            return
        plan = self._batch.plan
        found = answering(self._batch.model_name, plan["version"])
        server = server_asked(plan.get("server", ""))
        self._context.log(f"Version {found.version} on {server.name} answers; {len(parts)} parts are to be sent")
        target = target_of(server, self._batch.model_name, found, plan["inputs"], plan["outputs"])
        with SendingThread(target) as sending:
            self._sender = sending.sender
            self._before = self._batch.rows_done, self._batch.error_rows
            try:
                self._send_parts(parts, sending)
            finally:
                reasons_keep(self._batch, sending.sender.reasons)

    def _send_parts(self, parts: list[BatchPart], sending: SendingThread) -> None:
        waiting: deque[_Waiting] = deque()
        for part, table, rows in self._read(parts):
            waiting.append(_Waiting(part, table, rows, sending.answer(rows.rows)))
            if len(waiting) == UNDER_WAY:
                self._store(waiting.popleft())
        while waiting:
            self._store(waiting.popleft())

    def _read(self, parts: list[BatchPart]) -> Iterator[tuple[BatchPart, Table, Rows]]:
        """Yield the table and the rows of each part."""
        by_file: dict[int, list[BatchPart]] = {}
        for part in parts:
            by_file.setdefault(part.file_id, []).append(part)
        for same in by_file.values():
            file = same[0].file
            file.batch = self._batch
            with input_path(file).open("rb") as opened:
                table = open_table(self._batch.format, opened)
                spans = (Span(part.offset, part.length, part.rows) for part in same)
                for part, rows in zip(same, table.read(spans), strict=True):
                    part.file = file
                    if len(rows.rows) != part.rows:
                        raise Invalid(f"'{file.name}' is not the file any more that was split into parts")
                    yield part, table, rows

    def _store(self, waiting: _Waiting) -> None:
        """Wait for the answers to a part, and store them: afterwards the part is done, or nothing has changed."""
        part, rows, answers = waiting.part, waiting.rows, self._wait(waiting.answers)
        errors = sum(bool(answer.error) for answer in answers)
        path = self._part_path(part)
        temporary = path.with_name(f"{path.name}.tmp")
        storage.ensure_space(path.parent, 2 * part.length, settings.DISK_RESERVE_BYTES)
        with _written(temporary, part.length) as file:
            waiting.table.write(file, rows, self._columns, answers)
        with transaction.atomic():
            self._context.refuse_superseded()
            temporary.replace(path)
            storage.sync(path.parent)
            BatchPart.objects.filter(pk=part.pk).update(done=True, errors=errors)
            BatchJob.objects.filter(pk=self._batch.pk).update(
                rows_done=F("rows_done") + part.rows,
                error_rows=F("error_rows") + errors,
                progress_attempt=self._context.job.attempt,
                touched_at=timezone.now(),
            )
        self._batch.rows_done += part.rows
        self._batch.error_rows += errors
        self._tell()
        self._refuse_many(self._batch.error_rows)

    def _wait(self, answers: "Future[list[Answer]]") -> list[Answer]:
        while not wait([answers], TELL_S).done:
            self._refuse_many(self._before[1] + self._sender.refused)
            if self._sender.trouble:
                # A server is waited for, but not a deleted model or an archived version.
                answering(self._batch.model_name, self._batch.plan["version"])
            self._tell()
        return answers.result()

    def _refuse_many(self, errors: int) -> None:
        most = self._batch.plan["most_errors"]
        if errors > most:
            raise Invalid(
                f"{errors:,} rows were refused, and at most {most:,} may be. The rows that are done are kept: look at "
                "the reasons on the page of the batch job, then continue with a higher bound"
            )

    def _tell(self) -> None:
        """Report the progress: rows, rate, time left, and why nothing moves."""
        batch, now = self._batch, time.monotonic()
        whole = batch.rows or 1
        done = min(self._before[0] + self._sender.answered, whole)
        self._marks.append((now, done))
        while self._marks[0][0] < now - RATE_WINDOW_S:
            self._marks.popleft()
        seconds, rows = now - self._marks[0][0], done - self._marks[0][1]
        step = f"{done:,} of {whole:,} rows"
        if rows > 0 and seconds > 0:
            step += f", {rows / seconds:,.0f}/s, {_duration((whole - done) * seconds / rows)} left"
        if batch.error_rows:
            step += f", {batch.error_rows:,} refused"
        if self._sender.trouble:
            step = f"{step}. Waiting: {self._sender.trouble}"
        self._context.progress(_SENDING + (_JOINING - _SENDING) * done / whole, step)

    # -- after the last row --------------------------------------------------------------------------------------------
    def _join(self, files: list[BatchFile]) -> None:
        for file in files:
            if file.result_bytes is not None:
                continue
            file.batch = self._batch
            self._context.begin_step(_JOINING, f"Joining the parts of {file.name}")
            result = result_path(file)
            temporary = result.with_name(f"{result.name}.tmp")
            parts = [self._part_path(part) for part in file.parts.order_by("number")]
            size = sum(part.stat().st_size for part in parts)
            storage.ensure_space(result.parent, size, settings.DISK_RESERVE_BYTES)
            with _written(temporary, size) as target, input_path(file).open("rb") as opened:
                open_table(self._batch.format, opened).join(target, self._checked(parts), self._columns)
            with transaction.atomic():
                self._context.refuse_superseded()
                file.result_bytes = temporary.stat().st_size
                temporary.replace(result)
                storage.sync(result.parent)
                file.save(update_fields=["result_bytes"])

    def _checked(self, parts: list[Path]) -> Iterator[Path]:
        for part in parts:
            self._context.check_cancelled()
            yield part

    def _finish(self) -> None:
        with transaction.atomic():
            self._context.refuse_superseded()
            own = BatchPart.objects.filter(file__batch=self._batch)
            sums = own.aggregate(rows=Sum("rows"), errors=Sum("errors"))
            BatchJob.objects.filter(pk=self._batch.pk).update(
                rows_done=sums["rows"] or 0, error_rows=sums["errors"] or 0, finished_at=timezone.now()
            )
            own.delete()

    def _part_path(self, part: BatchPart) -> Path:
        return self._batch.folder / "parts" / f"{part.file.number}-{part.number}"


@contextmanager
def _written(path: Path, size: int) -> Iterator[IO[bytes]]:
    """Yield a new file, and sync it afterwards; if that fails, nothing is left. Raises NoSpace if the disk is full."""
    try:
        with storage.full_disk_is_no_space(size, path.parent), path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except Exception:
        path.unlink(missing_ok=True)
        raise


def _duration(seconds: float) -> str:
    """Return a time in words: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
