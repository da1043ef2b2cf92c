"""Publishes a folder in one call, without the checks of the dashboard between the two steps."""

from collections.abc import Mapping
from pathlib import Path

from repository.config.document import Document
from repository.core.layout import ModelRepository
from repository.files.publish import place_version, stage_version
from repository.files.storage import Manifest


def publish_version(
    repository: ModelRepository,
    *,
    name: str,
    version: int,
    source: Path | None,
    config_text: str | None = None,
    model_files: Mapping[str, bytes] | None = None,
    move: bool = False,
) -> Manifest:
    with stage_version(repository, version=version, source=source, move=move) as staged:
        document = None if config_text is None else Document.read(config_text)
        place_version(repository, staged, name=name, document=document, release=1, model_files=model_files)
    return staged.manifest
