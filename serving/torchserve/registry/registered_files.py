"""The model repository of registered models: a folder for each model, with a numbered folder for each of its versions.

<model>/config.pbtxt           the versions with workers, and the default version
<model>/<number>/model.mar     the archive
<model>/<number>/slipway.pbtxt the settings of this version: batches, workers, timeouts

This repository belongs to this server alone, and is created again at every start from the store and the snapshot.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config, release
from repository.core import layout
from repository.files import storage
from serving.torchserve.registry.model_store import copied

ARCHIVE = "model.mar"


class RegisteredFiles:
    """Reads and writes files. Called on worker threads, one call at a time for each model."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add_version(self, model: str, number: int, archive: Path) -> None:
        folder = self._version(model, number)
        folder.mkdir(parents=True)
        copied(archive, folder / ARCHIVE)

    def remove_version(self, model: str, number: int) -> None:
        shutil.rmtree(self._version(model, number), ignore_errors=True)

    def remove(self, model: str) -> None:
        shutil.rmtree(self.root / layout.check_name(model), ignore_errors=True)

    def archive(self, model: str, number: int) -> Path:
        return self._version(model, number) / ARCHIVE

    def write(self, model: str, versions: Mapping[int, ModelConfig], default: int | None) -> None:
        """Write which versions serve, the default version, and the settings of each version."""
        for number, overlay in versions.items():
            storage.write_atomic(self._version(model, number) / layout.OVERLAY_FILE, _text(overlay))
        config = ModelConfig(backend="torchserve")
        config.version_policy.specific.versions.extend(sorted(versions))
        if default is not None and default in versions:
            release.set_aliases(config, {release.DEFAULT_ALIAS: default})
        storage.write_atomic(self.root / model / layout.CONFIG_FILE, _text(config))

    def _version(self, model: str, number: int) -> Path:
        return self.root / layout.check_name(model) / str(number)


def _text(config: ModelConfig) -> bytes:
    return model_config.format(config).encode()
