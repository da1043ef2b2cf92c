"""Imports one archive: it is published in the same steps as an upload, and its version says that it was imported.

An import is idempotent. It continues the upload of a killed import, in any state, and does not change existing versions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

from django.conf import settings
from django.db import transaction

from dashboard.access.authorisation import Actor
from dashboard.imports.sources import ARCHIVE, WAR, Source
from dashboard.imports.wanted_config import document_of, own_settings, speaks_for, wanted_settings
from dashboard.jobs.context import JobCancelled, JobContext, JobSuperseded
from dashboard.models import Model, Upload, UploadFile, Version
from dashboard.releases.selectors import newest_release
from dashboard.releases.storage import adopted_fingerprint
from dashboard.shared.choices import UploadState, VersionState
from dashboard.shared.exceptions import Conflict
from dashboard.uploads import states
from dashboard.uploads.inspection import inspection_run
from dashboard.uploads.publication import publication_run, upload_publish
from dashboard.uploads.services import upload_complete, upload_create, upload_receive_file
from repository.config.document import Document
from repository.core.layout import OVERLAY_FILE
from repository.files import storage
from repository.files.storage import FileEntry
from repository.torchserve.model_archive import MANIFEST
from repository.torchserve.set_up import UNNAMED_VERSION, SetUpModel, SetUpVersion

NOTE = "Imported from TorchServe"
FORMAT = "torchserve"


@dataclass(frozen=True, slots=True)
class ImportContext:
    """The source that an import reads, the person who asked for it, and its job."""

    source: Source
    actor: Actor
    job_context: JobContext


class _Part(JobContext):
    """The part of a job that works on one upload. A cancelled job first completes this part."""

    def __init__(self, whole: JobContext, upload: Upload) -> None:
        super().__init__(whole.job)
        self.params = {"upload": str(upload.pk)}
        self._whole = whole

    def progress(self, percent: float, step: str = "") -> None:
        """Write the step, and leave the progress to the whole job."""
        self._write(**({"step": step[:200]} if step else {}))

    def check_cancelled(self) -> None:
        try:
            super().check_cancelled()
        except JobCancelled:
            pass


def shown_version(label: str) -> str:
    """Return an archive's version, cut to the length that the database stores."""
    return label[:100]


def label_of(version: Version) -> str:
    """Return the name by which TorchServe's users know a version; "" if the version is not an archive."""
    if version.format != FORMAT:
        return ""
    archive: Any = version.details.get("archive", {})
    return str(archive.get("version") or UNNAMED_VERSION)


def find_version(model: Model | None, label: str) -> Version | None:
    """Return the version whose `label_of` is this label, in any state, or None if there is none."""
    rows = model.versions.all() if model is not None else []
    return next((row for row in rows if label_of(row) == shown_version(label)), None)


def refuse_foreign(name: str, model: Model | None) -> None:
    """Raise Conflict if the model of that name has versions that are not TorchServe archives."""
    if model is not None and any(row.format != FORMAT for row in model.versions.all()):
        refuse_twin(name)


def refuse_twin(name: str) -> NoReturn:
    raise Conflict(
        f"there is a model '{name}' already that is something else; rename or delete it, or give the archive another name"
    )


def refuse_another(version: SetUpVersion, found: Version, *, read: bool) -> None:
    """Raise Conflict if a version of that name was made from another archive. read: compare the content as well as the size."""
    kept = adopted_fingerprint(found.model)["files"].get(f"{found.number}/{ARCHIVE}")
    if kept is None or found.state != VersionState.PUBLISHED or not version.path.is_file():
        return
    if kept[0] != version.path.stat().st_size or (read and kept[2] != storage.hash_file(version.path).sha256):
        raise Conflict(
            f"'{found.model.name}' has a version {version.version} already, as number {found.number}, from another archive; "
            "give this one another version (torch-model-archiver --version)"
        )


def version_import(context: ImportContext, model: SetUpModel, version: SetUpVersion) -> Version:
    """Publish one archive, without loading it.

    Raises DashboardError if the import fails. A failed import leaves nothing behind.
    """
    overlay = own_settings(version, model, context.source.options, context.source.properties)
    upload = None if version.workflow else context.source.uploads.get(version.archive)
    own = upload is None
    if upload is not None:
        _prepare(upload, version, overlay)
    else:
        upload = _receive_files(context, version.model, _files(version.path), overlay)
    try:
        return _finish_upload(context, upload, partial(_proposed, context, model))
    except (JobCancelled, JobSuperseded):
        raise
    except Exception:
        if own:
            _dispose(upload)
        raise


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a new folder, which is removed after the block, or with the leftovers of uploads if the process is killed."""
    folder = Path(settings.STAGING_DIR) / str(uuid4())
    folder.mkdir()
    try:
        yield folder
    finally:
        storage.remove_tree(folder)


def text_import(context: ImportContext, model_name: str, path: str, text: str) -> Version:
    """Publish a model whose only file has this path and text, without loading it. It raises the errors of `version_import`."""
    with scratch() as folder:
        file = folder / "text"
        file.write_text(text)
        upload = _receive_files(context, model_name, {path: file})
    try:
        return _finish_upload(context, upload, lambda _: None)
    except (JobCancelled, JobSuperseded):
        raise
    except Exception:
        _dispose(upload)
        raise


def _proposed(context: ImportContext, model: SetUpModel, upload: Upload) -> Document | None:
    """Return the configuration of a new model, which depends on its inspected archive, or None if the model has one."""
    row = Model.objects.filter(name=upload.model_name).first()
    if row is not None and newest_release(row) is not None:
        return None
    source = context.source
    settings = wanted_settings(speaks_for(model), source.options, source.properties)
    return document_of(Document.read(str(upload.proposal.get("config", ""))), settings)


def _finish_upload(context: ImportContext, upload: Upload, configured: Callable[[Upload], Document | None]) -> Version:
    """Continue an upload from any state until it is a published version. configured: called with the inspected upload."""
    part, job = _Part(context.job_context, upload), context.job_context.job
    while True:
        upload.refresh_from_db()
        match upload.state:
            case UploadState.RECEIVING:
                upload_complete(upload=upload, actor=context.actor, within=job)
            case UploadState.RECEIVED | UploadState.INSPECTING:
                inspection_run(part)
            case UploadState.INSPECTED:
                document = configured(upload)
                upload_publish(upload=upload, actor=context.actor, document=document, note=NOTE, load=False, within=job)
            case UploadState.PUBLISHING:
                publication_run(part)
            case UploadState.PUBLISHED:
                return upload.versions.get()
            case _:
                raise Conflict(upload.error or "its upload was cancelled; import it again")


# -- an archive that was uploaded --------------------------------------------------------------------------------------
def _prepare(upload: Upload, version: SetUpVersion, overlay: str) -> None:
    """Give an upload the name of its model, and write its own settings into a file next to the archive."""
    if upload.state != UploadState.RECEIVING:
        return
    with transaction.atomic():
        upload.model_name = version.model
        upload.save(update_fields=["model_name"])
        UploadFile.objects.filter(upload=upload, number=0).update(path=ARCHIVE)
        if overlay:
            _add_text(upload, OVERLAY_FILE, overlay)


def _add_text(upload: Upload, path: str, text: str) -> None:
    number, content = upload.files.count(), text.encode()
    if upload.files.filter(path=path).exists():
        return
    storage.write_atomic(upload.folder / "files" / str(number), content, mode=0o600)
    size = len(content)
    UploadFile.objects.create(upload=upload, number=number, path=path, size=size, received=size)


# -- an archive in a folder --------------------------------------------------------------------------------------------
def _receive_files(context: ImportContext, model_name: str, files: Mapping[str, Path], overlay: str = "") -> Upload:
    """Return an upload that has received all of `files`: the upload that an earlier import began, or else a new one."""
    entries = {name: storage.hash_file(path) for name, path in files.items()}
    upload = _find_begun_upload(context, model_name, entries)
    if upload is None:
        rows = [{"path": name, "size": entry.size, "sha256": entry.sha256} for name, entry in entries.items()]
        upload = upload_create(actor=context.actor, model_name=model_name, files=rows)
    if upload.state == UploadState.RECEIVING:
        paths: Sequence[Path] = list(files.values())
        for file in upload.files.filter(number__lt=len(paths)):
            upload_receive_file(upload=upload, number=file.number, source=paths[file.number], actor=context.actor)
        if overlay:
            _add_text(upload, OVERLAY_FILE, overlay)
    return upload


def _files(path: Path) -> dict[str, Path]:
    """Return the files of an archive by their names in a version's folder."""
    if path.is_file():
        return {ARCHIVE: path}
    inner = [one for one in path.iterdir() if (one / MANIFEST).is_file()]
    root = path if (path / MANIFEST).is_file() else inner[0]
    return {name: root / name for name in storage.plain_files(root) if name != OVERLAY_FILE}


def _find_begun_upload(context: ImportContext, model_name: str, entries: dict[str, FileEntry]) -> Upload | None:
    """Return an upload of the same files that an earlier import began, or None if there is none."""
    rows = Upload.objects.filter(model_name=model_name, user=context.actor.user, state__in=states.UNFINISHED)
    wanted = {(name, entry.sha256) for name, entry in entries.items()}
    for upload in rows.filter(job__kind__in=("import",)) | rows.filter(job=None):
        if {(file.path, file.sha256) for file in upload.files.all() if file.path != OVERLAY_FILE} == wanted:
            return upload
    return None


def _dispose(upload: Upload) -> None:
    """Cancel an upload that does not become a version, and remove its files."""
    upload.refresh_from_db()
    if upload.state in states.DISPOSABLE:
        states.cancel(upload)
        storage.remove_tree(upload.folder)


def discard_workflows(uploads: Mapping[str, Upload]) -> None:
    """Remove the uploads of workflow archives after the import. A workflow archive does not become a version."""
    for name, upload in uploads.items():
        if name.lower().endswith(WAR):
            _dispose(upload)
