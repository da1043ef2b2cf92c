"""The control tensors and the implicit state that the sequence batcher adds to a request's inputs.

Source: Triton, docs/user_guide/architecture.md (Control Inputs) and implicit_state_management.md.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelSequenceBatching

from repository.core.addresses import leads_into
from serving.core.datatypes import BY_CONFIG, Datatype, Tensor
from serving.core.device_tensor import host_array
from serving.core.errors import invalid
from serving.core.in_flight import InFlightRequest

log = logging.getLogger(__name__)

Control = ModelSequenceBatching.Control
START, READY, END, CORRID = (
    Control.CONTROL_SEQUENCE_START,
    Control.CONTROL_SEQUENCE_READY,
    Control.CONTROL_SEQUENCE_END,
    Control.CONTROL_SEQUENCE_CORRID,
)


class _Flag(NamedTuple):
    name: str
    kind: int
    values: tuple[Tensor, Tensor]  # the tensors for false and for true


class _State(NamedTuple):
    input_name: str
    output_name: str
    initial: Tensor


class SequenceControls:
    """The controls and states of a model, prepared once. Control tensors have shape [1], or [1, 1] if the model batches."""

    def __init__(self, config: ModelConfig, model_dir: Path) -> None:
        batching = config.sequence_batching
        self._model = config.name
        self._shape = (1, 1) if config.max_batch_size > 0 else (1,)
        self._flags: list[_Flag] = []
        self._ids: list[tuple[str, Datatype]] = []
        for tensor in batching.control_input:
            for control in tensor.control:
                if control.kind == CORRID:
                    self._ids.append((tensor.name, BY_CONFIG[control.data_type]))
                else:
                    self._flags.append(self._flag(tensor.name, control))
        self._states = [_state(state, config, model_dir) for state in batching.state]
        self.states_vary = any(dim < 0 for state in batching.state for dim in state.dims)
        self._own_outputs = tuple(output.name for output in config.output)

    def check(self, request: InFlightRequest) -> None:
        """Raise INVALID_ARG for a correlation ID that the model's CORRID input cannot carry."""
        given = request.sequence.id
        for name, row in self._ids:
            if isinstance(given, str):
                fits = row.name == "BYTES" and not any("\ud800" <= letter <= "\udfff" for letter in given)
            else:
                fits = row.name != "BYTES" and np.iinfo(row.dtype).min <= given <= np.iinfo(row.dtype).max
            if not fits:
                expected = "a text" if row.name == "BYTES" else f"an integer of the range of {row.name}"
                raise invalid(
                    f"sequence id {ascii(given)[:80]} does not fit control input '{name}' of model '{self._model}', which "
                    f"takes {expected}"
                )

    def new_id(self, number: int) -> int | str:
        """Return a correlation ID of the type that the CORRID input takes."""
        return str(number) if any(row.name == "BYTES" for _, row in self._ids) else number

    def prepare(self, request: InFlightRequest, state: dict[str, Tensor], ready: bool) -> None:
        """Add the controls and the sequence's state to the inputs, and the output states to the requested outputs."""
        inputs = dict(request.inputs)
        for name, kind, values in self._flags:
            true = {START: request.sequence.start, END: request.sequence.end, READY: ready}[kind]
            inputs[name] = values[true]
        for name, row in self._ids:
            value = request.sequence.id if ready else (b"" if row.name == "BYTES" else 0)
            value = value.encode() if isinstance(value, str) else value
            inputs[name] = np.full(self._shape, value, row.dtype)
        for one in self._states:
            inputs[one.input_name] = state.get(one.input_name, one.initial)
        request.inputs = inputs
        if self._states:
            asked = request.requested_outputs or self._own_outputs
            request.requested_outputs = tuple(dict.fromkeys((*asked, *(one.output_name for one in self._states))))

    def state_shapes(self, state: dict[str, Tensor]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the input states for a request with this state, without the batch dimension."""
        return tuple(state.get(one.input_name, one.initial).shape[1:] for one in self._states)

    def keep_state(self, outputs: dict[str, Tensor], asked: tuple[str, ...], state: dict[str, Tensor]) -> None:
        """Move output states from a response into the sequence's state. States that the client requested stay in it too."""
        asked = asked or self._own_outputs
        for one in self._states:
            if one.output_name in outputs:
                state[one.input_name] = np.array(host_array(outputs[one.output_name]))  # the batch's buffer is freed
                if one.output_name not in asked:
                    del outputs[one.output_name]

    def _flag(self, name: str, control: ModelSequenceBatching.Control) -> _Flag:
        for given, dtype in (
            (control.int32_false_true, np.int32),
            (control.fp32_false_true, np.float32),
            (control.bool_false_true, np.bool_),
        ):
            if len(given) == 2:
                false, true = (np.full(self._shape, value, dtype) for value in given)
                return _Flag(name, control.kind, (false, true))
        raise invalid(
            f"control input '{name}' needs int32_false_true, fp32_false_true or bool_false_true with two values"
        )


def _state(state: ModelSequenceBatching.State, config: ModelConfig, model_dir: Path) -> _State:
    """Return a state with its initial value: zeros or a file in <model>/initial_state, with 1 for variable dims."""
    row = BY_CONFIG[state.data_type]
    leading = (1,) if config.max_batch_size > 0 else ()
    given = state.initial_state[0] if state.initial_state else None
    shape = tuple(1 if dim < 0 else dim for dim in (state.dims if given is None else given.dims))
    if given is not None and given.WhichOneof("state_data") == "data_file":
        initial = _from_file(state.input_name, given.data_file, model_dir / "initial_state", row, shape)
    else:
        initial = np.full(shape, b"" if row.name == "BYTES" else 0, row.dtype)
    return _State(state.input_name, state.output_name, initial.reshape(leading + shape))


def _from_file(name: str, file: str, folder: Path, row: Datatype, shape: tuple[int, ...]) -> Tensor:
    path = folder / file
    if not leads_into(path, folder) or not path.is_file():
        raise invalid(f"the initial state of '{name}' names a file that is not in the model's initial_state folder")
    data = path.read_bytes()
    count = int(np.prod(shape, dtype=np.int64))
    if row.name == "BYTES":
        return _texts(name, data, count)
    if len(data) < count * row.itemsize:
        raise invalid(
            f"the initial state of '{name}' expects {count * row.itemsize} bytes, but its file has {len(data)}"
        )
    return np.frombuffer(data, row.dtype, count)


def _texts(name: str, data: bytes, count: int) -> Tensor:
    """Return the strings of a file in which four bytes before each string give its length. Missing strings are empty.

    A file of another format gives empty strings, as in Triton, which loads a model with any file."""
    texts: Tensor = np.full(count, b"", np.object_)
    offset = 0
    for index in range(count if data else 0):
        start = offset + 4
        offset = start + int.from_bytes(data[offset:start], "little")
        if offset > len(data):
            log.warning(
                "the file of state '%s' is not a list of strings, each after its length in four bytes: "
                "sequences begin with empty strings",
                name,
            )
            return np.full(count, b"", np.object_)
        texts[index] = data[start:offset]
        if offset == len(data):
            break
    return texts
