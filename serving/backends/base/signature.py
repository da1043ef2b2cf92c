"""A model file's inputs and outputs, and how a configuration is completed from them and checked against them.

The rules of completion are Triton's (its ONNX Runtime backend): where inputs or outputs are missing and the first
dimension of every tensor is variable, the model can batch: max_batch_size becomes 4 (or what --backend-config says) unless
given, and a dynamic batcher is added unless another scheduler is chosen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.datatypes import BY_CONFIG, DATATYPES
from serving.core.errors import invalid

Entry: TypeAlias = mc.ModelInput | mc.ModelOutput
"""What a configuration says of one tensor."""

DEFAULT_MAX_BATCH_SIZE = 4
# The setting of --backend-config that takes its place; a parameter of the configuration while that is completed.
DEFAULT_MAX_BATCH_SIZE_KEY = "default-max-batch-size"


class TensorSignature(NamedTuple):
    """One tensor of the file. `datatype` is "" and `shape` None where the file does not say; -1 is a variable size."""

    name: str
    datatype: str
    shape: tuple[int, ...] | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs that a model file says it has.

    max_batch_size: the value to complete with in place of the default, where the format knows one. batch_limit: the largest
    batch that the model takes; 0 for no limit.
    """

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    max_batch_size: int | None = None
    batch_limit: int = 0

    @property
    def can_batch(self) -> bool:
        """Whether the first dimension of every tensor is variable, as far as the file says. Inputs that may be left out keep
        what the file gives them, and without any other nothing tells how many rows a request has."""
        inputs = [tensor for tensor in self.inputs if not tensor.optional]
        every = (*inputs, *self.outputs)
        return bool(inputs) and all(tensor.shape is None or tensor.shape[:1] == (-1,) for tensor in every)

    @property
    def shapes_known(self) -> bool:
        return all(tensor.shape is not None for tensor in (*self.inputs, *self.outputs))


def complete_config(config: ModelConfig, signature: Signature) -> None:
    """Fill what is missing in `config`, in place; INVALID_ARG where what is given contradicts the file."""
    if not config.input or not config.output:
        _complete_batching(config, signature)
    for given, tensors, what in (
        (config.input, signature.inputs, "input"),
        (config.output, signature.outputs, "output"),
    ):
        if given:
            _complete_given(given, tensors, config.max_batch_size, what, _joined_end_to_end(config))
        else:
            _add_all(given.add, tensors, config.max_batch_size, what)
    _check_all_inputs_fed(config, signature)
    if 0 < signature.batch_limit < config.max_batch_size:
        raise invalid(
            f"max_batch_size is {config.max_batch_size}, but the model was made for batches of at most {signature.batch_limit}"
        )


def _complete_batching(config: ModelConfig, signature: Signature) -> None:
    if not signature.can_batch:
        if config.max_batch_size > 0:
            raise invalid(
                f"max_batch_size is {config.max_batch_size}, but the model cannot batch: "
                f"expected a variable first dimension, got {_fixed_tensor(signature)}"
            )
        return
    if config.max_batch_size == 0 and signature.shapes_known:
        known = signature.max_batch_size
        config.max_batch_size = _default_max_batch_size(config, signature) if known is None else known
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()


def _default_max_batch_size(config: ModelConfig, signature: Signature) -> int:
    size = DEFAULT_MAX_BATCH_SIZE
    if DEFAULT_MAX_BATCH_SIZE_KEY in config.parameters:
        size = int(config.parameters[DEFAULT_MAX_BATCH_SIZE_KEY].string_value)
    return min(size, signature.batch_limit or size)


def _fixed_tensor(signature: Signature) -> str:
    for tensor in (*signature.inputs, *signature.outputs):
        if tensor.shape is not None and tensor.shape[:1] != (-1,) and not tensor.optional:
            return f"shape {list(tensor.shape)} for tensor '{tensor.name}'"
    return "no inputs"


def _add_all(add: Callable[[], Entry], tensors: Sequence[TensorSignature], max_batch_size: int, what: str) -> None:
    for tensor in tensors:
        if not tensor.optional:
            entry = add()
            entry.name = tensor.name
            _fill(entry, tensor, max_batch_size, what)


def _joined_end_to_end(config: ModelConfig) -> set[str]:
    """Return the tensors without a batch dimension in the model: ragged inputs and what is split by their shapes."""
    ragged = {entry.name for entry in config.input if entry.allow_ragged_batch}
    return ragged | {name for output in config.batch_output for name in output.target_name}


def _complete_given(
    given: Iterable[Entry], tensors: Sequence[TensorSignature], max_batch_size: int, what: str, joined: set[str]
) -> None:
    by_name = {tensor.name: tensor for tensor in tensors}
    for entry in given:
        tensor = by_name.get(entry.name)
        if tensor is None:
            raise invalid(f"{what} '{entry.name}' is not in the model, whose {what}s are {_names(tensors)}")
        _fill(entry, tensor, max_batch_size, what)
        _check(entry, tensor._replace(shape=None) if entry.name in joined else tensor, max_batch_size, what)


def _fill(entry: Entry, tensor: TensorSignature, max_batch_size: int, what: str) -> None:
    """Fill in the datatype and dims of one entry, where they are missing and the file says them."""
    if entry.data_type == mc.TYPE_INVALID:
        if not tensor.datatype:
            raise invalid(f"{what} '{entry.name}' needs a data_type: the model file does not say it")
        entry.data_type = DATATYPES[tensor.datatype].config
    if entry.dims:
        return
    if tensor.shape is None:
        raise invalid(f"{what} '{entry.name}' needs dims: the model file does not say its shape")
    dims = tensor.shape[1:] if max_batch_size > 0 else tensor.shape
    entry.dims.extend(dims or (1,))
    if not dims and max_batch_size > 0:
        entry.reshape.SetInParent()  # dims are never empty: one element for each row, reshaped to [batch]


def _check(entry: Entry, tensor: TensorSignature, max_batch_size: int, what: str) -> None:
    given = BY_CONFIG[entry.data_type].name
    if tensor.datatype and given != tensor.datatype:
        raise invalid(f"{what} '{entry.name}' has data_type {given}, but the model expects {tensor.datatype}")
    if tensor.shape is None:
        return
    dims = list(entry.reshape.shape if entry.HasField("reshape") else entry.dims)
    full = [-1, *dims] if max_batch_size > 0 else dims
    if max_batch_size > 0 and tensor.shape[:1] != (-1,):
        raise invalid(
            f"{what} '{entry.name}' has shape {list(tensor.shape)} in the model, but max_batch_size is "
            f"{max_batch_size}: expected a variable first dimension"
        )
    if tensor.shape == () and set(full) == {1}:
        return  # how a scalar of a model without batching is written
    # As in Triton: an input may be said more precisely than the file says it, an output not, and neither more loosely.
    loose = what == "input"
    fits = all(
        size == expected or (loose and expected == -1) for size, expected in zip(full, tensor.shape, strict=False)
    )
    if len(full) != len(tensor.shape) or not fits:
        batch = ", the batch dimension included" if max_batch_size > 0 else ""
        raise invalid(f"{what} '{entry.name}' has shape {full}{batch}, but the model expects {list(tensor.shape)}")


def _check_all_inputs_fed(config: ModelConfig, signature: Signature) -> None:
    fed = {entry.name for entry in config.input} | set(fed_by_scheduler(config))
    missing = [tensor.name for tensor in signature.inputs if not tensor.optional and tensor.name not in fed]
    if missing:
        raise invalid(
            f"the model's input '{missing[0]}' is not in the configuration, whose inputs are {_quoted(sorted(fed))}"
        )


def fed_by_scheduler(config: ModelConfig) -> Iterable[str]:
    """Give the inputs of the model that no client sends: sequence controls, implicit state, batch inputs."""
    for control in config.sequence_batching.control_input:
        yield control.name
    for state in config.sequence_batching.state:
        yield state.input_name
    for batch_input in config.batch_input:
        yield from batch_input.target_name


def _names(tensors: Sequence[TensorSignature]) -> str:
    return _quoted([tensor.name for tensor in tensors])


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
