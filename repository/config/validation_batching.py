"""Rules about batches: sizes, queues, priorities, sequences, and the tensors made from a batch."""

from collections.abc import Iterable, Iterator

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.core.errors import Problem

_CORRELATION_TYPES = (mc.TYPE_UINT64, mc.TYPE_INT64, mc.TYPE_UINT32, mc.TYPE_INT32, mc.TYPE_STRING)
_BOOLEAN_PAIRS = ("int32_false_true", "fp32_false_true", "bool_false_true")


def max_batch_size(config: ModelConfig) -> Iterator[Problem]:
    if config.max_batch_size < 0:
        yield Problem("max_batch_size", f"expected 0 (no batch dimension) or more, not {config.max_batch_size}")


def batching(config: ModelConfig) -> Iterator[Problem]:
    yield from _dynamic_batching(config)
    yield from _sequence_batching(config)
    yield from _batch_tensors(config)


def _dynamic_batching(config: ModelConfig) -> Iterator[Problem]:
    if config.WhichOneof("scheduling_choice") != "dynamic_batching":
        return
    batching = config.dynamic_batching
    yield from _preferred("dynamic_batching.preferred_batch_size", batching.preferred_batch_size, config.max_batch_size)
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        given = batching.default_priority_level
        yield Problem("dynamic_batching.default_priority_level", f"expected 1 to {levels}, not {given}")
    for level in sorted(batching.priority_queue_policy):
        if levels and not 1 <= level <= levels:  # without priority levels, such policies are ignored, as in Triton
            wrong = f"priority level {level}: expected 1 to {levels}"
            yield Problem(f"dynamic_batching.priority_queue_policy[{level}]", wrong)
    if batching.preserve_ordering:
        yield from _preserved_order(batching)


def _preferred(field: str, sizes: Iterable[int], limit: int) -> Iterator[Problem]:
    for index, size in enumerate(sizes):
        if size < 1:
            yield Problem(f"{field}[{index}]", f"expected 1 or more, not {size}")
        elif size > limit >= 0:
            yield Problem(f"{field}[{index}]", f"expected at most the max_batch_size of {limit}, not {size}")


def _preserved_order(batching: mc.ModelDynamicBatching) -> Iterator[Problem]:
    """Yield a problem for settings that lose the order of requests: priorities, and requests delayed after a timeout."""
    if batching.priority_levels > 1:
        yield Problem("dynamic_batching.priority_levels", "preserve_ordering allows one priority level only")
    policies = {"default_queue_policy": batching.default_queue_policy}
    policies |= {
        f"priority_queue_policy[{level}]": policy for level, policy in sorted(batching.priority_queue_policy.items())
    }
    for name, policy in policies.items():
        if policy.default_timeout_microseconds and policy.timeout_action == mc.ModelQueuePolicy.DELAY:
            yield Problem(f"dynamic_batching.{name}.timeout_action", "DELAY does not go with preserve_ordering")


def _sequence_batching(config: ModelConfig) -> Iterator[Problem]:
    if config.WhichOneof("scheduling_choice") != "sequence_batching":
        return
    batching = config.sequence_batching
    yield from _controls(batching)
    if batching.WhichOneof("strategy_choice") == "oldest":
        field = "sequence_batching.oldest.preferred_batch_size"
        yield from _preferred(field, batching.oldest.preferred_batch_size, config.max_batch_size)
        if batching.oldest.max_candidate_sequences < 0:
            yield Problem("sequence_batching.oldest.max_candidate_sequences", "expected 0 or more")
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        yield Problem("sequence_batching.direct.minimum_slot_utilization", "expected a share between 0 and 1")
    for index, state in enumerate(batching.state):
        field = f"sequence_batching.state[{index}]"
        for part in ("input_name", "output_name", "data_type"):
            if not getattr(state, part):
                yield Problem(f"{field}.{part}", f"state {index} has no {part}")
        if len(state.initial_state) > 1:
            yield Problem(
                f"{field}.initial_state", f"state '{state.input_name}' begins once, but has several initial states"
            )
        for initial in state.initial_state:
            yield from _initial_state(f"{field}.initial_state[0]", state, initial)


def _initial_state(
    field: str, state: mc.ModelSequenceBatching.State, initial: mc.ModelSequenceBatching.InitialState
) -> Iterator[Problem]:
    """Source: Triton's core, sequence_batch_scheduler.cc, GenerateInitialStateData."""
    what = f"the initial state of '{state.input_name}'"
    if not initial.name:
        yield Problem(f"{field}.name", f"{what} has no name")
    if initial.data_type != state.data_type:
        expected, given = (mc.DataType.Name(one.data_type) for one in (state, initial))
        yield Problem(f"{field}.data_type", f"expected {expected} as in the state, not {given}")
    fits = all(size >= 0 and (dim < 0 or size == dim) for size, dim in zip(initial.dims, state.dims, strict=False))
    if len(initial.dims) != len(state.dims) or not fits:
        yield Problem(f"{field}.dims", f"{what} has dims {list(initial.dims)}, which are none of {list(state.dims)}")
    if initial.WhichOneof("state_data") is None:
        yield Problem(field, f"{what} says neither zero_data nor data_file")


def _controls(batching: mc.ModelSequenceBatching) -> Iterator[Problem]:
    tensors: set[str] = set()
    kinds: set[int] = set()
    for index, tensor in enumerate(batching.control_input):
        field = f"sequence_batching.control_input[{index}]"
        if not tensor.name:
            yield Problem(f"{field}.name", f"control tensor {index} has no name")
        elif tensor.name in tensors:
            yield Problem(f"{field}.name", f"control tensor '{tensor.name}' is given twice")
        tensors.add(tensor.name)
        for position, control in enumerate(tensor.control):
            kind = mc.ModelSequenceBatching.Control.Kind.Name(control.kind)
            if control.kind in kinds:
                yield Problem(f"{field}.control[{position}].kind", f"{kind} is given twice")
            kinds.add(control.kind)
            yield from _control(f"{field}.control[{position}]", kind, control)


def _control(field: str, kind: str, control: mc.ModelSequenceBatching.Control) -> Iterator[Problem]:
    given = [name for name in _BOOLEAN_PAIRS if getattr(control, name)]
    if kind == "CONTROL_SEQUENCE_CORRID":
        if given:
            yield Problem(f"{field}.{given[0]}", "the correlation ID has a data_type, not a pair of values")
        if control.data_type not in _CORRELATION_TYPES:
            names = ", ".join(mc.DataType.Name(value) for value in _CORRELATION_TYPES)
            yield Problem(f"{field}.data_type", f"a correlation ID is one of {names}")
    elif len(given) != 1:
        yield Problem(field, f"{kind} needs exactly one of {', '.join(_BOOLEAN_PAIRS)}")
    elif len(getattr(control, given[0])) != 2:
        yield Problem(f"{field}.{given[0]}", "expected two values: the one for false and the one for true")


def _batch_tensors(config: ModelConfig) -> Iterator[Problem]:
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for index, tensor in enumerate(config.batch_input):
        field = f"batch_input[{index}]"
        yield from _sources(field, tensor, inputs)
        if tensor.data_type not in (mc.TYPE_INT32, mc.TYPE_FP32):
            yield Problem(f"{field}.data_type", "expected TYPE_INT32 or TYPE_FP32")
    for index, tensor in enumerate(config.batch_output):
        field = f"batch_output[{index}]"
        yield from _sources(field, tensor, inputs)
        for position, name in enumerate(tensor.target_name):
            if name not in outputs:
                yield Problem(f"{field}.target_name[{position}]", f"the model has no output '{name}'")
        if len(set(tensor.target_name)) != len(tensor.target_name):
            yield Problem(f"{field}.target_name", "an output is given twice")


def _sources(field: str, tensor: mc.BatchInput | mc.BatchOutput, inputs: set[str]) -> Iterator[Problem]:
    if len(tensor.source_input) != 1:
        yield Problem(f"{field}.source_input", f"expected one source input, but {len(tensor.source_input)} are given")
    for position, name in enumerate(tensor.source_input):
        if name not in inputs:
            yield Problem(f"{field}.source_input[{position}]", f"the model has no input '{name}'")
