"""The managed repository, in the folders that the settings name, and the recorded fingerprints of its files."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from django.conf import settings

from dashboard.models import Model, Release
from repository.config import model_config
from repository.config.document import Document
from repository.core.errors import InvalidConfig
from repository.core.layout import ModelRepository
from repository.files import publish
from repository.files.drift import Fingerprint
from repository.files.storage import Manifest, hash_file


def managed_repository() -> ModelRepository:
    """Return the repository that the dashboard manages and the bundled server serves."""
    return _repository(
        Path(settings.MODEL_REPOSITORY),
        Path(settings.STAGING_DIR),
        Path(settings.ARCHIVE_DIR),
        settings.DISK_RESERVE_BYTES,
    )


@lru_cache(maxsize=1)
def _repository(root: Path, staging: Path, archive: Path, reserve: int) -> ModelRepository:
    return ModelRepository(root, staging=staging, archive=archive, reserve=reserve)


class OnDisk(NamedTuple):
    """The present config.pbtxt, with its stamp. text: its text, or None if there is no file or it has a `problem`."""

    text: str | None
    problem: str = ""

    @property
    def document(self) -> Document:
        return Document.read(self.text or "")


def on_disk(name: str) -> OnDisk:
    """Read config.pbtxt of a model's folder."""
    try:
        return OnDisk(model_config.read_text(managed_repository().model_dir(name)))
    except InvalidConfig as error:
        return OnDisk(None, error.message)


def adopted_fingerprint(model: Model) -> Fingerprint:
    """Return the fingerprint of the model's folder when it was last adopted; an empty one before that."""
    stored = model.fingerprint
    return {"config": stored.get("config", ""), "files": dict(stored.get("files", {}))}


def files_missing(model: Model, number: int) -> list[str]:
    """Return the adopted files of a version that are no longer in the repository."""
    folder, own = managed_repository().model_dir(model.name), f"{number}/"
    files = [name for name in adopted_fingerprint(model)["files"] if name.startswith(own)]
    return sorted(name for name in files or [own] if not (folder / name).exists())


def write_config(model: Model, release: Release) -> None:
    """Write the config.pbtxt of a release, and record it as the adopted one; a file that differs from it is drift."""
    document, number = release.document, release.number
    publish.write_config(managed_repository(), name=model.name, document=document, release=number)
    _remember(model, {"config": _digest(document.stamped(number)), "files": adopted_fingerprint(model)["files"]})


def remember_version(model: Model, number: int, manifest: Manifest) -> None:
    """Record the files of a version that was just restored, without reading them again."""
    folder = managed_repository().version_dir(model.name, number)
    adopted = adopted_fingerprint(model)
    for name, entry in manifest.files.items():
        adopted["files"][f"{number}/{name}"] = [entry.size, (folder / name).stat().st_mtime_ns, entry.sha256]
    _remember(model, adopted)


def remember_publication(model: Model, *, number: int, manifest: Manifest, text: str, beside: Iterable[str]) -> None:
    """Record a version that was just published, its config.pbtxt, and the files in the model's folder, such as labels."""
    folder = managed_repository().model_dir(model.name)
    entries = {name: hash_file(folder / name) for name in beside}
    entries |= {f"{number}/{name}": entry for name, entry in manifest.files.items()}
    files = adopted_fingerprint(model)["files"]
    for name, entry in entries.items():
        files[name] = [entry.size, (folder / name).stat().st_mtime_ns, entry.sha256]
    _remember(model, {"config": _digest(text), "files": files})


def forget_version(model: Model, number: int) -> None:
    """Record that a version's files have left the repository."""
    adopted = adopted_fingerprint(model)
    files = {name: entry for name, entry in adopted["files"].items() if not name.startswith(f"{number}/")}
    _remember(model, {"config": adopted["config"], "files": files})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _remember(model: Model, fingerprint: Fingerprint) -> None:
    model.fingerprint = fingerprint
    Model.objects.filter(pk=model.pk).update(fingerprint=fingerprint)
