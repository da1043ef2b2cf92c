"""What TorchServe's listeners serve: the server, its options, and what is managed through TorchServe's APIs."""

from functools import partial
from pathlib import Path

from repository.torchserve.options import TorchServeOptions
from serving.server.inference_server import InferenceServer
from serving.torchserve.registry.description import Descriptions
from serving.torchserve.registry.known_workflows import KnownWorkflows, RepositoryWorkflows
from serving.torchserve.registry.registrations import Registrations
from serving.torchserve.registry.snapshots import Snapshots
from serving.torchserve.registry.tokens import Tokens
from serving.torchserve.registry.workflows import Workflows


class TorchServeSide:
    """`registrations` is None where --model-repository says what serves; `tokens` is None where nobody has to show one."""

    def __init__(
        self,
        server: InferenceServer,
        options: TorchServeOptions,
        repository: Path | None = None,
    ) -> None:
        """repository: the server's folder for registered models, where they are managed here. UNAVAILABLE where what a snapshot
        has is not in the store."""
        self._started = False
        self.server = server
        self.options = options
        self.tokens: Tokens | None = None
        self.registrations = Registrations(server, options, repository) if repository is not None else None
        self.snapshots: Snapshots | None = None
        self.workflows: Workflows | None = None  # None where nobody may register one
        if self.registrations is not None and repository is not None:
            self.workflows = Workflows(server, options, self.registrations, repository)
            if options.config_snapshots:
                self.snapshots = Snapshots(options.log_location, options.properties, self.registrations, self.workflows)
                self.registrations.on_changed = partial(self.snapshots.save, "snapshot")
        self.known_workflows: KnownWorkflows = self.workflows or RepositoryWorkflows(server)
        self.descriptions = Descriptions(server, options, self.registrations)

    async def register(self) -> None:
        """Register what is wanted at start, so that whoever reaches a listener finds it there."""
        if self.registrations is not None:
            await self.registrations.register_wanted()

    async def remember(self) -> None:
        """Write the snapshot of the start, of what is registered and listened for; from now on each change is one too."""
        if self.snapshots is not None:
            await self.snapshots.save("startup")
        self._started = True

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
