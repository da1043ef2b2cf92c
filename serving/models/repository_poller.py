"""Follows the model repositories: lists what lies in the cloud and, in poll mode, takes up what changed."""

import logging

from serving.cli.options import Options
from serving.core.errors import ServingError, invalid
from serving.core.model_identifier import ModelIdentifier
from serving.models.model_loader import ModelLoader, failures
from serving.repositories.model_repositories import ModelRepositories
from serving.resources.network_thread import NetworkThreads
from serving.resources.runtime import Runtime

log = logging.getLogger(__name__)


class RepositoryPoller:
    """Runs on the event loop's thread; files and networks are read on others."""

    def __init__(
        self,
        options: Options,
        runtime: Runtime,
        repositories: ModelRepositories,
        network: NetworkThreads,
        loader: ModelLoader,
    ) -> None:
        self._options = options
        self._runtime = runtime
        self._repositories = repositories
        self._network = network
        self._loader = loader
        self._listed = False
        self._warned: set[str] = set()  # of folders that cannot be models
        self._fingerprints: dict[
            ModelIdentifier, object
        ] = {}  # of each model's files at its last load; None: load it again

    async def list_models(self) -> list[tuple[str, ServingError]]:
        """List what is in the cloud. Return the addresses that did not answer.

        In poll mode a change must be seen twice, but for the first list.
        """
        settling = self._listed and self._options.model_control_mode == "poll"
        self._listed = True
        for sentence in await self._runtime.in_thread(self._repositories.invalid_folders):
            if sentence not in self._warned:
                self._warned.add(sentence)
                log.warning("%s", sentence)
        if not self._repositories.remote:
            return []
        return await self._network.run(self._repositories.list_remote, settling=settling)

    async def poll(self) -> list[tuple[str, ServingError]]:
        """Take up what changed in the repositories since the last poll. Return the failures.

        A model that fails is tried again when its files change, or when it could not be copied.
        """
        failed = await self.list_models()
        fingerprints = await self._runtime.in_thread(self._repositories.fingerprints)
        changed = [model for model in fingerprints if self._fingerprints.get(model) != fingerprints[model]]
        for model in self._fingerprints.keys() - fingerprints.keys():
            await self._loader.unload_identified(model)
            await self._runtime.in_thread(self._repositories.forget, model)
        self._fingerprints = fingerprints
        for model in changed:
            if reason := self._repositories.conflict(model):  # as Triton does, it is unloaded
                failed.append((model.name, invalid(reason)))
                log.error("%s", reason)
                await self._loader.unload_identified(model, reason)
        loads = {
            model: self._loader.load_identified(model) for model in changed if not self._repositories.conflict(model)
        }
        failed_loads = await failures(loads)
        for model, _ in failed_loads:
            if not self._repositories.is_current(model):  # it stays known: it is unloaded if it goes meanwhile
                self._fingerprints[model] = None
        return failed + [(model.name, error) for model, error in failed_loads]
