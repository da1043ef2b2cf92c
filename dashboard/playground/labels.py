"""The names of a model's classes, from the first of these sources: the label files of its configuration (Triton's
label_filename), slipway.class_names, the model file of the serving version.
"""

from typing import cast

from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.models import Model, Version
from dashboard.releases.selectors import serving_release
from dashboard.releases.storage import managed_repository, on_disk
from dashboard.shared.choices import VersionState
from repository.config.class_names import class_names
from repository.core.errors import RepositoryError
from repository.core.layout import relative_path

MAX_BYTES = 1 << 20
MAX_LABELS = 5_000
MAX_DEPTH = 8  # ensembles of ensembles


def output_labels(name: str, depth: int = MAX_DEPTH) -> dict[str, list[str]]:
    """Return the names of classes for each output that has any.

    An ensemble's output without a label file has the labels of the step that produces it. An unreadable file is skipped,
    because the server reports it when it loads the model. depth: the most levels of nested ensembles.
    """
    try:
        config = on_disk(name).document.message
    except RepositoryError:
        return {}
    try:
        given = class_names(config)
    except RepositoryError:
        given = {}
    of_files = {row.name: labels for row in config.output if (labels := _read(name, row.label_filename))}
    return {**(_inherited(config, depth - 1) if depth else {}), **_in_model_file(name), **given, **of_files}


def _in_model_file(name: str) -> dict[str, list[str]]:
    """Return the class names in the model file of the serving version, or else of the newest."""
    model = Model.objects.filter(name=name).first()
    if model is None:
        return {}
    release = serving_release(model)
    versions = Version.objects.filter(model=model, state=VersionState.PUBLISHED).order_by("-number")
    version = (versions.filter(number__in=release.versions) if release else versions).first()
    found = version.details.get("class_names", {}) if version else {}
    return cast("dict[str, list[str]]", found)


def _inherited(config: ModelConfig, depth: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for step in config.ensemble_scheduling.step:
        labels = output_labels(step.model_name, depth)
        found |= {ours: labels[theirs] for theirs, ours in step.output_map.items() if theirs in labels}
    return found


def _read(name: str, filename: str) -> list[str]:
    if not filename:
        return []
    folder = managed_repository().model_dir(name)
    try:
        path = (folder / relative_path(filename)).resolve()
        if not path.is_relative_to(folder.resolve()) or path.stat().st_size > MAX_BYTES:
            return []
        return path.read_text(encoding="utf-8").splitlines()[:MAX_LABELS]
    except (OSError, UnicodeDecodeError, RepositoryError):
        return []
