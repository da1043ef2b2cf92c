"""The repository index, the readiness of models, and the statistics of each version.

An ensemble is ready only while the models of its steps are ready.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from repository.core.condition import Condition
from serving.cli.option_values import Cap
from serving.core.errors import ServingError
from serving.core.model_identifier import ModelIdentifier
from serving.execution.readiness import confirm_ready
from serving.models.model import Model
from serving.models.model_lifecycle import ModelLifecycle
from serving.models.model_registry import ModelRegistry
from serving.models.model_version import ModelVersion, State
from serving.models.sleeping_model import SleepingModel
from serving.repositories.model_repositories import ModelRepositories
from serving.telemetry.statistics import Loading, ModelStatistics, VersionStatus


class IndexRow(NamedTuple):
    """A row of the repository index: the fields of Triton, and the additional fields of this server.

    `version` and `state` are "" for a model of which no version was ever loaded. `failed`: whether the last load
    failed. `release`: the release in the configuration. `aliases`: the aliases of the version. `loading`: the progress of a
    running load. `new`: whether the model was found after the start and has not served yet.
    """

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""
    condition: Condition = Condition.NONE
    failed: bool = False
    release: int | None = None
    aliases: tuple[str, ...] = ()
    loading: Loading | None = None
    new: bool = False


class VersionHealth(NamedTuple):
    """Whether a version that should serve can answer a request, and whether its last load failed.

    `version` is "" for a model whose last load failed before its versions were known, and of which no version serves.
    """

    model: ModelIdentifier
    version: str
    ready: bool
    failed: bool


class RepositoryIndex:
    """Reads the registry and the repositories without changing them. Runs on the event loop's thread."""

    def __init__(self, models: ModelRegistry, repositories: ModelRepositories) -> None:
        self._models = models
        self._repositories = repositories

    # -- the index -------------------------------------------------------------------------------------------------
    def on_disk(self) -> dict[ModelIdentifier, str]:
        """Return every model of the repositories with the reason why its name cannot be loaded, or "". Reads folders."""
        return {model: self._repositories.conflict(model) for model in self._repositories.models()}

    def rows(self, ready: bool, on_disk: Mapping[ModelIdentifier, str]) -> list[IndexRow]:
        """Return a row for each version of a model that is or was loaded, and a row for each other model on disk. ready:
        whether to return only rows of READY versions."""
        rows: list[IndexRow] = []
        for model in sorted({*on_disk, *(lifecycle.identifier for lifecycle in self._models)}):
            lifecycle, name = self._models.get(model), model.name
            if lifecycle is not None and lifecycle.versions:
                rows += [row for row in self._version_rows(lifecycle) if not ready or row.state == "READY"]
            elif not ready:
                reason = lifecycle.error if lifecycle else on_disk[model]
                state, new = "UNAVAILABLE" if reason else "", lifecycle is not None and _is_new(lifecycle)
                rows.append(IndexRow(name, state=state, reason=reason, failed=bool(reason), new=new))
        return rows

    def _version_rows(self, lifecycle: ModelLifecycle) -> Iterator[IndexRow]:
        for number, version in sorted(lifecycle.versions.items()):
            state, condition, unready = self._read_state(lifecycle, version)
            failed_reload = lifecycle.failed_reload(version)
            remarks = version.model.unready_reasons() + version.model.warnings if version.model else []
            reason = version.reason or unready or failed_reload or "; ".join(remarks)
            failed = version.failed or (bool(failed_reload) and not version.asleep)
            release_facts = (version.release, lifecycle.aliases_of(number), lifecycle.loading(number))
            yield IndexRow(
                lifecycle.name, str(number), state.value, reason, condition, failed, *release_facts, _is_new(lifecycle)
            )

    def _read_state(self, lifecycle: ModelLifecycle, version: ModelVersion) -> tuple[State, Condition, str]:
        """Return the state and condition of a version, and why a step of it is not ready."""
        unready = ""
        if version.state is State.READY and version.model is not None:
            unready = self.unready_step(version.model, lifecycle.identifier.namespace)
        return (State.UNAVAILABLE, Condition.STEPLESS, unready) if unready else (version.state, version.condition, "")

    # -- readiness -------------------------------------------------------------------------------------------------
    def unready_step(self, model: Model | SleepingModel, namespace: str) -> str:
        """Return why a step of an ensemble, or of an ensemble in it, is not ready; "" if all steps are ready."""
        for step in model.config.ensemble_scheduling.step:
            try:
                found = self._models.step_model(namespace, step.model_name, step.model_version)
            except ServingError as error:
                return f"its step '{step.model_name}' is not ready: {error.message}"
            if reason := self.unready_step(found, namespace):
                return f"its step '{step.model_name}' is not ready: {reason}"
        return ""

    def unready_models(self) -> dict[str, list[str]]:
        """Return the names of the requested models that do not serve, without those that are being loaded and have not failed
        before. Each list is sorted.

        "new": found after the start, and has not served yet. "failed_at_start": requested at the start, failed, and has not
        served yet. "expected": all others. A model that failed stays in its list until it serves, so that readiness does not
        flicker each time that its load is retried."""
        names: dict[str, list[str]] = {"expected": [], "failed_at_start": [], "new": []}
        for lifecycle in self._models.requested():
            if lifecycle.default is None and (lifecycle.failed or not lifecycle.lock.locked()):
                names[_unready_kind(lifecycle)].append(lifecycle.name)
        return {kind: sorted(found) for kind, found in names.items()}

    def keeping_unready(self, *, despite_failed: Cap, despite_new: bool) -> list[str]:
        """Return those names of `unready_models` that keep the server from being ready, sorted.

        despite_failed: leave out the "failed_at_start", if they are at most this number or share of the requested models, and
        another requested model serves. despite_new: leave out the "new"."""
        unready, requested = self.unready_models(), self._models.requested()
        few = len(unready["failed_at_start"]) <= despite_failed.of(len(requested))
        if few and any(lifecycle.default is not None for lifecycle in requested):
            del unready["failed_at_start"]
        if despite_new:
            del unready["new"]
        return sorted(name for names in unready.values() for name in names)

    def end_start(self) -> None:
        """Tell the models that were requested until now from those that will be found later."""
        for lifecycle in self._models.requested():
            lifecycle.at_start = True

    async def confirm_all_ready(self) -> bool:
        """Return whether every serving model is ready. A model that has a readiness check is asked; any other only needs an
        available instance."""
        versions = [
            version
            for lifecycle in self._models.requested()
            for version in lifecycle.versions.values()
            if version.model
        ]
        answers = await asyncio.gather(*(confirm_ready(partial(_current_model, version)) for version in versions))
        return all(yes or version.model is None for yes, version in zip(answers, versions, strict=True))

    def health(self) -> list[VersionHealth]:
        """Return the health of each version that is loaded, is being loaded or failed to load, but not of those that were taken
        out of service on purpose. A sleeping version is ready, because its next request wakes it."""
        rows: list[VersionHealth] = []
        for lifecycle in self._models:
            model, versions = lifecycle.identifier, lifecycle.versions
            if lifecycle.error and not any(version.model for version in versions.values()):
                rows.append(VersionHealth(model, "", ready=False, failed=True))
            for number, version in versions.items():
                state, condition, _ = self._read_state(lifecycle, version)
                asleep = condition is Condition.ASLEEP
                failed = version.failed or (bool(lifecycle.failed_reload(version)) and not asleep)
                if failed or (state is not State.UNLOADING and condition is not Condition.UNLOADED):
                    ready = asleep or (state is State.READY and condition is Condition.NONE)
                    rows.append(VersionHealth(model, str(number), ready, failed))
        return rows

    # -- statistics ------------------------------------------------------------------------------------------------
    def statistics(self, model: ModelIdentifier | None = None, ready: bool = False) -> list[ModelStatistics]:
        """Return the statistics of versions that take requests or still have requests, of one model or all. ready:
        whether to leave out versions that take no requests."""
        found = self._models if model is None else filter(None, [self._models.get(model)])
        return self._statistics(found, lambda version: version.model is not None if ready else bool(version.models))

    def all_statistics(self) -> list[ModelStatistics]:
        """Return the statistics of every version that is or was loaded. The statistics of an unloaded version are zero."""
        return self._statistics(self._models, lambda version: True)

    def _statistics(
        self, lifecycles: Iterable[ModelLifecycle], chosen: Callable[[ModelVersion], bool]
    ) -> list[ModelStatistics]:
        """Return the statistics of the chosen versions, with their current status."""
        found = []
        for lifecycle in lifecycles:
            for version in filter(chosen, lifecycle.versions.values()):
                version.statistics.add_up_executions()
                version.statistics.status = self._status(lifecycle, version)
                found.append(version.statistics)
        return found

    def _status(self, lifecycle: ModelLifecycle, version: ModelVersion) -> VersionStatus:
        state, condition, _ = self._read_state(lifecycle, version)
        pending = sum(model.pending for model in version.models)
        in_flight = sum(model.in_flight for model in version.models)
        number = version.statistics.model_version
        release_facts = (version.release, lifecycle.aliases_of(number), lifecycle.loading(number))
        return VersionStatus(state.value, condition, version.failed, pending, in_flight, version.memory, *release_facts)


def _current_model(version: ModelVersion) -> Model | SleepingModel | None:
    return version.model


def _is_new(lifecycle: ModelLifecycle) -> bool:
    return lifecycle.requested and not (lifecycle.at_start or lifecycle.served)


def _unready_kind(lifecycle: ModelLifecycle) -> str:
    if _is_new(lifecycle):
        return "new"
    return "failed_at_start" if lifecycle.failed and not lifecycle.served else "expected"
