"""The parameters that a tuning varies: one line in `PARAMETERS` each."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository.config import inline_execution
from repository.config.backends import KINDS
from repository.config.model_config import SLIPWAY_PREFIX, backend_of, is_ensemble

OFF, NONE = "off", "none"
DELAYS_US = (0, 500, 2000, 5000)
_THREADS = {"onnxruntime": "intra_op_thread_count", "pytorch": "INTRA_OP_THREAD_COUNT"}
_LEAST_CHANGE = 2  # a candidate differs from the present size by this factor


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds on candidate values. cores: the processors of the machine."""

    cores: int
    most_instances: int
    most_batch: int
    most_threads: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of config.pbtxt. Values are texts, as a person reads them.

    has: whether a configuration has the parameter, which mostly depends on its backend. values: the candidates in ascending
    order, without the present value if it is another one. read, write: the value in a configuration.
    """

    name: str
    label: str
    has: Callable[[ModelConfig], bool]
    values: Callable[[ModelConfig, Limits], Iterable[str]]
    read: Callable[[ModelConfig], str]
    write: Callable[[ModelConfig, str], None]


def _batches(config: ModelConfig) -> bool:
    """Whether the dynamic batcher can join requests of the model."""
    return config.max_batch_size > 1 and not config.HasField("sequence_batching") and not is_ensemble(config)


def _doubled(most: int) -> list[str]:
    """Return 1, 2, 4, ... up to `most`."""
    return [str(1 << power) for power in range(most.bit_length())] if most > 0 else []


# -- batching ----------------------------------------------------------------------------------------------------------
def _delay(config: ModelConfig) -> str:
    if not config.HasField("dynamic_batching"):
        return OFF
    return str(config.dynamic_batching.max_queue_delay_microseconds)


def _set_delay(config: ModelConfig, value: str) -> None:
    if value == OFF:
        config.ClearField("dynamic_batching")
    else:
        config.dynamic_batching.SetInParent()
        config.dynamic_batching.max_queue_delay_microseconds = int(value)


def _delays(config: ModelConfig, limits: Limits) -> list[str]:
    return [OFF, *map(str, DELAYS_US)]


def _preferred(config: ModelConfig) -> str:
    return ", ".join(map(str, config.dynamic_batching.preferred_batch_size)) or NONE


def _set_preferred(config: ModelConfig, value: str) -> None:
    """Write the preferred sizes that fit. Without the dynamic batcher there are none."""
    if not config.HasField("dynamic_batching"):
        return
    sizes = [] if value == NONE else [int(size) for size in value.split(",")]
    config.dynamic_batching.preferred_batch_size[:] = [size for size in sizes if size <= config.max_batch_size]


def _preferences(config: ModelConfig, limits: Limits) -> list[str]:
    return [NONE, *(size for size in ("4", "8", "16", "32") if int(size) <= config.max_batch_size)]


def _largest(config: ModelConfig) -> str:
    return str(config.max_batch_size)


def _set_largest(config: ModelConfig, value: str) -> None:
    config.max_batch_size = int(value)


def _sizes(config: ModelConfig, limits: Limits) -> list[str]:
    """Return half and, where the backend allows it, double the present size: a TensorRT plan limits the batch itself."""
    present = config.max_batch_size
    double = [] if backend_of(config) == "tensorrt" else [present * _LEAST_CHANGE]
    sizes = [present // _LEAST_CHANGE, *double]
    return [str(size) for size in sizes if 1 < size <= max(limits.most_batch, present)]


# -- instances and threads ---------------------------------------------------------------------------------------------
def _own_count(config: ModelConfig) -> bool:
    """Whether one number sets how many instances there are."""
    groups = [group for group in config.instance_group if not group.passive]
    return len(groups) <= 1 and not (groups and len(groups[0].gpus) > 1) and not is_ensemble(config)


def _instances(config: ModelConfig) -> str:
    kind = KINDS.get(backend_of(config))
    group = config.instance_group[0] if config.instance_group else ModelInstanceGroup()
    return str(group.count or (kind.cpu_instances if kind is not None else 1))


def _set_instances(config: ModelConfig, value: str) -> None:
    if value == _instances(config):
        return
    group = config.instance_group[0] if config.instance_group else config.instance_group.add()
    group.count = int(value)


def _counts(config: ModelConfig, limits: Limits) -> list[str]:
    return _doubled(min(limits.most_instances, limits.cores * 4))


def _threads(config: ModelConfig) -> str:
    key = _THREADS[backend_of(config)]
    return config.parameters[key].string_value if key in config.parameters else "0"


def _set_threads(config: ModelConfig, value: str) -> None:
    if value != _threads(config):
        config.parameters[_THREADS[backend_of(config)]].string_value = value


def _thread_counts(config: ModelConfig, limits: Limits) -> list[str]:
    return ["0", *_doubled(min(limits.most_threads, limits.cores))]


# -- executions on the event loop --------------------------------------------------------------------------------------
def _inline(config: ModelConfig) -> str:
    return f"{inline_execution.inline_below_us(config):g}"


def _set_inline(config: ModelConfig, value: str) -> None:
    if value != _inline(config):
        config.parameters[SLIPWAY_PREFIX + inline_execution.PARAMETER].string_value = value


def _inline_bounds(config: ModelConfig, limits: Limits) -> list[str]:
    return ["0", f"{inline_execution.DEFAULT_US}", "1000"]


def _on_the_cpu(config: ModelConfig) -> bool:
    kinds = {group.kind for group in config.instance_group}
    return backend_of(config) in _THREADS and ModelInstanceGroup.KIND_GPU not in kinds


PARAMETERS = (
    Parameter("queue_delay", "Batching: queue delay, µs", _batches, _delays, _delay, _set_delay),
    Parameter("instances", "Instances", _own_count, _counts, _instances, _set_instances),
    Parameter("threads", "Threads of one execution", _on_the_cpu, _thread_counts, _threads, _set_threads),
    Parameter("max_batch_size", "Largest batch", _batches, _sizes, _largest, _set_largest),
    Parameter("preferred_batch_size", "Preferred batch size", _batches, _preferences, _preferred, _set_preferred),
    Parameter("inline_below_us", "Runs on the event loop below, µs", _on_the_cpu, _inline_bounds, _inline, _set_inline),
)
BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}
