"""Every model that is or was loaded, and which of them a name means.

Clients and Python models name a model and nothing else: that means the one model of the name that was asked for and not
unloaded since, and no model where several namespaces have one. A step of an ensemble prefers the ensemble's own namespace.
Source: Triton's core, FindModelIdentifier and FindNode in model_repository_manager.cc.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator

from serving.core.errors import ServingError, invalid, not_found
from serving.core.model_identifier import ModelIdentifier
from serving.models.model_lifecycle import ModelLifecycle


class KnownModels:
    """Changed on the event loop's thread; `near` and `meant` are asked by others as well, where nothing is held up."""

    def __init__(self) -> None:
        self.by_name: dict[str, ModelLifecycle] = {}  # what a bare name means; read for every request
        self._all: dict[tuple[str, str], ModelLifecycle] = {}
        self._namesakes: defaultdict[str, list[ModelLifecycle]] = defaultdict(list)

    def __iter__(self) -> Iterator[ModelLifecycle]:
        return iter(self._all.values())

    def get(self, identifier: ModelIdentifier) -> ModelLifecycle | None:
        return self._all.get(identifier)

    def add(self, lifecycle: ModelLifecycle) -> None:
        self._all[lifecycle.identifier] = lifecycle
        self._namesakes[lifecycle.name].append(lifecycle)
        self._settle(lifecycle.name)

    def want(self, lifecycle: ModelLifecycle, wanted: bool) -> None:
        """It has been asked for, or is being unloaded."""
        lifecycle.wanted = wanted
        self._settle(lifecycle.name)

    def named(self, name: str) -> list[ModelLifecycle]:
        """All of that name, in whatever namespace and state."""
        return list(self._namesakes.get(name, ()))

    def _settle(self, name: str) -> None:
        namesakes = self._namesakes[name]
        wanted = [lifecycle for lifecycle in namesakes if lifecycle.wanted]
        if len(wanted) > 1:
            self.by_name.pop(name, None)
        else:
            self.by_name[name] = (wanted or namesakes)[0]

    # -- what a name means -----------------------------------------------------------------------------------------
    def find(self, name: str) -> ModelLifecycle:
        """What `by_name` has; NOT_FOUND or, for a name of several models, INVALID_ARG where it has nothing."""
        lifecycle = self.by_name.get(name)
        if lifecycle is None:
            if name not in self._namesakes:
                raise not_found(f"Request for unknown model: '{name}' is not found")
            raise ambiguous(name, sum(namesake.wanted for namesake in self._namesakes[name]))
        return lifecycle

    def near(self, name: str, namespace: str) -> ModelLifecycle:
        """What a step means, now: the ensemble's own namespace first, unless the model there has yet to load or is unloaded."""
        own = self._all.get((name, namespace))
        if own is not None and own.default is not None:
            return own
        others = [other for other in self._namesakes.get(name, ()) if other.wanted and other is not own]
        if len(others) == 1 and (own is None or not own.wanted or own.lock.locked()):
            return others[0]
        return own or self.find(name)

    def meant(self, name: str, namespace: str, found: Collection[ModelIdentifier]) -> ModelIdentifier:
        """What a step would mean once it is loaded; `found` is where the repositories have a model of that name."""
        namesakes = self.named(name)
        choices = {*found, *(lifecycle.identifier for lifecycle in namesakes if lifecycle.wanted)}
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
