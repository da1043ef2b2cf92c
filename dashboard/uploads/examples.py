"""Publishes the bundled example models as uploads."""

import time
from pathlib import Path

from django.conf import settings

from dashboard.access.authorisation import SYSTEM
from dashboard.catalog.services import model_describe
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import UNFINISHED
from dashboard.models import AuditEntry, Job, Model, Upload, Version
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import Conflict
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.services import upload_complete, upload_create, upload_receive_chunk
from repository.config import model_config
from repository.config.document import Document
from repository.core.layout import parse_version, version_folders

NOTE = "Bundled example"
_WORKER_S = 60.0  # how long a job is waited for that a worker of another machine has taken


def examples_publish() -> list[str]:
    """Publish and load the example models that are missing; return their names. A second call changes nothing.

    An example that somebody deleted does not come back.
    """
    folders = sorted(path for path in Path(settings.EXAMPLES_DIR).glob("*") if path.is_dir())
    # Ensembles come after the models of their steps.
    folders.sort(key=lambda folder: model_config.is_ensemble(model_config.read(folder)))
    return [folder.name for folder in folders if _publish_model(folder)]


def _publish_model(folder: Path) -> bool:
    deleted = AuditEntry.objects.filter(action="model.delete", model_name=folder.name).exists()
    numbers = version_folders(folder) or [1]
    missing = numbers[_published(folder.name) :]
    if deleted or not missing:
        return False
    for number in missing:
        _publish_version(folder, number, newest=number == numbers[-1])
    model_describe(model=Model.objects.get(name=folder.name), actor=SYSTEM, tags=["example"])
    return True


def _published(name: str) -> int:
    """Return how many versions of an example an earlier run has published; that run may have stopped half-way."""
    return Version.objects.filter(model__name=name, created_by_name=SYSTEM.name).count()


def _publish_version(folder: Path, number: int, *, newest: bool) -> None:
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if _belongs_to_version(path, folder, number)
    }
    files = [{"path": name, "size": path.stat().st_size} for name, path in paths.items()]
    upload = upload_create(actor=SYSTEM, model_name=folder.name, files=files)
    for index, path in enumerate(paths.values()):
        _send(upload, index, path)
    job = upload_complete(upload=upload, actor=SYSTEM)
    _end(job)
    upload.refresh_from_db()
    if upload.state != UploadState.INSPECTED:
        raise Conflict(f"example {folder.name} cannot be published: {upload.error}")
    document = Document.read(upload.proposal["config"])
    job = upload_publish(upload=upload, actor=SYSTEM, document=document, note=NOTE, load=newest)
    _end(job)  # upload_publish leaves a large version to a worker


def _end(job: Job) -> None:
    """Run a job, or wait for a worker of another machine that was quicker."""
    job_run(job_id=job.pk)
    until = time.monotonic() + _WORKER_S
    while time.monotonic() < until and Job.objects.filter(pk=job.pk, state__in=UNFINISHED).exists():
        time.sleep(0.1)


def _belongs_to_version(path: Path, folder: Path, number: int) -> bool:
    """Return whether a path is a file of the version, or a file that all versions share."""
    first = path.relative_to(folder).parts[0]
    return path.is_file() and parse_version(first) in (None, number) and path.name != ".gitkeep"


def _send(upload: Upload, index: int, path: Path) -> None:
    offset = 0
    with path.open("rb") as file:
        while chunk := file.read(settings.UPLOAD_CHUNK_BYTES):
            sent = upload_receive_chunk(upload=upload, number=index, offset=offset, chunk=chunk, actor=SYSTEM)
            offset = sent.received
