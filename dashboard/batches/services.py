"""Makes batch jobs, receives their files, previews them, starts and continues them, removes them.

The files of a batch job are in data/batches/<id>/:

    inputs/<file>            the file as it arrived, or a copy of a source; removed when the results are whole
    parts/<file>-<part>      the rows of a part with their answers; whole, because it is renamed when it is on the disk
    results/<file>           all parts of a file, joined; whole for the same reason
    reasons.json             some reasons of refused rows, those of the last attempt

A part counts when its row in the database says so. The row changes in the transaction in which the part's file gets its name.
So after a SIGKILL of any process a part is done or not begun, and `running` goes on with the first part that is not done.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require, require_inference
from dashboard.batches.formats.table import Answer, Column, Limits, Row, Rows, format_of, open_table
from dashboard.batches.mapping import mapping_problems, proposed_inputs, proposed_outputs, with_columns
from dashboard.batches.selectors import Answering, answering, reasons_path
from dashboard.batches.sending.sender import SendingThread, Target
from dashboard.batches.sources import source_files, source_head
from dashboard.jobs.services import job_create
from dashboard.models import BatchFile, BatchJob, BatchPart, Job, Server
from dashboard.models.batch import BatchInput, BatchOutput, BatchPlan
from dashboard.servers.selectors import server_asked
from dashboard.servers.services import LOCAL
from dashboard.shared.exceptions import Conflict, Invalid, NotFound, StorageFull, TooLarge
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads import chunks
from repository.core.errors import NoSpace
from repository.files import storage

KIND = "batch"
MOST_OPEN = 50  # batch jobs of one person that are not removed
PREVIEW_ROWS = 5
PREVIEW_TIMEOUT_S = 30.0
_LOOK_S = 0.1  # between looks at whether the server is away, in which case a preview does not wait for it
MOST_ERRORS = 100  # the rows that may be refused, unless the person says otherwise


@dataclass(frozen=True, slots=True)
class Preview:
    """The first rows of a batch job, and what would be done with them.

    problems: sentences; the job can start when there are none. answers: those of the model to `rows`; [] if it was not asked.
    """

    columns: list[str]
    inputs: list[BatchInput]
    outputs: list[BatchOutput]
    version: str
    rows: list[Row]
    problems: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


# -- files -------------------------------------------------------------------------------------------------------------
@repository_errors()
def batch_create(
    *, actor: Actor, model_name: str, files: Sequence[Mapping[str, Any]] = (), source: str = ""
) -> BatchJob:
    """Make a batch job of files that the actor will send, or of the files of a source that an administrator allows.

    files: [{"path": name, "size": bytes}]. Raises Forbidden, NotFound, Invalid, TooLarge or StorageFull.
    """
    require(actor, Right.INFER)
    require_inference(actor, model_name)
    answering(model_name)
    if bool(files) == bool(source):
        raise Invalid("expected either files or a source")
    if source:
        require(actor, Right.OPERATE)
    rows = [(one.name, one.size) for one in source_files(source)] if source else _announced(files)
    formats = {format_of(name) for name, _ in rows}
    if len(formats) > 1:
        raise Invalid("the files have several formats; choose files of one format")
    size = sum(size for _, size in rows)
    if size > settings.MAX_UPLOAD_BYTES:
        raise TooLarge(f"a batch job has at most {settings.MAX_UPLOAD_BYTES} bytes, this one would have {size}")
    if BatchJob.objects.filter(user=actor.user).count() >= MOST_OPEN:
        raise Conflict(f"you have {MOST_OPEN} batch jobs, and may have no more: remove some of them first")
    _ensure_space(3 * size)  # the input, its parts and its result
    with transaction.atomic():
        batch = BatchJob.objects.create(
            user=actor.user, user_name=actor.name, model_name=model_name, format=formats.pop(), source=source
        )
        BatchFile.objects.bulk_create(
            BatchFile(batch=batch, number=number, name=name, size=size, received=size if source else 0)
            for number, (name, size) in enumerate(rows)
        )
        for part in ("inputs", "parts", "results"):
            (batch.folder / part).mkdir(parents=True, mode=0o700)
        what = source or ", ".join(name for name, _ in rows[:3])
        audit_record(
            actor=actor,
            action="batch.create",
            model_name=model_name,
            summary=f"Made a batch job for {model_name} of {what}",
            after={"batch": str(batch.pk), "bytes": size},
        )
    return batch


@repository_errors()
def batch_receive_chunk(
    *, batch: BatchJob, number: int, offset: int, chunk: bytes, actor: Actor, sha256: str = ""
) -> BatchFile:
    """Append a chunk to a file; return the file. Raises WrongOffset, with the right offset, if `offset` is wrong."""
    require(actor, Right.INFER)
    chunks.check(chunk, sha256)
    file = batch_file(batch, number)
    with storage.locked(batch.folder / f"{number}.lock", "this file"):
        file.refresh_from_db()
        if batch.plan or batch.source:
            raise Conflict(f"the batch job takes no files: it {'has been started' if batch.plan else 'reads a source'}")
        chunks.append(input_path(file), chunk, offset, received=file.received, size=file.size)
        file.received = offset + len(chunk)
        file.save(update_fields=["received"])
        BatchJob.objects.filter(pk=batch.pk).update(touched_at=timezone.now())
    return file


def batch_file(batch: BatchJob, number: int) -> BatchFile:
    file = next((one for one in batch.files.all() if one.number == number), None)
    if file is None:
        raise NotFound(f"the batch job has no file {number}")
    return file


def input_path(file: BatchFile) -> Path:
    return file.batch.folder / "inputs" / str(file.number)


def result_path(file: BatchFile) -> Path:
    return file.batch.folder / "results" / str(file.number)


def reasons_keep(batch: BatchJob, reasons: Sequence[str]) -> None:
    """Keep some reasons of refused rows for the person who looks at the batch job. They may contain values of rows."""
    if reasons:
        with suppress(NoSpace, OSError):  # the job ends as it would without them
            storage.write_atomic(reasons_path(batch), orjson.dumps(list(reasons)), mode=0o600)


# -- looked at ---------------------------------------------------------------------------------------------------------
@repository_errors()
def batch_preview(
    *,
    batch: BatchJob,
    actor: Actor,
    mapping: Mapping[str, list[str]] | None = None,
    version: str = "",
    server: str = "",
    ask: bool = True,
) -> Preview:
    """Return the first rows, the columns that fill the inputs, and the model's answers to these rows.

    mapping: input -> columns, in place of the proposal. server: the name of the server that answers; "" for LOCAL. ask:
    whether the model is asked.
    """
    require(actor, Right.INFER)
    require_inference(actor, batch.model_name)
    found, asked = answering(batch.model_name, version), server_asked(server)
    if batch.state == "receiving":
        raise Conflict("the files have not arrived whole; send the rest first")
    columns, rows = _first_rows(batch)
    inputs = _mapped(batch, found, columns, mapping)
    outputs = proposed_outputs(found.signature, columns, batched=found.most_rows > 0)
    problems = mapping_problems(inputs, found.signature)
    preview = Preview(columns, inputs, outputs, found.version, rows, problems)
    if problems or not ask:
        return preview
    with SendingThread(target_of(asked, batch.model_name, found, inputs, outputs), governed=False) as sending:
        answers, deadline = sending.answer(rows), time.monotonic() + PREVIEW_TIMEOUT_S
        while not wait([answers], _LOOK_S).done and not sending.sender.trouble and time.monotonic() < deadline:
            pass
        if answers.done():
            preview.answers.extend(answers.result())
        else:
            trouble = sending.sender.trouble or "the model takes long"
            preview.problems.append(f"the first rows were not answered: {trouble}")
    return preview


def target_of(
    server: Server, model_name: str, found: Answering, inputs: Sequence[BatchInput], outputs: Sequence[BatchOutput]
) -> Target:
    """Return where rows are sent to, and which columns of answers are expected."""
    columns = [(row["name"], Column(row["column"], row["datatype"], row["is_list"])) for row in outputs]
    filled = [row for row in inputs if row["columns"]]
    return Target(server, model_name, found.version, filled, columns, found.most_rows, found.priority)


def _first_rows(batch: BatchJob) -> tuple[list[str], list[Row]]:
    file = batch.files.all()[0]
    with _head(batch, file) as head:
        table = open_table(batch.format, head)
        if any("\0" in name for name in table.columns):
            raise Invalid("the name of a column contains the character NUL")
        span = next(table.split(Limits(PREVIEW_ROWS, 1 << 20)), None)
        rows: Rows | None = next(table.read([span])) if span is not None else None
        return table.columns, rows.rows if rows is not None else []


@contextmanager
def _head(batch: BatchJob, file: BatchFile) -> Iterator[IO[bytes]]:
    if batch.source and not input_path(file).exists():
        with source_head(batch.source, file) as head:
            yield head
    else:
        with input_path(file).open("rb") as whole:
            yield whole


def _mapped(
    batch: BatchJob, found: Answering, columns: Sequence[str], mapping: Mapping[str, list[str]] | None
) -> list[BatchInput]:
    proposed = proposed_inputs(found.signature, columns, batched=found.most_rows > 0)
    kept = {row["name"]: row["columns"] for row in batch.plan.get("inputs", [])}
    names = {row["name"] for row in proposed}
    return with_columns(proposed, dict(mapping) if mapping else {k: v for k, v in kept.items() if k in names}, columns)


# -- started -----------------------------------------------------------------------------------------------------------
def batch_start(
    *,
    batch: BatchJob,
    actor: Actor,
    mapping: Mapping[str, list[str]] | None = None,
    version: str = "",
    server: str = "",
    most_errors: int = MOST_ERRORS,
) -> Job:
    """Create the job that sends every row. The version is fixed now, so that all rows are answered by the same one.

    The job waits until other batch jobs have ended. Raises Conflict if the batch job has been started. Raises Invalid if an
    input lacks a column.
    """
    if batch.plan:
        raise Conflict("the batch job has been started already")
    preview = batch_preview(batch=batch, actor=actor, mapping=mapping, version=version, server=server, ask=False)
    if preview.problems:
        raise Invalid(preview.problems[0])
    plan = BatchPlan(
        inputs=preview.inputs,
        outputs=preview.outputs,
        version=preview.version,
        server=server or LOCAL,
        most_errors=max(most_errors, 0),
    )
    return _begin(batch, actor, plan, "Started")


def batch_resume(*, batch: BatchJob, actor: Actor, most_errors: int | None = None) -> Job:
    """Create a job that goes on where the last one ended; parts that are done stay. most_errors: a new bound, or None."""
    require(actor, Right.INFER)
    require_inference(actor, batch.model_name)
    if batch.finished_at is not None or not batch.plan:
        raise Conflict("the batch job has succeeded" if batch.plan else "the batch job was not started yet")
    if batch.under_way:
        raise Conflict("the batch job is under way already")
    plan = batch.plan if most_errors is None else {**batch.plan, "most_errors": max(most_errors, 0)}
    return _begin(batch, actor, plan, "Continued")


def _begin(batch: BatchJob, actor: Actor, plan: BatchPlan, word: str) -> Job:
    with transaction.atomic():
        name = batch.files.all()[0].name
        title = f"Batch job for {batch.model_name}: {name}"
        job = job_create(kind=KIND, params={"batch": str(batch.pk)}, actor=actor, title=title[:200])
        before = batch.job_id
        if not BatchJob.objects.filter(pk=batch.pk, job=before).update(
            job=job, plan=plan, progress_attempt=0, touched_at=timezone.now()
        ):
            raise Conflict("somebody else has just started the batch job")
        audit_record(
            actor=actor,
            action="batch.start",
            model_name=batch.model_name,
            summary=f"{word} a batch job for {batch.model_name} with version {plan['version']} on {plan.get('server', LOCAL)}",
            after={"batch": str(batch.pk), "job": job.pk},
        )
    batch.refresh_from_db()
    return job


# -- removed -----------------------------------------------------------------------------------------------------------
def batch_remove(*, batch: BatchJob, actor: Actor) -> None:
    """Remove a batch job with its files and results. Raises Conflict while it is under way."""
    require(actor, Right.INFER)
    if batch.under_way:
        raise Conflict("the batch job is under way: cancel it first")
    with transaction.atomic():
        audit_record(
            actor=actor,
            action="batch.remove",
            model_name=batch.model_name,
            summary=f"Removed a batch job for {batch.model_name}",
            after={"batch": str(batch.pk)},
        )
        _delete(batch)
    storage.remove_tree(batch.folder)


def batches_expire() -> int:
    """Remove batch jobs that ended long ago, and the oldest ones while all together have too many bytes; return their number.

    Folders without a batch job are removed, too.
    """
    now = timezone.now()
    rows = [row for row in BatchJob.objects.select_related("job").order_by("touched_at") if not row.under_way]
    sizes = {row.pk: _size(row.folder) for row in BatchJob.objects.all()}
    whole, removed = sum(sizes.values()), 0
    for row in rows:
        ended = row.finished_at or (row.job.finished_at if row.job is not None else None) or row.touched_at
        is_old = ended < now - timedelta(days=settings.BATCH_DAYS)
        if is_old or (whole > settings.BATCH_BYTES and (row.finished_at is not None or row.job is not None)):
            with transaction.atomic():
                _delete(row)
            storage.remove_tree(row.folder)
            whole -= sizes[row.pk]
            removed += 1
    _clear_folders((now - timedelta(hours=1)).timestamp())
    return removed


def _delete(batch: BatchJob) -> None:
    BatchPart.objects.filter(file__batch=batch).delete()
    BatchJob.objects.filter(pk=batch.pk).delete()


def _clear_folders(before: float) -> None:
    known = {str(pk) for pk in BatchJob.objects.values_list("pk", flat=True)}
    for folder in Path(settings.BATCH_DIR).iterdir():
        if _is_id(folder.name) and folder.name not in known and folder.stat().st_mtime < before:
            storage.remove_tree(folder)


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*") if path.is_file()) if folder.is_dir() else 0


# -- checks ------------------------------------------------------------------------------------------------------------
def _announced(files: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    rows = []
    for number, file in enumerate(files):
        name, size = Path(str(file["path"])).name[:500], file["size"]
        if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
            raise Invalid(f"file {number} is empty, or its size is not a whole number of bytes")
        rows.append((name, size))
    return rows


def _ensure_space(size: int) -> None:
    try:
        storage.ensure_space(Path(settings.BATCH_DIR), size, settings.DISK_RESERVE_BYTES)
    except NoSpace as error:
        raise StorageFull(f"the batch job does not fit: {error.message}") from None
