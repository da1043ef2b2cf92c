"""Follows the model repositories: lists the models in the cloud and, in poll mode, loads models that changed."""

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
    """Runs on the event loop's thread. File and network access runs on other threads."""

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
        self._warned: set[str] = set()  # the warnings about folders that cannot be models
        # The fingerprint of each model's files at its last load, or None if the model has to be loaded again.
        self._fingerprints: dict[ModelIdentifier, object] = {}
        # The models that the last poll did not unload, because they were more than --max-unloads-per-poll.
        self.held: frozenset[ModelIdentifier] = frozenset()
        self._confirmed: frozenset[ModelIdentifier] = frozenset()  # held models that a person wants unloaded

    async def list_models(self) -> list[tuple[str, ServingError]]:
        """List the models in the cloud. Return the addresses that did not answer.

        In poll mode, a change counts only after two equal listings in a row, except in the first listing.
        """
        until_stable = self._listed and self._options.model_control_mode == "poll"
        self._listed = True
        for sentence in await self._runtime.in_thread(self._repositories.invalid_folders):
            if sentence not in self._warned:
                self._warned.add(sentence)
                log.warning("%s", sentence)
        unlisted = await self._runtime.in_thread(self._repositories.check_local)
        if not self._repositories.remote:
            return unlisted
        return unlisted + await self._network.run(self._repositories.list_remote, until_stable=until_stable)

    async def poll(self) -> list[tuple[str, ServingError]]:
        """Load and unload models that changed in the repositories since the last poll. Return the failures.

        A model that fails is retried when its files change, or if it could not be copied. Nothing is unloaded because a listing
        failed, or if more models would be unloaded than --max-unloads-per-poll allows.
        """
        failed = await self.list_models()
        fingerprints = await self._runtime.in_thread(self._repositories.fingerprints)
        await self._runtime.in_thread(self._repositories.check_local)  # a folder may have gone since it was listed
        unknown = self._repositories.failing_namespaces
        kept = {model for model in self._fingerprints if model not in fingerprints and model.namespace in unknown}
        conflicts = {model: reason for model in fingerprints if (reason := self._repositories.conflict(model))}
        leaving = {model for model in self._fingerprints if model not in fingerprints or model in conflicts} - kept
        refused = {
            model for model in conflicts if self._fingerprints.get(model) == fingerprints[model]
        }  # by an earlier poll
        kept |= self._hold(leaving - refused)
        fingerprints |= {model: self._fingerprints[model] for model in kept}
        changed = [model for model in fingerprints if self._fingerprints.get(model) != fingerprints[model]]
        for model in self._fingerprints.keys() - fingerprints.keys():
            await self._loader.unload_identified(model)
            await self._runtime.in_thread(self._repositories.forget, model)
        self._fingerprints = fingerprints
        for model in changed:
            if reason := conflicts.get(model, ""):  # the model is unloaded, as in Triton
                failed.append((model.name, invalid(reason)))
                log.error("%s", reason)
                await self._loader.unload_identified(model, reason)
        loads = {model: self._loader.load_identified(model) for model in changed if model not in conflicts}
        failed_loads = await failures(loads)
        for model, _ in failed_loads:
            if not self._repositories.is_current(model):
                # The model stays a key, so that it is unloaded if it disappears meanwhile.
                self._fingerprints[model] = None
        return failed + [(model.name, error) for model, error in failed_loads]

    def confirm_unloads(self) -> list[str]:
        """Let the next poll unload the models that are held now, and those of repositories in the cloud that are empty. Return
        the names of these models, sorted."""
        emptied = self._repositories.accept_empty()
        self._confirmed = self.held | {model for model in self._fingerprints if model.namespace in emptied}
        return sorted(model.name for model in self._confirmed)

    def _hold(self, leaving: set[ModelIdentifier]) -> frozenset[ModelIdentifier]:
        """Return the models that must go on serving although they leave: all that nobody confirmed, if they are too many."""
        asked = frozenset(leaving - self._confirmed)
        held = asked if len(asked) > self._options.max_unloads_per_poll.of(len(self._fingerprints)) else frozenset()
        if held and held != self.held:
            log.error(
                "%d of %d models are gone from the model repository, more than --max-unloads-per-poll=%s: they go on "
                "serving until they are back or POST /v2/slipway/repository/unloads confirms that they are gone",
                len(held),
                len(self._fingerprints),
                self._options.max_unloads_per_poll,
            )
        elif self.held and not held:
            log.info("no unloads are held any more")
        self.held, self._confirmed = held, self._confirmed & leaving
        return held
