"""Makes models again from the bucket: their files, and the rows that their pointers keep."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.db import transaction
from django.utils.dateparse import parse_datetime

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM
from dashboard.models import Model, Release, Version
from dashboard.releases.bucket import (
    MODEL_FIELDS,
    RELEASE_FIELDS,
    VERSION_FIELDS,
    bucket_point,
    bucket_send_all,
    bucket_transaction,
    identity,
    managed_bucket,
    marked,
    refuse_other_owner,
)
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import Invalid
from dashboard.shared.repository_errors import repository_errors
from repository.core.errors import Conflict as Held
from repository.core.layout import CONFIG_FILE, check_version, relative_path
from repository.files import storage
from repository.files.drift import File, Fingerprint
from repository.files.staging import rename, staging_folder
from repository.files.storage import FileEntry
from repository.remote.managed_bucket import ManagedBucket, Pointer

logger = logging.getLogger(__name__)


@repository_errors()
def bucket_compare() -> list[str]:
    """Restore the models that this database or folder lacks, and give the others a pointer. Return the names of the restored.

    A call that was broken off is continued by the next one. A model whose files were changed by hand gets its pointer when it
    was adopted. Raises Conflict if the bucket is another installation's.
    """
    bucket = managed_bucket()
    if bucket is None:
        return []
    bucket.take(identity())
    refuse_other_owner(bucket)
    found, restored = bucket.models(), []
    for name in found:
        known = Model.objects.filter(name=name).exists()
        whole = known and managed_repository().has_model(name)
        if not whole and not marked(name) and (pointer := bucket.pointer(name)) is not None:
            logger.info("restoring %s from the bucket", name)
            _restore_files(bucket, name, pointer)
            if not known:
                _restore_rows(name, pointer)
            restored.append(name)
    for model in Model.objects.exclude(name__in=found):
        try:
            bucket_send_all(model)  # before the transaction, because it may take long
            with bucket_transaction():
                bucket_point(Model.locked(model.pk))
        except Held as error:
            logger.warning("%s is not in the bucket: %s", model.name, error.message)
    return restored


@repository_errors()
def bucket_accept() -> None:
    """Make this installation the owner of the bucket. The earlier owner's writes are refused from now on.

    Raises Invalid if SLIPWAY_REPOSITORY is not set.
    """
    bucket = managed_bucket()
    if bucket is None:
        raise Invalid("SLIPWAY_REPOSITORY names no bucket to accept")
    with transaction.atomic():
        bucket.take(identity(), over=True)
        audit_record(actor=SYSTEM, action="installation.bucket", summary="Accepted a bucket of the installation")


def _restore_files(bucket: ManagedBucket, name: str, pointer: Pointer) -> None:
    """Download what the folder lacks, each folder whole by one rename; archived versions first."""
    repository = managed_repository()
    for number, files in pointer.archived.items():
        place = repository.archived_version_dir(name, number)
        if not place.exists():
            with staging_folder(repository, repository.archive) as work:
                _download(bucket, files, work / "version")
                place.parent.mkdir(exist_ok=True)
                rename(work / "version", place)
    if not repository.has_model(name):
        with staging_folder(repository, repository.root) as work:
            _download(bucket, pointer.files, work / "model")
            for number in _numbers(pointer):
                (work / "model" / str(number)).mkdir(exist_ok=True)
            rename(work / "model", repository.model_dir(name))


def _numbers(pointer: Pointer) -> list[int]:
    versions = pointer.document.get("versions")
    return [check_version(number) for number in versions] if isinstance(versions, list) else []  # type: ignore[arg-type]


def _download(bucket: ManagedBucket, files: Mapping[str, FileEntry], folder: Path) -> None:
    folder.mkdir()
    size = sum(entry.size for entry in files.values())
    storage.ensure_space(folder, size, managed_repository().reserve)
    for name, entry in files.items():
        path = folder / relative_path(name)
        with storage.full_disk_is_no_space(size, folder):
            bucket.fetch(entry, path)
        if name != CONFIG_FILE:
            path.chmod(0o444)
    storage.sync_tree(folder)


def _restore_rows(name: str, pointer: Pointer) -> None:
    """Make the rows of a model, its versions and its newest release. The people who made them may not exist here."""
    record: Any = pointer.document["record"]
    folder = managed_repository().model_dir(name)
    files: dict[str, File] = {
        path: [entry.size, (folder / path).stat().st_mtime_ns, entry.sha256]
        for path, entry in pointer.files.items()
        if path != CONFIG_FILE
    }
    config = pointer.files[CONFIG_FILE].sha256 if CONFIG_FILE in pointer.files else ""
    fingerprint: Fingerprint = {"config": config, "files": files}
    with transaction.atomic():
        model = Model.objects.create(
            name=name,
            generation=1,
            fingerprint=fingerprint,
            **_chosen(record["model"], MODEL_FIELDS),
        )
        for row in record["versions"]:
            state = VersionState.PUBLISHED if row["number"] in _numbers(pointer) else VersionState.ARCHIVED
            Version.objects.create(model=model, **{**_chosen(row, VERSION_FIELDS), "state": state})
        if record["release"]:
            Release.objects.create(model=model, **_chosen(record["release"], RELEASE_FIELDS))
        audit_record(actor=SYSTEM, action="model.restore", model=model, summary=f"Restored {name} from the bucket")


def _chosen(row: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return the known fields of a row: another release may have kept more."""
    chosen = {field: row[field] for field in fields if field in row}
    return {field: parse_datetime(value) if field == "created_at" else value for field, value in chosen.items()}
