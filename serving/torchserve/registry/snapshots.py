"""Snapshots of the registered models: property files in the folder of the logs, from which a server can start again.

<log location>/config/20260131120000000-startup.cfg | -snapshot.cfg | -shutdown.cfg

Each file has all properties with which the server started, and the models as JSON under `model_snapshot`. TorchServe itself can
also read these files.
Source: docs/snapshot.md of TorchServe 0.12.
"""

import asyncio
import datetime
import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import javaproperties

from repository.core.errors import RepositoryError
from repository.files import storage
from repository.torchserve.archive_names import file_name
from repository.torchserve.snapshot_files import prune, snapshot_folder
from serving.torchserve.registry.registrations import Registrations
from serving.torchserve.registry.workflows import Workflows

log = logging.getLogger(__name__)

Occasion = Literal["startup", "snapshot", "shutdown"]
KEPT = 100  # how many of the newest files are kept, and the last startup file; TorchServe keeps all


class Snapshots:
    """Writes the snapshots of one server, one after another on a separate thread. Called on the event loop's thread."""

    def __init__(
        self, log_location: Path, properties: Mapping[str, str], registrations: Registrations, workflows: Workflows
    ) -> None:
        self._folder = snapshot_folder(log_location)
        self._properties = {key: value for key, value in properties.items() if key != "model_snapshot"}
        self._registrations = registrations
        self._workflows = workflows
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="snapshots")

    async def save(self, occasion: Occasion) -> None:
        """Write a snapshot of the current registrations, and wait until it is on the disk. An error is logged."""
        name, text = self._text(occasion)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, name, text)

    def close(self) -> None:
        """Write the last snapshot."""
        self._write(*self._text("shutdown"))
        self._thread.shutdown()

    def _text(self, occasion: Occasion) -> tuple[str, str]:
        """Return the name and the content of a snapshot."""
        now = datetime.datetime.now()
        name = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}-{occasion}.cfg"
        models = self._models()
        content: dict[str, Any] = {
            "name": name,
            "modelCount": sum(len(versions) for versions in models.values()),
            "created": int(now.timestamp() * 1000),
            "models": models,
        }
        if registered := self._workflows.remembered():  # TorchServe's snapshots have no workflows
            content["workflows"] = {name: {"warName": file_name(url)} for name, url in registered.items()}
        properties = self._properties | {"model_snapshot": json.dumps(content, indent=2)}
        return name, javaproperties.dumps(properties, comments="Saving snapshot", timestamp=None)

    def _write(self, name: str, text: str) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            storage.write_atomic(self._folder / name, text.encode(), mode=0o600)
            prune(self._folder, KEPT)
        except (OSError, RepositoryError) as error:
            log.error("the snapshot of the registered models cannot be written: %s", error)

    def _models(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {
            model.name: {
                one.version: {
                    "defaultVersion": one.version == model.default,
                    "marName": file_name(one.url),
                    "minWorkers": one.min_workers,
                    "maxWorkers": one.max_workers,
                    "batchSize": one.settings.batch_size,
                    "maxBatchDelay": one.settings.max_batch_delay_ms,
                    "responseTimeout": one.settings.response_timeout_s,
                    "startupTimeout": one.settings.startup_timeout_s,
                    "runtimeType": one.settings.runtime,
                    **({"handler": one.settings.handler} if one.settings.handler else {}),
                }
                for one in model.versions.values()
            }
            for model in self._registrations.models.values()
            if not model.default_version.workflow
        }
