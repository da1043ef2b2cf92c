"""One version of a model: the model that serves it, its state with the reason, and when it was last used."""

from dataclasses import dataclass, field
from enum import Enum

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.reload_rule import same_build
from repository.config.residency import ALWAYS, PINNED, Residency, residency_of
from repository.core.condition import Condition
from serving.models.model import Model
from serving.models.sleeping_model import ASLEEP, SleepingModel
from serving.repositories.model_source import VersionSource
from serving.resources.memory import NOTHING, MemoryUse, larger_use
from serving.telemetry.statistics import ModelStatistics

KEEPS_SERVING = "the last reload failed, what was loaded before keeps serving: "
DEFAULT_SEQUENCE_IDLE_US = 1_000_000  # the default of Triton


class State(Enum):
    """Triton's model states, as the repository index shows them."""

    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"


@dataclass(slots=True, eq=False)
class ModelVersion:
    """A version of a model from its first load on.

    `model` takes the requests, whether it is asleep or awake, even while `incoming` is built to replace it.
    """

    statistics: ModelStatistics
    state: State = State.UNAVAILABLE
    reason: str = ""
    retired: bool = False  # taken out of service on purpose
    failed: bool = False  # its last load failed, even if an earlier model serves
    model: Model | SleepingModel | None = None
    source: VersionSource | None = None  # the source of `model`
    release: int | None = None  # the release of `model`
    # The digests of the golden requests that the model has passed since it was built.
    answered: frozenset[str] = frozenset()
    incoming: Model | SleepingModel | None = None  # a model that is built and waits for the other versions of its load
    draining: list[Model | SleepingModel] = field(default_factory=list)
    residency: Residency = ALWAYS
    last_used: float = 0.0  # seconds of the monotonic clock
    memory_awake: MemoryUse | None = None  # the memory that the model held before it was put to sleep
    memory_loaded: MemoryUse | None = None  # the memory that the last model held when its service ended
    _requests: int = 0  # how many requests had finished at `last_used`

    # -- state -----------------------------------------------------------------------------------------------------
    @property
    def asleep(self) -> bool:
        return isinstance(self.model, SleepingModel)

    @property
    def condition(self) -> Condition:
        if self.state is State.READY and isinstance(self.model, Model) and not self.model.available:
            return Condition.SILENT
        if self.state is not State.UNAVAILABLE:
            return Condition.NONE
        return Condition.ASLEEP if self.asleep else Condition.UNLOADED if self.retired else Condition.NONE

    @property
    def models(self) -> list[Model | SleepingModel]:
        """Return all models that may have requests under way."""
        return [*self.draining, self.model] if self.model else self.draining

    @property
    def memory(self) -> MemoryUse:
        return sum((model.memory for model in self._resident), NOTHING)

    @property
    def held(self) -> MemoryUse:
        """Return the memory that budgets count for the version."""
        return sum((model.held for model in self._resident), NOTHING)

    @property
    def _resident(self) -> list[Model | SleepingModel]:
        return [*self.models, self.incoming] if self.incoming else self.models

    def takes_in_place(self, source: VersionSource, config: ModelConfig, *, awake: bool) -> bool:
        """Return whether the serving model can take a new configuration: the files are the same, and the change needs neither a
        new build nor a wake-up. awake: the model has to be awake, whatever its residency is."""
        if self.model is None or self.source is None or self.source.files != source.files:
            return False
        must_wake = self.asleep and (awake or residency_of(config).mode == PINNED)
        return same_build(self.model.config, config) and not must_wake

    # -- changes of state ------------------------------------------------------------------------------------------
    def begin_load(self, statistics: ModelStatistics) -> None:
        """Begin to load a version that does not serve. The version gets new statistics: a draining model keeps the old ones."""
        self.state, self.retired, self.statistics = State.LOADING, False, statistics

    def serve(self, failure: str = "") -> None:
        """Set the state of a version that takes requests. failure: why its last load failed; "" if it did not fail."""
        self.failed, self.retired = bool(failure), False
        if self.asleep:
            self.state, self.reason = State.UNAVAILABLE, "; ".join(filter(None, (ASLEEP, failure)))
        else:
            self.state, self.reason = State.READY, failure

    def fail(self, reason: str, *, draining: bool) -> None:
        """Set the state of a version that did not load and does not serve. draining: the model built for it is being freed."""
        self.state, self.reason = State.UNLOADING if draining else State.UNAVAILABLE, reason
        self.failed = True

    def retire(self, reason: str) -> Model | SleepingModel | None:
        """Take no more requests. Return the model that has to finish its requests, or None if no model served."""
        model, self.model = self.model, None
        self.retired, self.failed, self.release = True, False, None
        if isinstance(model, Model):
            self.note_memory(model)
        if model is not None:
            self.state, self.reason = State.UNLOADING, reason
        elif self.state is not State.UNLOADING:
            self.state, self.reason = State.UNAVAILABLE, reason
        return model

    def note_memory(self, model: Model) -> None:
        """Keep what a model holds before it is freed, to tell what another load of it would need."""
        self.memory_loaded = larger_use(model.held, model.grown)

    # -- use -------------------------------------------------------------------------------------------------------
    def mark_used(self, now: float) -> None:
        self._requests, self.last_used = self._finished(), now

    def notice_use(self, now: float) -> None:
        """Mark the version as used if it has open requests, or if requests have ended since the last call."""
        if self._finished() != self._requests or (self.model is not None and self.model.in_flight):
            self.mark_used(now)

    def may_sleep(self, now: float) -> bool:
        """Return whether the version is awake and allowed to sleep, and has no open request or sequence."""
        model = self.model
        if self.residency.mode == PINNED or model is None or self.asleep:
            return False
        return not model.in_flight and now - self.last_used >= _sequence_idle_s(model.config)

    def _finished(self) -> int:
        self.statistics.add_up_executions()
        return self.statistics.success.count + self.statistics.fail.count


def _sequence_idle_s(config: ModelConfig) -> float:
    """Return after how many idle seconds a sequence ends."""
    if not config.HasField("sequence_batching"):
        return 0.0
    return float(config.sequence_batching.max_sequence_idle_microseconds or DEFAULT_SEQUENCE_IDLE_US) / 1e6
