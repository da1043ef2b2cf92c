"""Compares desired with actual state, and plans loads and unloads. It does no I/O; the caller passes the time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dashboard.shared.choices import ModelStatus

# Seconds until the next attempt, by the number of failed attempts in a row.
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# The same if the server ended while it loaded the model; after the last attempt the model waits for a person.
CRASH_RETRY_S = (0.0, 2.0, 10.0)


@dataclass(frozen=True, slots=True)
class DesiredModel:
    """The desired state of one model, from the database."""

    id: int
    name: str
    loaded: bool
    generation: int
    applied_generation: int
    release: int | None = None  # the id of the release that is wanted, None for the newest


@dataclass(slots=True)
class Attempts:
    """The failed loads and unloads of one model. A new generation resets them, because it means that a person made a change.

    A later failure of a call for an older generation does not count, because the new generation has not been tried yet.
    """

    generation: int = -1
    failures: int = 0
    crashes: int = 0
    error: str = ""
    next_at: float = 0.0  # monotonic
    good_failures: int = 0  # failed loads of the last good release in place of the wanted one
    good_next_at: float = 0.0

    def renew(self, generation: int) -> None:
        if generation != self.generation:
            self.generation, self.failures, self.crashes, self.error, self.next_at = generation, 0, 0, "", 0.0
            self.good_failures, self.good_next_at = 0, 0.0

    def good_failed(self, generation: int, now: float, *, crashed: bool = False) -> None:
        """Count a failed load of the last good release; a release that ended the server is not tried a third time."""
        if generation != self.generation:
            return
        self.good_next_at = now + RETRY_S[min(self.good_failures + 3, len(RETRY_S) - 1)]
        self.good_failures += 1
        if crashed and self.good_failures >= 2:
            self.good_next_at = float("inf")

    def failed(self, generation: int, now: float, error: str) -> None:
        if generation != self.generation:
            return
        self.next_at = now + RETRY_S[min(self.failures, len(RETRY_S) - 1)]
        self.failures += 1
        self.error = error

    def crashed(self, now: float) -> None:
        """Count a load of this model, of any generation, that crashed the server. The next load may crash it, too."""
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
    pending: bool  # a call is under way, or something desired has not been tried yet
    # Models without a ready version whose wanted release waits, for its next attempt or until it is known which model ends the
    # server: the last good release should serve meanwhile.
    meanwhile: list[DesiredModel] = field(default_factory=list)


def make_plan(
    wanted: list[DesiredModel],
    states: Mapping[str, set[str]],
    attempts: Mapping[str, Attempts],
    busy: set[str],
    now: float,
    again: Collection[str] = (),
    long: Collection[str] = (),
) -> Plan:
    """Return the loads and unloads that are due now.

    states: for each model the states of its versions on the server. busy: models with a call under way. now: monotonic
    seconds. again: loaded models of which a version is missing (watch.missing_versions). long: the models in `busy` whose call
    has taken so long that it may hang: other loads no longer wait for it.
    """
    due = [one for one in wanted if _differs(one, states.get(one.name, set())) or (one.loaded and one.name in again)]
    ready = [one for one in due if one.name not in busy and attempts[one.name].next_at <= now]
    load = _one_suspect_alone([one for one in ready if one.loaded], attempts, busy - set(long))
    loading = {one.name for one in load}
    pending = bool(busy) or any(not _failing(attempts[one.name]) for one in due)
    waiting = [one for one in due if one.loaded and one.name not in busy | loading]
    meanwhile = [
        one
        for one in waiting
        if not states.get(one.name, set()) & {ModelStatus.READY, ModelStatus.LOADING}
        and attempts[one.name].good_next_at <= now
    ]
    return Plan(load, [one for one in ready if not one.loaded], pending, meanwhile)


def _differs(one: DesiredModel, states: set[str]) -> bool:
    if one.loaded:
        applied = one.applied_generation == one.generation
        return not (applied and ModelStatus.READY in states)
    return bool(states & {ModelStatus.READY, ModelStatus.LOADING})


def _failing(attempts: Attempts) -> bool:
    return attempts.failures > 0 or attempts.held


def _one_suspect_alone(
    load: list[DesiredModel], attempts: Mapping[str, Attempts], busy: Collection[str]
) -> list[DesiredModel]:
    """Return the loads to begin: models whose loads ended the server come last, one at a time, to find the cause."""
    innocent = [one for one in load if not attempts[one.name].crashes]
    suspects = sorted((one for one in load if attempts[one.name].crashes), key=lambda one: attempts[one.name].crashes)
    if innocent or busy:
        return innocent
    return suspects[:1]
