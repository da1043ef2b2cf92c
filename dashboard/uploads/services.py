"""Receives the files of uploads in chunks that can be resumed, with limits and checksums.

The bytes are stored in data/staging/<upload>/files/<number>: a name from a client is never used as a path. states.py describes
the states of the files and of the upload's row.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Count, F, Sum
from django.db.models.functions import Length
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.conversions.recipes.table import may_be_converted
from dashboard.jobs.services import job_create, job_request_cancel
from dashboard.models import Job, Upload, UploadFile
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    StorageFull,
    TooLarge,
    WrongState,
)
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads import chunks, states
from dashboard.uploads.selectors import name_is_taken
from dashboard.uploads.sources.base import MOST_FILES
from repository.core.errors import NoSpace
from repository.core.layout import check_name, relative_path
from repository.files import foreign_formats, storage
from repository.files.code_execution import code_in
from repository.files.staging import remove_leftovers


class Announced(NamedTuple):
    """The numbers of announced uploads, of their file names, and of the characters of these names; or limits on them."""

    uploads: int
    names: int
    characters: int


MAX_FILES = MOST_FILES
_ANNOUNCING = 0x51_1B_0A_01  # the number of the advisory lock in PostgreSQL under which uploads are announced
# The bounds on the unfinished uploads of one person, and of all people: uploads, names of files, and characters of
# these names. An import needs up to a thousand uploads of one archive each.
OF_A_PERSON = Announced(uploads=1_200, names=20_000, characters=4 << 20)
OF_ALL = Announced(uploads=6_000, names=100_000, characters=16 << 20)


@repository_errors()
def upload_create(
    *,
    actor: Actor,
    model_name: str,
    files: list[dict[str, Any]],
    new_model: bool = False,
    source: Mapping[str, str] | None = None,
) -> Upload:
    """Begin an upload. files: [{"path": relative path, "size": bytes, "sha256": hex, optional}], numbered from 0 in order.

    new_model: whether the upload should make a new model. Raises Conflict if a model has that name already.
    source: where the files are fetched from, in place of chunks; each of `files` then also has a "token" (sources.base).
    An upload is refused before a byte is sent if it is too large for its limit or for the disk. It is also refused if the actor
    may not upload such files, or if no file is a model by its name.
    """
    require(actor, Right.UPLOAD_DATA)
    check_name(model_name)
    if new_model and name_is_taken(model_name):
        raise Conflict(f"there is a model '{model_name}' already: upload a new version of it, or take another name")
    rows = _checked_files(files)
    _refuse_foreign([row.path for row in rows])
    refuse_code(files=dict.fromkeys(row.path for row in rows), allowed=actor.may(Right.UPLOAD_CODE))
    with transaction.atomic():
        _refuse_more(actor, rows, uploads=1)
        _ensure_space(sum(row.size for row in rows))
        upload = Upload.objects.create(
            user=actor.user,
            user_name=actor.name,
            model_name=model_name,
            allow_code=actor.may(Right.UPLOAD_CODE),
            source=dict(source or {}),
            **states.initial(),
        )
        for row in rows:
            row.upload = upload
        UploadFile.objects.bulk_create(rows)
        (upload.folder / "files").mkdir(parents=True, mode=0o700)
    return upload


@repository_errors()
def upload_add_files(*, upload: Upload, actor: Actor, files: list[dict[str, Any]]) -> Upload:
    """Announce files that were missing from an upload that failed its inspection; it is then completed again."""
    upload_require_own(upload=upload, actor=actor)
    states.refuse_unless(upload, "extend")
    with transaction.atomic():
        states.extend(upload)
        present = list(upload.files.all())
        rows = _checked_files(files, present)
        refuse_code(files=dict.fromkeys(row.path for row in rows), allowed=upload.allow_code)
        _refuse_more(actor, rows, uploads=0)
        _ensure_space(sum(row.size for row in rows))
        for row in rows:
            row.upload = upload
        UploadFile.objects.bulk_create(rows)
    return Upload.objects.get(pk=upload.pk)


@repository_errors()
def upload_receive_chunk(
    *, upload: Upload, number: int, offset: int, chunk: bytes, actor: Actor, sha256: str = ""
) -> UploadFile:
    """Append a chunk (at most 8 MiB) to file `number`; return the file.

    Raises WrongOffset, with the right offset, if `offset` is wrong.
    """
    upload_require_own(upload=upload, actor=actor)
    file = upload_file(upload=upload, number=number)
    chunks.check(chunk, sha256)
    if upload.is_fetched:
        raise Conflict("the files of this upload are fetched from its source; send none")
    with storage.locked(upload.folder / f"{number}.lock", "this file"):
        file.refresh_from_db()
        states.receive(upload)
        chunks.append(_path(file), chunk, offset, received=file.received, size=file.size)
        file.received = offset + len(chunk)
        file.save(update_fields=["received"])
    return file


def upload_receive_file(*, upload: Upload, number: int, source: Path, actor: Actor) -> UploadFile:
    """Copy a whole local file in place of chunks; the source may change afterwards."""
    upload_require_own(upload=upload, actor=actor)
    file = upload_file(upload=upload, number=number)
    with storage.locked(upload.folder / f"{number}.lock", "this file"):
        states.receive(upload)
        storage.ensure_space(upload.folder, file.size, settings.DISK_RESERVE_BYTES)
        with storage.full_disk_is_no_space(file.size, upload.folder):
            shutil.copyfile(source, _path(file))
        if _path(file).stat().st_size != file.size:
            raise Conflict(f"file '{file.path}' was changed while it was copied; try again")
        file.received = file.size
        file.save(update_fields=["received"])
    return file


def upload_complete(*, upload: Upload, actor: Actor, within: Job | None = None) -> Job:
    """Queue the inspection of a complete upload. within: a job that inspects the upload as a part of its own work."""
    upload_require_own(upload=upload, actor=actor)
    missing = upload.files.filter(received__lt=F("size")).first()
    if missing is not None:
        raise Conflict(f"file '{missing.path}' has {missing.received} of {missing.size} bytes; send the rest first")
    with transaction.atomic():
        title = f"Inspect the upload for {upload.model_name}"
        job = within or job_create(kind="inspect", params={"upload": str(upload.pk)}, actor=actor, title=title)
        states.complete(upload, job=job)
    upload.refresh_from_db()
    return job


def upload_cancel(*, upload: Upload, actor: Actor) -> None:
    """Cancel an upload that is not published yet, and remove its bytes."""
    upload_require_own(upload=upload, actor=actor)
    with transaction.atomic():
        try:
            states.cancel(upload)
        except WrongState as error:
            upload.refresh_from_db()
            hint = f"; cancel job {upload.job_id} first" if upload.state == UploadState.PUBLISHING else ""
            raise Conflict(f"{error.message}{hint}") from None
        if upload.job_id is not None:
            job_request_cancel(job_id=upload.job_id)
        audit_record(
            actor=actor,
            action="upload.cancel",
            model_name=upload.model_name,
            summary=f"Cancelled an upload for {upload.model_name}",
        )
        upload.files.all().delete()
    upload.refresh_from_db()
    storage.remove_tree(upload.folder)


def uploads_expire() -> int:
    """Expire uploads that nobody continued in time, and return their number. Remove folders that no upload needs."""
    now = timezone.now()
    expired = 0
    for upload in Upload.objects.filter(state__in=states.DISPOSABLE, expires_at__lt=now):
        with contextlib.suppress(WrongState):  # a person has just continued it
            states.expire(upload, now=now)
            expired += 1
    UploadFile.objects.filter(upload__state__in=(UploadState.CANCELLED, UploadState.EXPIRED)).delete()
    _clear_staging()
    remove_leftovers(managed_repository())
    return expired


def upload_require_own(*, upload: Upload, actor: Actor) -> None:
    """Raise Forbidden unless the actor began the upload, or administers."""
    require(actor, Right.UPLOAD_DATA)
    if actor.user is not None and upload.user_id != actor.user.pk and not actor.may(Right.ADMINISTER):
        raise Forbidden("this upload belongs to somebody else")


def upload_file(*, upload: Upload, number: int) -> UploadFile:
    try:
        return upload.files.get(number=number)
    except UploadFile.DoesNotExist:
        upload.refresh_from_db(fields=["state"])
        if upload.state in (UploadState.CANCELLED, UploadState.EXPIRED):  # the files are removed with the upload
            states.refuse_unless(upload, "receive")
        raise NotFound(f"the upload has no file {number}") from None


def _refuse_foreign(paths: list[str]) -> None:
    """Raise Invalid if no file can be a model or be converted into one, and one file is known to be something else."""
    found = foreign_formats.by_names(paths)
    if found is not None and not may_be_converted(paths):
        path, kind = found
        raise Invalid(f"'{PurePosixPath(path).name}' cannot be served, because {kind.sentence}")


def refuse_code(*, files: Mapping[str, Path | None], allowed: bool) -> None:
    """Raise Forbidden for files that can be code, by name or content, unless code is allowed."""
    if allowed:
        return
    for name, path in files.items():
        why = code_in(name, path)
        if why:
            raise Forbidden(
                f"'{PurePosixPath(name).name}' can run code on the server, as {why}; "
                f"this needs the permission to {Right.UPLOAD_CODE.value}"
            )


def _checked_files(files: list[dict[str, Any]], present: Sequence[UploadFile] = ()) -> list[UploadFile]:
    """Return a row for each of the files. present: the files that the upload already has."""
    if not isinstance(files, list) or not 1 <= len(files) <= MAX_FILES - len(present):
        raise Invalid(f"expected 1 to {MAX_FILES} files")
    first = max((row.number for row in present), default=-1) + 1
    rows = [_checked_file(number, file) for number, file in enumerate(files, first)]
    paths = sorted(f"{row.path}/" for row in (*present, *rows))  # the files of a folder are sorted after its name
    if any(path.startswith(before) for before, path in pairwise(paths)):
        raise Invalid("two files of the upload have the same name")
    total = sum(row.size for row in (*present, *rows))
    if total > settings.MAX_UPLOAD_BYTES:
        raise TooLarge(f"an upload has at most {settings.MAX_UPLOAD_BYTES} bytes, this one would have {total}")
    return rows


def _checked_file(number: int, file: Any) -> UploadFile:
    if not isinstance(file, dict) or not isinstance(file.get("path"), str):
        raise Invalid("expected each file as an object with path and size")
    size, sha256 = file.get("size"), file.get("sha256") or ""
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Invalid(f"expected the size of file {number} as a whole number of bytes")
    if sha256 and (not isinstance(sha256, str) or len(sha256) != 64 or set(sha256.lower()) - set("0123456789abcdef")):
        raise Invalid(f"expected the SHA-256 of file {number} as 64 hexadecimal digits")
    path = str(relative_path(file["path"]))
    if len(path) > 500:
        raise Invalid(f"the path of file {number} is longer than 500 characters")
    return UploadFile(number=number, path=path, size=size, sha256=sha256.lower(), token=file.get("token", ""))


def _refuse_more(actor: Actor, rows: Sequence[UploadFile], *, uploads: int) -> None:
    """Raise Conflict if a person, or all people together, would have announced more than their bounds.

    One transaction at a time announces: in SQLite it begins with the write lock, and in PostgreSQL it takes an advisory lock.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_ANNOUNCING])
    new = Announced(uploads, len(rows), sum(len(row.path) for row in rows))
    open_ones = Upload.objects.filter(state__in=states.KEPT)
    for who, found, most in (
        ("your uploads", open_ones.filter(user=actor.user), OF_A_PERSON),
        ("the uploads of everybody", open_ones, OF_ALL),
    ):
        files = UploadFile.objects.filter(upload__in=found)
        sums = files.aggregate(names=Count("pk"), characters=Sum(Length("path")))
        there = Announced(found.count(), sums["names"], sums["characters"] or 0)
        for what, have, more, limit in zip(Announced._fields, there, new, most, strict=True):
            if have + more > limit:
                words = what if what == "uploads" else "names of files" if what == "names" else "characters of names"
                raise Conflict(
                    f"{who} would have {have + more} {words} that are neither published nor ended, and may have {limit}: "
                    "publish or cancel some of them first"
                )


def _ensure_space(size: int) -> None:
    """Raise NoSpace unless the disk has room for this upload and for the missing bytes of the other uploads."""
    open_files = UploadFile.objects.filter(upload__state=UploadState.RECEIVING)
    outstanding = open_files.aggregate(bytes=Sum(F("size") - F("received")))["bytes"] or 0
    try:
        storage.ensure_space(Path(settings.STAGING_DIR), size + outstanding, settings.DISK_RESERVE_BYTES)
    except NoSpace as error:
        raise StorageFull(f"the upload does not fit: {error.message}") from None


def _path(file: UploadFile) -> Path:
    return file.upload.folder / "files" / str(file.number)


def _clear_staging() -> None:
    for folder in unneeded_folders(before=(timezone.now() - timedelta(hours=1)).timestamp()):
        storage.remove_tree(folder)


def unneeded_folders(*, before: float) -> Iterator[Path]:
    """Yield the folders of uploads that have ended, or whose row was never written. before: they did not change since then."""
    needed = set(Upload.objects.filter(state__in=states.KEPT).values_list("pk", flat=True))
    for folder, key in _upload_folders():
        if key not in needed and folder.stat().st_mtime < before:
            yield folder


def _upload_folders() -> Iterator[tuple[Path, UUID]]:
    for folder in Path(settings.STAGING_DIR).iterdir():
        with contextlib.suppress(ValueError):
            yield folder, UUID(folder.name)
