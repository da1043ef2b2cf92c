"""The managed repository, as the dashboard's settings place it."""

from pathlib import Path

from django.conf import settings
from repository import drift, model_config
from repository.errors import InvalidConfig, NotFound
from repository.layout import ModelRepository

from dashboard.models import Model


def managed_repository() -> ModelRepository:
    return ModelRepository(
        Path(settings.MODEL_REPOSITORY), staging=Path(settings.STAGING_DIR), archive=Path(settings.ARCHIVE_DIR)
    )


def disk_text(name: str) -> str | None:
    """config.pbtxt as it is on disk now; None without one, and for one that is not even text."""
    try:
        return model_config.read_text(managed_repository().model_dir(name))
    except (NotFound, InvalidConfig):
        return None


def fingerprint_record(model: Model) -> None:
    """Remembers the folder as it is: what differs from now on is drift."""
    folder = managed_repository().model_dir(model.name)
    model.fingerprint = drift.fingerprint(folder, model.fingerprint or None)
    model.drift = []
    Model.objects.filter(pk=model.pk).update(fingerprint=model.fingerprint, drift=[])
