"""The models that are or were loaded, and the lookup of a model by its name.

Clients and Python models give only a name. The name refers to the one model of that name whose load was requested and that was
not unloaded since. If several namespaces have such a model, the name is ambiguous and refers to none of them. A step of an
ensemble prefers the ensemble's own namespace.
Source: Triton's core, FindModelIdentifier and FindNode in model_repository_manager.cc.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator

from serving.core.errors import ServingError, invalid, not_found
from serving.core.model_identifier import ModelIdentifier
from serving.models.model import Model
from serving.models.model_lifecycle import ModelLifecycle
from serving.models.sleeping_model import SleepingModel


class ModelRegistry:
    """Changed only on the event loop's thread. Other threads look up the models of steps without a lock."""

    def __init__(self) -> None:
        self.by_name: dict[str, ModelLifecycle] = {}  # the model that a bare name means; read for every request
        self._all: dict[tuple[str, str], ModelLifecycle] = {}
        self._namesakes: defaultdict[str, list[ModelLifecycle]] = defaultdict(list)

    def __iter__(self) -> Iterator[ModelLifecycle]:
        return iter(self._all.values())

    def get(self, identifier: ModelIdentifier) -> ModelLifecycle | None:
        return self._all.get(identifier)

    def add(self, lifecycle: ModelLifecycle) -> None:
        self._all[lifecycle.identifier] = lifecycle
        self._namesakes[lifecycle.name].append(lifecycle)
        self._update_by_name(lifecycle.name)

    def remove(self, lifecycle: ModelLifecycle) -> None:
        del self._all[lifecycle.identifier]
        self._namesakes[lifecycle.name].remove(lifecycle)
        if self._namesakes[lifecycle.name]:
            self._update_by_name(lifecycle.name)
        else:
            del self._namesakes[lifecycle.name]
            self.by_name.pop(lifecycle.name, None)

    def set_requested(self, lifecycle: ModelLifecycle, requested: bool) -> None:
        """Record that the load or the unload of a model was requested."""
        lifecycle.requested = requested
        self._update_by_name(lifecycle.name)

    def requested(self) -> list[ModelLifecycle]:
        return [lifecycle for lifecycle in self if lifecycle.requested]

    def named(self, name: str) -> list[ModelLifecycle]:
        """Return all models of that name, in any namespace and state."""
        return list(self._namesakes.get(name, ()))

    def _update_by_name(self, name: str) -> None:
        namesakes = self._namesakes[name]
        requested = [lifecycle for lifecycle in namesakes if lifecycle.requested]
        if len(requested) > 1:
            self.by_name.pop(name, None)
        else:
            self.by_name[name] = (requested or namesakes)[0]

    # -- names -----------------------------------------------------------------------------------------------------
    def find(self, name: str) -> ModelLifecycle:
        """Return the model that a bare name means. Raises NOT_FOUND if no model has it, and INVALID_ARG if several have it."""
        lifecycle = self.by_name.get(name)
        if lifecycle is None:
            if name not in self._namesakes:
                raise not_found(f"Request for unknown model: '{name}' is not found")
            raise ambiguous(name, sum(namesake.requested for namesake in self._namesakes[name]))
        return lifecycle

    def step_model(self, namespace: str, name: str, version: int) -> Model | SleepingModel:
        """Return the model of a step of an ensemble in that namespace. Version -1 means the default version."""
        return self.find_step(name, namespace).resolve("" if version < 1 else str(version))

    def find_step(self, name: str, namespace: str) -> ModelLifecycle:
        """Return the model that a step means now: the model in the ensemble's own namespace. If that model is unloaded or not
        loaded yet, the step means the requested model of this name in another namespace, provided that there is only one."""
        own = self._all.get((name, namespace))
        if own is not None and own.default is not None:
            return own
        others = [other for other in self._namesakes.get(name, ()) if other.requested and other is not own]
        if len(others) == 1 and (own is None or not own.requested or own.lock.locked()):
            return others[0]
        return own or self.find(name)

    def identify_step(self, name: str, namespace: str, found: Collection[ModelIdentifier]) -> ModelIdentifier:
        """Return the model that a step will mean once that model is loaded. found: models of the name in the repositories."""
        namesakes = self.named(name)
        choices = {*found, *(lifecycle.identifier for lifecycle in namesakes if lifecycle.requested)}
        own = ModelIdentifier(name, namespace)
        if own in choices or not choices:
            return own
        if len(choices) > 1:
            raise ambiguous(name, len(choices))
        return choices.pop()


def ambiguous(name: str, count: int) -> ServingError:
    return invalid(
        f"there are {count} models named '{name}', each in a model repository of its own, and the name alone cannot resolve "
        "the ambiguity: unload all but one, or rename them"
    )
