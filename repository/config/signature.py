"""A model file's inputs and outputs: completes a configuration from them, and finds contradictions between the two.

The server completes the configurations that it loads by these rules, and refuses a configuration that contradicts the file.
The dashboard applies the same rules to predict the server's decision. The rules are those of Triton's ONNX Runtime backend: if
inputs or outputs are missing and the first dimension of every tensor is variable, the model can batch. Then max_batch_size
becomes 4 (or the value of --backend-config) unless given, and a dynamic batcher is added unless the configuration chooses
another scheduler.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypeAlias, TypedDict

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import variable_batch
from repository.core.errors import Problem

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    Entries: TypeAlias = (
        RepeatedCompositeFieldContainer[mc.ModelInput] | RepeatedCompositeFieldContainer[mc.ModelOutput]
    )

Entry: TypeAlias = mc.ModelInput | mc.ModelOutput
"""One tensor of a configuration."""

DEFAULT_MAX_BATCH_SIZE = 4
# The setting of --backend-config that replaces the default of 4. It is a parameter of the configuration during the completion.
DEFAULT_MAX_BATCH_SIZE_KEY = "default-max-batch-size"

_NAMED = 20  # the most tensors that a message names
_INDEXED = re.compile(r".+__([0-9]{1,9})")


class TensorSignature(NamedTuple):
    """One tensor of the file. `datatype` is "" and `shape` None if the file does not give them; -1 is a variable size.

    inferred: the shape of an output that the framework infers, if it is more precise than the file. A configuration may give
    either shape.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] | None
    optional: bool = False
    inferred: tuple[int, ...] | None = None


class TensorObject(TypedDict):
    """A TensorSignature in JSON."""

    name: str
    datatype: str
    shape: list[int] | None
    optional: NotRequired[bool]
    inferred: NotRequired[list[int]]


class SignatureObject(TypedDict):
    """A Signature in JSON, without fields whose values are the defaults."""

    inputs: list[TensorObject]
    outputs: list[TensorObject]
    batch_limit: NotRequired[int]
    ordered: NotRequired[bool]
    example: NotRequired[bool]


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs that a model file declares.

    max_batch_size: the value that the format gives for max_batch_size, in place of the default, or None if it gives none.
    batch_limit: the largest batch that the model takes; 0 for no limit. ordered: whether a configuration may name the tensors
    by their order (PyTorch). example: whether the signature comes from a single example, so that the model may take other
    datatypes and shapes, too (TorchScript).
    """

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    max_batch_size: int | None = None
    batch_limit: int = 0
    ordered: bool = False
    example: bool = False

    @property
    def can_batch(self) -> bool:
        """Return whether the first dimension of every tensor is variable or unknown. Optional inputs do not count: at least one
        input must be required, because otherwise nothing shows how many rows a request has."""
        inputs = [tensor for tensor in self.inputs if not tensor.optional]
        every = (*inputs, *self.outputs)
        return bool(inputs) and all(tensor.shape is None or tensor.shape[:1] == (-1,) for tensor in every)

    def with_variable_batch(self) -> "Signature":
        """Return a copy in which every first dimension of 1 is variable (see slipway.variable_batch)."""
        inputs, outputs = (tuple(map(_any_rows, tensors)) for tensors in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs)

    @property
    def shapes_known(self) -> bool:
        return all(tensor.shape is not None for tensor in (*self.inputs, *self.outputs))

    def to_json(self) -> SignatureObject:
        found: SignatureObject = {
            "inputs": [_tensor_object(tensor) for tensor in self.inputs],
            "outputs": [_tensor_object(tensor) for tensor in self.outputs],
        }
        if self.batch_limit:
            found["batch_limit"] = self.batch_limit
        if self.ordered:
            found["ordered"] = True
        if self.example:
            found["example"] = True
        return found

    @classmethod
    def from_json(cls, stored: SignatureObject) -> "Signature":
        return cls(
            tuple(map(_tensor_of, stored["inputs"])),
            tuple(map(_tensor_of, stored["outputs"])),
            batch_limit=stored.get("batch_limit", 0),
            ordered=stored.get("ordered", False),
            example=stored.get("example", False),
        )


def _any_rows(tensor: TensorSignature) -> TensorSignature:
    one = not tensor.optional and tensor.shape is not None and tensor.shape[:1] == (1,)
    return tensor._replace(shape=(-1, *tensor.shape[1:]), inferred=None) if one and tensor.shape else tensor


def _tensor_object(tensor: TensorSignature) -> TensorObject:
    shape = None if tensor.shape is None else list(tensor.shape)
    found: TensorObject = {"name": tensor.name, "datatype": tensor.datatype, "shape": shape}
    if tensor.optional:
        found["optional"] = True
    if tensor.inferred is not None:
        found["inferred"] = list(tensor.inferred)
    return found


def _tensor_of(stored: TensorObject) -> TensorSignature:
    shape, inferred = stored["shape"], stored.get("inferred")
    known, more = (None if one is None else tuple(one) for one in (shape, inferred))
    return TensorSignature(stored["name"], stored["datatype"], known, stored.get("optional", False), more)


def complete(config: ModelConfig, signature: Signature) -> list[Problem]:
    """Fill in the missing fields of `config` itself. Return its contradictions to the file, in the order of its fields."""
    problems: list[Problem] = []
    if variable_batch.is_requested(config):
        signature = signature.with_variable_batch()
    if signature.ordered:
        signature, problems = renamed(signature, config)
    if problems:
        return problems
    if not config.input or not config.output:
        problems += _complete_batching(config, signature)
    joined = _joined_end_to_end(config)
    for what, entries, tensors in (
        ("input", config.input, signature.inputs),
        ("output", config.output, signature.outputs),
    ):
        if entries:
            problems += _complete_given(entries, tensors, config.max_batch_size, what, joined)
        else:
            problems += _add_all(entries, tensors, config.max_batch_size, what)
    problems += _unfed(config, signature)
    if 0 < signature.batch_limit < config.max_batch_size:
        limit = f"the model was made for batches of at most {signature.batch_limit}"
        problems.append(Problem("max_batch_size", f"max_batch_size is {config.max_batch_size}, but {limit}"))
    return problems


def _complete_batching(config: ModelConfig, signature: Signature) -> Iterator[Problem]:
    if not signature.can_batch:
        if config.max_batch_size > 0:
            yield Problem(
                "max_batch_size",
                f"max_batch_size is {config.max_batch_size}, but the model cannot batch: "
                f"expected a variable first dimension, got {_fixed_tensor(signature)}",
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


def _add_all(
    entries: "Entries", tensors: Sequence[TensorSignature], max_batch_size: int, what: str
) -> Iterator[Problem]:
    for tensor in tensors:
        if not tensor.optional:
            entry = entries.add(name=tensor.name)
            yield from _fill("", entry, tensor, max_batch_size, what)


def _joined_end_to_end(config: ModelConfig) -> set[str]:
    """Return the tensors without a batch dimension in the model: ragged inputs, and outputs that are split by their shapes."""
    ragged = {entry.name for entry in config.input if entry.allow_ragged_batch}
    return ragged | {name for output in config.batch_output for name in output.target_name}


def _complete_given(
    given: Iterable[Entry], tensors: Sequence[TensorSignature], max_batch_size: int, what: str, joined: set[str]
) -> Iterator[Problem]:
    by_name = {tensor.name: tensor for tensor in tensors}
    for index, entry in enumerate(given):
        field = f"{what}[{index}]"
        tensor = by_name.get(entry.name)
        if tensor is None:
            known = _quoted(by_name)
            yield Problem(f"{field}.name", f"{what} '{entry.name}' is not in the model, whose {what}s are {known}")
            continue
        missing = [*_fill(f"{field}.", entry, tensor, max_batch_size, what)]
        yield from missing
        if not missing:
            known_here = tensor._replace(shape=None) if entry.name in joined else tensor
            yield from _check(field, entry, known_here, max_batch_size, what)


def _fill(path: str, entry: Entry, tensor: TensorSignature, max_batch_size: int, what: str) -> Iterator[Problem]:
    """Fill in missing datatype and dims of one entry from the file."""
    if entry.data_type == mc.TYPE_INVALID:
        if tensor.datatype:
            entry.data_type = config_type(tensor.datatype)
        else:
            missing = f"{what} '{entry.name}' needs a data_type: the model file does not say it"
            yield Problem(f"{path}data_type" if path else what, missing)
    if entry.dims:
        return
    if tensor.shape is None:
        missing = f"{what} '{entry.name}' needs dims: the model file does not say its shape"
        yield Problem(f"{path}dims" if path else what, missing)
        return
    shape = tensor.shape if tensor.inferred is None else tensor.inferred
    dims = shape[1:] if max_batch_size > 0 else shape
    entry.dims.extend(dims or (1,))
    if not dims and max_batch_size > 0:
        entry.reshape.SetInParent()  # dims may not be empty: give each row one element, and reshape to [batch]


def _check(field: str, entry: Entry, tensor: TensorSignature, max_batch_size: int, what: str) -> Iterator[Problem]:
    given = datatype_name(entry.data_type)
    if tensor.datatype and given != tensor.datatype:
        expects = f"the model expects {tensor.datatype}"
        yield Problem(f"{field}.data_type", f"{what} '{entry.name}' has data_type {given}, but {expects}")
    if tensor.shape is None:
        return
    if max_batch_size > 0 and tensor.shape[:1] != (-1,):
        yield Problem(
            f"{field}.dims",
            f"{what} '{entry.name}' has shape {list(tensor.shape)} in the model, but max_batch_size is "
            f"{max_batch_size}: expected a variable first dimension",
        )
        return
    reshaped = entry.HasField("reshape")
    dims = list(entry.reshape.shape if reshaped else entry.dims)
    full = [-1, *dims] if max_batch_size > 0 else dims
    if tensor.shape == () and set(full) == {1}:
        return  # dims of ones are the notation for a scalar
    # As in Triton, the dims of an input may be more specific than the file's dims; the dims of an output may not.
    # Neither may be less specific.
    loose = what == "input"
    if not any(_fits(full, shape, loose) for shape in (tensor.shape, tensor.inferred) if shape is not None):
        batch = ", the batch dimension included" if max_batch_size > 0 else ""
        expects = f"the model expects {list(tensor.shape if tensor.inferred is None else tensor.inferred)}"
        path = f"{field}.reshape" if reshaped else f"{field}.dims"
        yield Problem(path, f"{what} '{entry.name}' has shape {full}{batch}, but {expects}")


def _fits(given: Sequence[int], expected: Sequence[int], loose: bool) -> bool:
    same = (size == known or (loose and known == -1) for size, known in zip(given, expected, strict=False))
    return len(given) == len(expected) and all(same)


def _unfed(config: ModelConfig, signature: Signature) -> Iterator[Problem]:
    """Yield a problem if the model has inputs that neither a client nor the scheduler sends."""
    fed = {entry.name for entry in config.input} | set(fed_by_scheduler(config))
    missing = [tensor.name for tensor in signature.inputs if not tensor.optional and tensor.name not in fed]
    if missing:
        inputs = _quoted(sorted(fed))
        yield Problem(
            "input", f"the model's input '{missing[0]}' is not in the configuration, whose inputs are {inputs}"
        )


def fed_by_scheduler(config: ModelConfig) -> Iterable[str]:
    """Return the inputs of the model that no client sends: sequence controls, implicit state, batch inputs."""
    for control in config.sequence_batching.control_input:
        yield control.name
    for state in config.sequence_batching.state:
        yield state.input_name
    for batch_input in config.batch_input:
        yield from batch_input.target_name


# -- names -------------------------------------------------------------------------------------------------------------
def renamed(signature: Signature, config: ModelConfig) -> tuple[Signature, list[Problem]]:
    """Return an ordered signature with the names of tensors in the configuration, matched by index or by order."""
    inputs, wrong_inputs = _renamed(signature.inputs, config.input, "input", "forward takes")
    outputs, wrong_outputs = _renamed(signature.outputs, config.output, "output", "forward returns")
    return replace(signature, inputs=inputs, outputs=outputs), wrong_inputs + wrong_outputs


def _renamed(
    tensors: tuple[TensorSignature, ...], entries: Iterable[Entry], what: str, has: str
) -> tuple[tuple[TensorSignature, ...], list[Problem]]:
    names, found, problems = [entry.name for entry in entries], list(tensors), []
    for place, (name, index) in enumerate(
        zip(names, positions(names, [tensor.name for tensor in tensors]), strict=True)
    ):
        if index < len(found):
            found[index] = found[index]._replace(name=name)
        else:
            sentence = f"{what} '{name}' is number {index}, but the model's {has} {len(found)}, counted from 0"
            problems.append(Problem(f"{what}[{place}].name", sentence))
    return tuple(found), problems


def positions(names: Sequence[str], arguments: Sequence[str]) -> list[int]:
    """Return the position of each configured tensor: by the names in the file, else by NAME__INDEX, else in the given order.

    Source: Triton's pytorch_backend, README "Model Configuration" and naming conventions.
    """
    places = {name: place for place, name in reversed([*enumerate(arguments)])}
    if all(name in places for name in names):
        return [places[name] for name in names]
    indexes = indexed(names)
    return list(range(len(names))) if indexes is None else indexes


def indexed(names: Sequence[str]) -> list[int] | None:
    """Return the indexes of names that all end in __INDEX, or None if one name does not."""
    matches = [_INDEXED.fullmatch(name) for name in names]
    return [int(match[1]) for match in matches if match] if all(matches) else None


def datatype_name(data_type: int) -> str:
    """Return the name that the protocol uses for a datatype of a configuration: "FP32", or "BYTES" for TYPE_STRING."""
    name = mc.DataType.Name(data_type).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def config_type(datatype: str) -> int:
    """Return the value in a configuration for a datatype of the protocol."""
    return int(mc.DataType.Value(f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}"))


def _quoted(names: Iterable[str]) -> str:
    """Return the first _NAMED names, quoted, for a message that would be too long with all; "none" if there are none."""
    first = [f"'{name}'" for name in islice(names, _NAMED + 1)]
    return ", ".join([*first[:_NAMED], "..."] if len(first) > _NAMED else first) or "none"
