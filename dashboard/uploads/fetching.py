"""Fetches the files of an upload from a source (uploads.sources) in place of a browser, in a job.

The files are listed when the upload is made, and are refused before a byte is copied by the rules for a browser's files. The
job copies them into the same upload, and then completes it as a browser does. Bytes are flushed to the disk before the row says
that they have arrived. So a SIGKILL loses at most CHECKPOINT_BYTES, and the next attempt goes on behind the recorded bytes, if
the source can tell that the file is the same. If it cannot, a file that was broken off begins again.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.jobs.context import JobCancelled, JobContext
from dashboard.jobs.services import UNFINISHED, job_create
from dashboard.models import Job, Upload, UploadFile
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import Conflict, Forbidden, Unavailable, WrongState
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads import chunks, states
from dashboard.uploads.services import upload_complete, upload_create, upload_require_own
from dashboard.uploads.sources.base import Place, Source, SourceChanged, SourceFile
from dashboard.uploads.sources.table import SOURCES, source_of
from repository.core.layout import check_name
from repository.files import storage

KIND = "fetch"
PLACE_FILE = (
    "place.json"  # in the upload's folder, which is removed with the upload: the place, with a signature if it has one
)
CHECKPOINT_BYTES = 32 << 20  # after so many bytes, or CHECKPOINT_S, the copied bytes are recorded
CHECKPOINT_S = 1.0
MOST_TRIES = 5  # tries in a row that bring no byte
FIRST_WAIT_S = 1.0  # before a further try; it doubles with each one
LOCK_S = 45.0  # longer than an earlier worker may wait for its source


@repository_errors()
def upload_fetch(*, actor: Actor, model_name: str, source: Mapping[str, str], new_model: bool = False) -> Upload:
    """Begin an upload whose files a job fetches.

    model_name: "" takes a name from the place. source: {"kind": a name in SOURCES, and the source's fields}.
    Raises Invalid, Forbidden, NotFound or Unavailable if the source cannot be read; and what `upload_create` raises.
    """
    require(actor, Right.UPLOAD_DATA)
    found = source_of(source.get("kind", ""))
    place = found.located(source)
    model_name = check_name(model_name or found.proposed_name(place))
    files = [row._asdict() | {"path": row.name} for row in found.files(place)]
    with transaction.atomic():
        upload = upload_create(
            actor=actor,
            model_name=model_name,
            files=files,
            new_model=new_model,
            source={"kind": found.name, **found.public(place)},
        )
        storage.write_atomic(upload.folder / PLACE_FILE, json.dumps(place).encode(), mode=0o600)
        _begin(upload, actor)
        audit_record(
            actor=actor,
            action="upload.fetch",
            model_name=model_name,
            summary=f"Began to fetch an upload for {model_name} from {found.label}: {found.title(place)}",
            after={"upload": str(upload.pk)},
        )
    return upload


def upload_fetch_again(*, upload: Upload, actor: Actor) -> Job:
    """Continue to fetch the files of an upload whose job failed or was cancelled."""
    upload_require_own(upload=upload, actor=actor)
    states.refuse_unless(upload, "fetch")
    if not upload.source:
        raise Conflict("the files of this upload come from a browser; send the rest of them")
    if upload.job is not None and upload.job.state in UNFINISHED:
        raise Conflict("the files of this upload are being fetched already")
    with transaction.atomic():
        return _begin(upload, actor)


def source_title(upload: Upload) -> str:
    """Return the source of an upload as pages and answers show it, without secrets; "" for the browser."""
    place = dict(upload.source)
    found = SOURCES.get(place.pop("kind", ""))
    return f"{found.label}: {found.title(place)}" if found is not None else ""


def _begin(upload: Upload, actor: Actor) -> Job:
    title = f"Fetch the files of {upload.model_name}"
    job = job_create(kind=KIND, params={"upload": str(upload.pk)}, actor=actor, title=title)
    states.fetch(upload, job=job)
    upload.refresh_from_db()
    return job


def _source(upload: Upload) -> tuple[Source, Place]:
    """Return the source of an upload, and the whole place."""
    try:
        return source_of(upload.source["kind"]), json.loads((upload.folder / PLACE_FILE).read_bytes())
    except FileNotFoundError:
        raise Conflict("the place of the files is not known any more; cancel this upload and begin a new one") from None


# -- the job -----------------------------------------------------------------------------------------------------------
def fetch_run(context: JobContext) -> dict[str, object]:
    """Run the job `fetch`, whose params are {"upload": id}. The upload is then inspected.

    If the job fails or is cancelled, the upload keeps its bytes and can be continued. If a file has changed, the upload fails.
    """
    upload = Upload.objects.get(pk=context.params["upload"])
    if upload.job_id == context.job.pk:  # else an earlier attempt has completed the upload
        if upload.state != UploadState.RECEIVING:
            raise JobCancelled
        actor = Actor(user=context.job.created_by)
        _refuse_without_right(upload, actor)
        try:
            _Fetch(upload, context).run()
            upload_complete(upload=upload, actor=actor)
        except SourceChanged as error:
            with contextlib.suppress(WrongState):
                states.lose(upload, reason=error.message)
            raise
        except WrongState:  # the upload was cancelled, or has expired
            raise JobCancelled from None
    return {"files": upload.files.count(), "bytes": sum(file.size for file in upload.files.all())}


def fetch_abandoned(job: Job) -> None:
    """Keep the bytes that have arrived, so that the upload can be continued."""


def fetch_attempts_in_vain(job: Job) -> int:
    """Return how many attempts in a row have ended with the death of a worker, without a byte that was recorded."""
    last = job.result.get("attempts_with_bytes", 0)
    return job.attempt + 1 - (last if isinstance(last, int) else 0)


def _refuse_without_right(upload: Upload, actor: Actor) -> None:
    """Raise Forbidden if the person who began the fetch has lost a right since."""
    if actor.user is None:
        raise Forbidden("the account that began this upload is gone")
    upload_require_own(upload=upload, actor=actor)
    if upload.allow_code:
        require(actor, Right.UPLOAD_CODE)


class _Fetch:
    """One attempt to copy the files of an upload from its source."""

    def __init__(self, upload: Upload, context: JobContext) -> None:
        self._upload, self._context = upload, context
        with repository_errors():
            self._source, self._place = _source(upload)
        self._files = list(upload.files.all())
        self._whole = sum(file.size for file in self._files)
        self._step = ""
        self._next = 0.0

    def run(self) -> None:
        self._context.log(f"Fetching from {self._source.label}: {self._source.title(self._place)}")
        for file in self._files:
            with storage.locked(self._upload.folder / f"{file.number}.lock", "this file", wait_s=LOCK_S):
                try:
                    file.refresh_from_db()
                except UploadFile.DoesNotExist:  # the upload was cancelled
                    raise JobCancelled from None
                if file.received < file.size or not file.sha256:
                    with repository_errors():
                        self._fetch(file)

    def _fetch(self, file: UploadFile) -> None:
        self._step = f"Fetching {file.path}"
        digest = self._digest_of_received(file)
        tries = 0
        while file.received < file.size:
            before = file.received
            if not file.token or file.received == 0:
                file.received, digest = 0, hashlib.sha256()
            try:
                self._copy(file, digest)
            except Unavailable as error:
                tries = 1 if file.received > before else tries + 1
                if tries > MOST_TRIES:
                    raise
                self._context.log(f"{file.path}: {error.message}; try {tries + 1}")
                self._wait(FIRST_WAIT_S * 2 ** (tries - 1))
        self._finish(file, digest.hexdigest())

    def _digest_of_received(self, file: UploadFile) -> "hashlib._Hash":
        """Return the digest of the bytes that have arrived; of none if the disk lacks some of them."""
        digest, left = hashlib.sha256(), file.received
        with contextlib.suppress(FileNotFoundError), self._path(file).open("rb") as content:
            while left and (piece := content.read(min(left, 4 << 20))):
                digest.update(piece)
                left -= len(piece)
                self._context.check_cancelled()
        if left:
            file.received, digest = 0, hashlib.sha256()
        return digest

    def _copy(self, file: UploadFile, digest: "hashlib._Hash") -> None:
        """Append the rest of a file until its end, or until the source breaks off (Unavailable)."""
        row = SourceFile(file.path, file.size, file.token)
        recorded = file.received
        try:
            with contextlib.closing(self._source.read(self._place, row, file.received)) as found:
                for piece in found:
                    if file.received + len(piece) > file.size:
                        raise SourceChanged(file.path, "became longer")
                    self._append(file, piece)
                    digest.update(piece)
                    file.received += len(piece)
                    if file.received - recorded >= CHECKPOINT_BYTES or time.monotonic() >= self._next:
                        self._record(file)
                        recorded = file.received
        except Unavailable:
            self._record(file)
            raise
        if file.received < file.size:
            self._record(file)
            raise Unavailable(f"'{file.path}' broke off after {file.received} of {file.size} bytes")

    def _append(self, file: UploadFile, piece: bytes) -> None:
        try:
            chunks.append(self._path(file), piece, file.received, received=file.received, size=file.size)
        except FileNotFoundError:  # the upload was cancelled, and its folder was removed
            self._context.check_cancelled()
            raise JobCancelled from None

    def _record(self, file: UploadFile, **more: str) -> None:
        """Record the bytes that have arrived, after they are on the disk. Raises JobCancelled, JobSuperseded or WrongState."""
        with contextlib.suppress(FileNotFoundError):
            storage.sync(self._path(file))
        self._context.refuse_superseded()
        UploadFile.objects.filter(pk=file.pk).update(received=file.received, **more)
        states.receive(self._upload)
        self._context.report({"attempts_with_bytes": self._context.job.attempt + 1})
        done = sum(one.received for one in self._files)
        self._context.progress(99 * done / max(self._whole, 1), self._step)
        self._next = time.monotonic() + CHECKPOINT_S

    def _finish(self, file: UploadFile, sha256: str) -> None:
        if file.sha256 and file.sha256 != sha256:
            raise SourceChanged(file.path, "did not have the SHA-256 that its source names")
        self._record(file, sha256=sha256)
        self._context.log(f"{file.path}: {file.size} bytes, SHA-256 {sha256}")

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))
            self._context.check_cancelled()

    def _path(self, file: UploadFile) -> Path:
        return self._upload.folder / "files" / str(file.number)
