"""Desired state against actual state: what to load and unload now. No I/O, no clock of its own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dashboard.shared.choices import ModelStatus

# Seconds until the next try after so many failed ones in a row.
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# The same for a model under whose load the server died; after the last one it waits for a person.
CRASH_RETRY_S = (0.0, 2.0, 10.0)


@dataclass(frozen=True, slots=True)
class DesiredModel:
    """What the database asks of one model."""

    id: int
    name: str
    loaded: bool
    generation: int
    applied_generation: int


@dataclass(slots=True)
class Attempts:
    """What `watch` remembers of one model's tries. It forgets when the generation changes: a person did something."""

    generation: int = -1
    failures: int = 0
    crashes: int = 0
    error: str = ""
    next_at: float = 0.0  # monotonic

    def renew(self, generation: int) -> None:
        if generation != self.generation:
            self.generation, self.failures, self.crashes, self.error, self.next_at = generation, 0, 0, "", 0.0

    def failed(self, now: float, error: str) -> None:
        self.next_at = now + RETRY_S[min(self.failures, len(RETRY_S) - 1)]
        self.failures += 1
        self.error = error

    def crashed(self, now: float) -> None:
        """The server ended while it loaded this model."""
        hold = self.crashes >= len(CRASH_RETRY_S)
        self.next_at = float("inf") if hold else now + CRASH_RETRY_S[self.crashes]
        self.crashes += 1

    @property
    def held(self) -> bool:
        return self.next_at == float("inf")


@dataclass(frozen=True, slots=True)
class Plan:
    load: list[DesiredModel]
    unload: list[DesiredModel]
    pending: bool  # something that is wanted has not been tried to its end yet


def make_plan(
    wanted: list[DesiredModel],
    states: Mapping[str, set[str]],
    attempts: Mapping[str, Attempts],
    busy: set[str],
    now: float,
    again: Collection[str] = (),
) -> Plan:
    """`states`: model -> the states of its versions on the server; `busy`: models with a call under way; `again`: models
    of which a version is missing there (watch.missing_versions)."""
    due = [one for one in wanted if _differs(one, states.get(one.name, set())) or (one.loaded and one.name in again)]
    ready = [one for one in due if one.name not in busy and attempts[one.name].next_at <= now]
    load = [one for one in ready if one.loaded]
    pending = bool(busy) or any(not _failing(attempts[one.name]) for one in due)
    return Plan(_one_suspect_alone(load, attempts, busy), [one for one in ready if not one.loaded], pending)


def _differs(one: DesiredModel, states: set[str]) -> bool:
    if one.loaded:
        applied = one.applied_generation == one.generation
        return not (applied and ModelStatus.READY in states)
    return bool(states & {ModelStatus.READY, ModelStatus.LOADING})


def _failing(attempts: Attempts) -> bool:
    return attempts.failures > 0 or attempts.held


def _one_suspect_alone(
    load: list[DesiredModel], attempts: Mapping[str, Attempts], busy: set[str]
) -> list[DesiredModel]:
    """Models under whose load the server died come last and one at a time, so that the guilty one is found."""
    innocent = [one for one in load if not attempts[one.name].crashes]
    suspects = sorted((one for one in load if attempts[one.name].crashes), key=lambda one: attempts[one.name].crashes)
    if innocent or busy:
        return innocent
    return suspects[:1]
