"""The objects behind TorchServe's listeners: the server, its options, registered models, workflows and tokens."""

import logging
from functools import partial
from pathlib import Path
from typing import cast

from repository.torchserve.options import TorchServeOptions
from serving.cli.options import Options
from serving.core.errors import unavailable
from serving.server.inference_server import InferenceServer
from serving.server.model_source import ModelSource
from serving.torchserve.registry.description import Descriptions
from serving.torchserve.registry.known_workflows import KnownWorkflows, RepositoryWorkflows
from serving.torchserve.registry.registrations import Registrations
from serving.torchserve.registry.snapshots import Snapshots
from serving.torchserve.registry.tokens import Tokens
from serving.torchserve.registry.workflows import Workflows

log = logging.getLogger("serving")


class TorchServeSource(ModelSource):
    """`registrations` is None with --model-repository, which sets the models. `tokens` is None if no token is required."""

    def __init__(self, server: InferenceServer, options: Options) -> None:
        """Raises UNAVAILABLE if an archive in the snapshot is not in the store, or if the keys cannot be written."""
        self._started = False
        self.server = server
        assert options.source is not None
        self.options = torchserve = cast("TorchServeOptions", options.source.settings)
        repository = cast("Path", options.model_repository[0])  # the server's folder for registered models
        self.registrations = Registrations(server, torchserve, repository) if torchserve.managed else None
        self.snapshots: Snapshots | None = None
        self.workflows: Workflows | None = None  # None without registrations
        if self.registrations is not None:
            self.workflows = Workflows(server, torchserve, self.registrations, repository)
            if torchserve.config_snapshots:
                self.snapshots = Snapshots(
                    torchserve.log_location, torchserve.properties, self.registrations, self.workflows
                )
                self.registrations.on_changed = partial(self.snapshots.save, "snapshot")
        self.known_workflows: KnownWorkflows = self.workflows or RepositoryWorkflows(server)
        self.descriptions = Descriptions(server, torchserve, self.registrations)
        try:
            self.tokens = Tokens(Path.cwd(), torchserve.token_expiration_min) if torchserve.token_auth else None
        except OSError as error:
            raise unavailable(f"the key file of TorchServe's tokens cannot be written: {error.strerror}") from None

    async def register(self) -> None:
        """Register the models for the start, before the listeners open."""
        if self.registrations is not None:
            await self.registrations.register_wanted()

    async def listening(self) -> None:
        """Write the snapshot of the start. From now on each change writes a snapshot too."""
        if self.snapshots is not None:
            await self.snapshots.save("startup")
        self._started = True
        log.info("Model server started.")  # scripts that start TorchServe wait for this line

    async def start(self) -> None:
        """Start the workers of registered models, and the workflows."""
        if self.registrations is not None:
            await self.registrations.start_workers()
            if self.workflows is not None:
                await self.workflows.start()

    def stop(self) -> None:
        """Begin no more work, and write the last snapshot."""
        if self.snapshots is not None and self._started:
            self.snapshots.close()
        if self.registrations is not None:
            self.registrations.close()

    def close(self) -> None:
        """Remove the file of the keys."""
        if self.tokens is not None:
            self.tokens.close()
