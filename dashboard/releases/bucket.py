"""Keeps the managed repository in a bucket too, if SLIPWAY_REPOSITORY names one.

The folder is a working copy, and the bucket is enough to make it and the rows of its models again (`restoration`). A model's
pointer is made of its rows, in the transaction that changes them and before it is committed, so that a change which the bucket
does not take is not made. A process that dies between the pointer and the commit leaves a mark, a file in the staging folder,
for which `bucket_reconcile` makes the pointer of the rows again.

The lock on the model's row keeps two writers apart, but a database may end the session of a writer that goes on. Its late
pointer is refused by its condition. Where the store has no conditional writes, the mark is a lease: a writer gives up before
its lease ends, and the next one is refused until then.
"""

import hashlib
import json
import secrets
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from glob import escape
from os import getpid
from pathlib import Path

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, transaction
from django.forms.models import model_to_dict

from dashboard.models import Installation, Model
from dashboard.releases.storage import adopted_fingerprint, managed_repository
from dashboard.shared.choices import VersionState
from dashboard.shared.repository_errors import repository_errors
from repository.core.errors import Conflict, RepositoryError, Unreachable
from repository.core.json_types import Json, JsonObject
from repository.core.layout import CONFIG_FILE, parse_version
from repository.files.drift import Fingerprint, fingerprint
from repository.files.progress import Progress
from repository.files.storage import FileEntry, Manifest, hash_tree
from repository.remote.address import parse
from repository.remote.managed_bucket import ManagedBucket, Pointer

# The fields of each row that the pointer keeps.
MODEL_FIELDS = ("description", "tags", "desired_state", "last_number", "retention", "budget")
VERSION_FIELDS = (
    *("number", "format", "filename", "size_bytes", "sha256", "signature", "details", "config", "note"),
    *("state", "created_by_name", "created_at"),
)
RELEASE_FIELDS = (
    "number",
    "text",
    "sha256",
    "versions",
    "aliases",
    "traffic",
    "kind",
    "summary",
    "created_by_name",
    "created_at",
)
LEASE_S = 10.0  # a younger mark is that of a transaction under way
WRITE_S = 5.0  # how long a transaction, which holds locks, waits for the bucket
_WRITING = ".writing-"  # in the name of a mark whose pointer may have been sent
_HANDOVER_S = 1.0  # a writer removes its mark after others can have its lock
_NO_MODEL_S = 3600.0  # a transaction that makes a model may send its files before the row is visible


def managed_bucket() -> ManagedBucket | None:
    """Return the bucket of SLIPWAY_REPOSITORY, or None if the repository is only a folder."""
    address = settings.REPOSITORY_BUCKET
    # fsspec's threads do not outlive a fork, so each process has an object of its own.
    return _bucket(address, Path(settings.STAGING_DIR), getpid()) if address else None


@lru_cache(maxsize=1)
def _bucket(address: str, staging: Path, _process: int) -> ManagedBucket:
    return ManagedBucket(parse(address), staging / ".locks" / ".bucket")


def bucket_send(folder: Path, manifest: Manifest, progress: Progress) -> None:
    """Do the long part of a publication in the bucket: send the files of a version that it lacks."""
    if (bucket := managed_bucket()) is not None and manifest.files:
        progress.plan(manifest.size)
        progress.step("Sending to the bucket")
        bucket.send({entry: folder / name for name, entry in manifest.files.items()}, progress)


def bucket_send_adopted(model_name: str, recorded: Fingerprint | None = None) -> None:
    """Send the files of a model's folder that somebody changed by hand, before they are adopted. recorded: the known files."""
    if (bucket := managed_bucket()) is not None:
        folder = managed_repository().model_dir(model_name)
        files = _entries(fingerprint(folder, recorded))
        bucket.send({entry: folder / name for name, entry in files.items()})


def bucket_send_all(model: Model) -> None:
    """Send all contents of a model that has no pointer yet."""
    if (bucket := managed_bucket()) is not None:
        bucket.send(_contents(model, None)[1])


def bucket_ready() -> None:
    """Ask the bucket before a transaction that will write a pointer: if it hangs, nobody holds a lock while it is waited for.

    Raises Unreachable if the bucket does not answer, Conflict if it belongs to another installation.
    """
    if (bucket := managed_bucket()) is not None and not connection.in_atomic_block:
        with bucket.within(WRITE_S):
            refuse_other_owner(bucket)
            _ = bucket.conditional


@contextmanager
def bucket_transaction() -> Iterator[None]:
    """Run a transaction that writes a pointer, if the bucket is ready."""
    bucket_ready()
    with transaction.atomic():
        yield


def bucket_point(model: Model, *, again: bool = False) -> None:
    """Write a model's pointer by its rows, in the caller's transaction, which holds a lock on `model` and has changed the rows.

    again: write it even if it is right, so that a late write of the pointer before is refused.
    Raises Unreachable if the bucket does not answer within WRITE_S, Conflict if it was changed by somebody else: the caller's
    transaction must end without a change.
    """
    if (bucket := managed_bucket()) is not None:
        with _writing(bucket, model.name):
            _point(bucket, model, again=again)


@contextmanager
def _writing(bucket: ManagedBucket, name: str) -> Iterator[None]:
    """Change a model's pointer in the block, with a mark until the caller's transaction is committed."""
    mark, begun = _mark(name, _writer()), time.monotonic()
    with bucket.within(WRITE_S):
        if not bucket.conditional:
            _refuse_other_writer(name, mark)
        yield
    if not bucket.conditional and time.monotonic() - begun > LEASE_S:
        mark.touch()  # somebody may have repaired the pointer before this late one came
        raise Unreachable("this process was stopped while it wrote to the bucket, so the change is not made")
    transaction.on_commit(partial(mark.unlink, missing_ok=True))


def _refuse_other_writer(name: str, mark: Path) -> None:
    """Raise Conflict if another writer's lease on a model has not ended."""
    deadline = time.monotonic() + _HANDOVER_S
    since = mark.stat().st_mtime - LEASE_S  # by the clock of the file system that has all marks
    while any(_is_lease(other, since) for other in mark.parent.glob(f"{escape(name)}{_WRITING}*")):
        if time.monotonic() > deadline:
            mark.unlink()  # nothing was sent, so this is no lease
            raise Conflict(
                f"another process may still be changing '{name}' in the bucket; try again in {LEASE_S:.0f} s"
            )
        time.sleep(0.05)


def _is_lease(mark: Path, since: float) -> bool:
    """Return whether a mark is the lease of another thread or process, and has not ended."""
    try:
        return _writer() not in mark.name and mark.stat().st_mtime > since
    except FileNotFoundError:
        return False


def _point(bucket: ManagedBucket, model: Model, *, again: bool) -> None:
    before = bucket.pointer(model.name)
    refuse_other_owner(bucket)
    # The rows are read after the pointer. That the database answers proves that this process still has the lock on the model,
    # so that nobody else's pointer can be overwritten.
    document, objects = _contents(Model.objects.get(pk=model.pk), before)
    if again or before is None or {**before.document, **document} != before.document:
        bucket.send(objects, relying=True)
        bucket.point(model.name, document | {"writing": uuid.uuid4().hex}, before)


def bucket_point_soon(model: Model) -> None:
    """Let `watch` write a model's pointer, for a change that must not wait for the bucket, such as a load."""
    if managed_bucket() is not None:
        transaction.on_commit(partial(_mark, model.name))


def bucket_remove(name: str) -> None:
    """Remove a model's pointer, in the caller's transaction, which deletes the model."""
    if (bucket := managed_bucket()) is not None:
        with _writing(bucket, name):
            refuse_other_owner(bucket)
            bucket.remove(name)


@repository_errors()
def bucket_reconcile() -> list[str]:
    """Make the pointers that differ from the rows again, after a transaction that did not end; return the models' names.

    Raises the error of one model after it has tried the others.
    """
    done: list[str] = []
    failed: RepositoryError | None = None
    bucket = managed_bucket()
    if bucket is None:
        return done
    for name, marks in _marks().items():
        try:
            if _reconciled(bucket, name, _age_s(marks), again=any(_WRITING in mark.name for mark in marks)):
                for mark in marks:
                    mark.unlink(missing_ok=True)
                done.append(name)
        except RepositoryError as error:
            failed = error
    if failed is not None:
        raise failed
    return done


def _reconciled(bucket: ManagedBucket, name: str, age_s: float, *, again: bool) -> bool:
    """Make one pointer again. Return False if a transaction about the model may be under way. again: as in `bucket_point`."""
    if age_s <= LEASE_S:
        return False
    if (model := Model.objects.filter(name=name).first()) is not None:
        bucket.send(_contents(model, bucket.pointer(name))[1])  # before the transaction, because it may take long
    with bucket_transaction():
        model = Model.objects.select_for_update().filter(name=name).first()
        if model is not None:
            bucket_point(model, again=again)
        elif age_s > _NO_MODEL_S:
            bucket_remove(name)
        return model is not None or age_s > _NO_MODEL_S


@repository_errors()
def bucket_collect() -> int:
    """Remove the objects that nothing names any more; return their number."""
    bucket = managed_bucket()
    if bucket is None:
        return 0
    models = list(Model.objects.exclude(releases=None).distinct())
    refuse_other_owner(bucket)
    keep = {entry.sha256 for model in models for entry in _entries(adopted_fingerprint(model)).values()}
    return bucket.collect(models=[model.name for model in models], keep=keep)


def marked(name: str) -> bool:
    """Return whether a transaction about a model has not ended, or was broken off."""
    return name in _marks()


def _contents(model: Model, before: Pointer | None) -> tuple[JsonObject, dict[FileEntry, Path | bytes]]:
    """Return a model's pointer, and the sources of the contents that it names and the pointer before does not."""
    repository = managed_repository()
    folder, newest = repository.model_dir(model.name), model.releases.first()
    files = _entries(adopted_fingerprint(model))
    objects: dict[FileEntry, Path | bytes] = {entry: folder / name for name, entry in files.items()}
    if newest is not None and newest.text:
        text = newest.text.encode()
        files[CONFIG_FILE] = FileEntry(len(text), hashlib.sha256(text).hexdigest())
        objects[files[CONFIG_FILE]] = text
    archived: dict[str, dict[str, FileEntry]] = {}
    present = {number for name in files if (number := parse_version(name.partition("/")[0]))}
    away = model.versions.exclude(state=VersionState.PUBLISHED).exclude(number__in=present)
    for number in away.values_list("number", flat=True):
        place = repository.archived_version_dir(model.name, number)
        known = _known(before, number)
        if known or place.is_dir():
            archived[str(number)] = known or hash_tree(place).files
            objects |= {entry: place / name for name, entry in archived[str(number)].items()}
    record = {
        "model": model_to_dict(model, MODEL_FIELDS),
        "versions": list(model.versions.order_by("number").values(*VERSION_FIELDS)),
        "release": model.releases.values(*RELEASE_FIELDS).first(),
    }
    plain: JsonObject = json.loads(json.dumps(record, cls=DjangoJSONEncoder))
    groups: JsonObject = {number: _as_json(entries) for number, entries in archived.items()}
    versions: list[Json] = [
        *sorted(model.published_numbers())
    ]  # one without files, such as an ensemble's, is there too
    named = before.digests if before else set()
    new = {entry: source for entry, source in objects.items() if entry.sha256 not in named}
    return {"files": _as_json(files), "versions": versions, "archived": groups, "record": plain}, new


def _known(before: Pointer | None, number: int) -> dict[str, FileEntry]:
    """Return the files of an archived version by the pointer from which it is archived."""
    if before is None:
        return {}
    own = f"{number}/"
    files = {name.removeprefix(own): entry for name, entry in before.files.items() if name.startswith(own)}
    return before.archived.get(number) or files


def _entries(recorded: Fingerprint) -> dict[str, FileEntry]:
    return {name: FileEntry(int(size), str(sha256)) for name, (size, _, sha256) in recorded["files"].items()}


def _as_json(files: dict[str, FileEntry]) -> JsonObject:
    return {name: {"sha256": entry.sha256, "size": entry.size} for name, entry in files.items()}


def refuse_other_owner(bucket: ManagedBucket) -> None:
    """Raise Conflict if another installation has taken the bucket."""
    if bucket.owner() != identity():
        raise Conflict(
            "the bucket of SLIPWAY_REPOSITORY belongs to another database: set SLIPWAY_REPOSITORY to an empty prefix; if this "
            "database takes the place of that one, run manage.py accept bucket"
        )


def identity() -> str:
    """Return the installation's identity, which is made when it is first needed."""
    return Installation.objects.get_or_create(pk=1, defaults={"identity": secrets.token_hex(16)})[0].identity


@lru_cache(maxsize=1)
def _process(_pid: int) -> str:
    return uuid.uuid4().hex


def _writer() -> str:
    """Return the beginning of the marks of this thread's writings."""
    return f"{_WRITING}{_process(getpid())}-{threading.get_ident()}-"


def _mark(name: str, writer: str = "") -> Path:
    """Write down, outside the transaction, that a model's pointer may come to differ from its rows."""
    path = Path(settings.STAGING_DIR) / ".pointers" / f"{name}{writer or '.'}{uuid.uuid4().hex}"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    return path


def _marks() -> dict[str, list[Path]]:
    """Return the marks of each model."""
    found: dict[str, list[Path]] = {}
    for mark in sorted((Path(settings.STAGING_DIR) / ".pointers").glob("*")):
        found.setdefault(mark.name.rpartition(".")[0], []).append(mark)
    return found


def _age_s(marks: list[Path]) -> float:
    """Return the age of the youngest mark; 0 if a transaction has just ended and removed one."""
    try:
        return time.time() - max(mark.stat().st_mtime for mark in marks)
    except FileNotFoundError:
        return 0.0
