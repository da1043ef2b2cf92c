"""What TorchServe's listeners serve: the server, its options, and what is managed through TorchServe's APIs."""

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
    """`registrations` is None where --model-repository says what serves; `tokens` is None where nobody has to show one."""

    def __init__(self, server: InferenceServer, options: Options) -> None:
        """UNAVAILABLE where what a snapshot has is not in the store, or the keys cannot be written."""
        self._started = False
        self.server = server
        assert options.source is not None
        self.options = torchserve = cast("TorchServeOptions", options.source.settings)
        repository = cast("Path", options.model_repository[0])  # the server's folder for registered models
        self.registrations = Registrations(server, torchserve, repository) if torchserve.managed else None
        self.snapshots: Snapshots | None = None
        self.workflows: Workflows | None = None  # None where nobody may register one
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
        """Register what is wanted at start, so that whoever reaches a listener finds it there."""
        if self.registrations is not None:
            await self.registrations.register_wanted()

    async def listening(self) -> None:
        """Write the snapshot of the start, of what is registered and listened for; from now on each change is one too."""
        if self.snapshots is not None:
            await self.snapshots.save("startup")
        self._started = True
        log.info("Model server started.")  # what scripts that start TorchServe wait for

    async def start(self) -> None:
        """Load what is registered."""
        if self.registrations is not None:
            await self.registrations.start_workers()
            if self.workflows is not None:
                await self.workflows.start()

    def stop(self) -> None:
        """Begin nothing any more, and remember what is registered."""
        if self.snapshots is not None and self._started:
            self.snapshots.close()
        if self.registrations is not None:
            self.registrations.close()

    def close(self) -> None:
        """Remove the keys."""
        if self.tokens is not None:
            self.tokens.close()
