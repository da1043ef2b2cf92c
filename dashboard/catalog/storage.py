"""The managed repository, as the dashboard's settings place it, and what is remembered of its files."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.conf import settings

from dashboard.models import Model
from repository.config import model_config
from repository.core.errors import InvalidConfig, NotFound
from repository.core.layout import ModelRepository
from repository.files.storage import Manifest, hash_file


def managed_repository() -> ModelRepository:
    return ModelRepository(
        Path(settings.MODEL_REPOSITORY),
        staging=Path(settings.STAGING_DIR),
        archive=Path(settings.ARCHIVE_DIR),
        reserve=settings.DISK_RESERVE_BYTES,
    )


def disk_text(name: str) -> str | None:
    """config.pbtxt as it is on disk now; None without one, and for one that is not even text."""
    try:
        return model_config.read_text(managed_repository().model_dir(name))
    except (NotFound, InvalidConfig):
        return None


def remember_config(model: Model, text: str) -> None:
    """What differs from this text from now on is drift."""
    files = model.fingerprint.get("files", {})
    _remember(model, {"config": hashlib.sha256(text.encode()).hexdigest(), "files": files})


def remember_version(model: Model, number: int, manifest: Manifest) -> None:
    """The files of a version just brought back, without reading them again."""
    folder = managed_repository().version_dir(model.name, number)
    files = dict(model.fingerprint.get("files", {}))
    for name, entry in manifest.files.items():
        files[f"{number}/{name}"] = [entry.size, (folder / name).stat().st_mtime_ns, entry.sha256]
    _remember(model, {"config": model.fingerprint.get("config", ""), "files": files})


def remember_publication(model: Model, *, number: int, manifest: Manifest, text: str, beside: Iterable[str]) -> None:
    """A version just published, its config.pbtxt, and the files beside the versions: labels, a vocabulary."""
    folder = managed_repository().model_dir(model.name)
    entries = {name: hash_file(folder / name) for name in beside}
    entries |= {f"{number}/{name}": entry for name, entry in manifest.files.items()}
    files = dict(model.fingerprint.get("files", {}))
    for name, entry in entries.items():
        files[name] = [entry.size, (folder / name).stat().st_mtime_ns, entry.sha256]
    _remember(model, {"config": hashlib.sha256(text.encode()).hexdigest(), "files": files})


def forget_version(model: Model, number: int) -> None:
    files = {
        name: entry for name, entry in model.fingerprint.get("files", {}).items() if not name.startswith(f"{number}/")
    }
    _remember(model, {"config": model.fingerprint.get("config", ""), "files": files})


def _remember(model: Model, fingerprint: dict[str, Any]) -> None:
    model.fingerprint = fingerprint
    Model.objects.filter(pk=model.pk).update(fingerprint=fingerprint)
