"""The JSON of a service without a standard protocol: a template for the inputs, and paths to the outputs in the answer.

    {"features": "$input[row]"}          "$NAME": the tensor as nested lists. "$NAME[row]": one of its rows, without the batch
                                         dimension. "$NAME[row][0]": the first element of that row, and so on
    {"scores": "result.0.probabilities"} output -> path: names and numbers between dots; "$" is the whole answer

A template with "[row]" is filled and sent once for each row of a request, and the outputs of these calls are joined.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelOutput

from serving.core.datatypes import BY_CONFIG, Tensor
from serving.core.errors import invalid
from serving.traffic.remotes.protocol import read_json
from serving.traffic.remotes.v2_http import array_of, json_numbers, json_text

ROW = "[row]"
WHOLE = "$"  # the path of the whole answer
_PICKS = re.compile(r"(?:\[row\])?(?:\[[0-9]{1,9}\])*")
_INDEX = re.compile(r"\[([0-9]+)\]")


class Slot(NamedTuple):
    """The place of a tensor in the template. row: whether it takes one row of the tensor. picks: indexes into that row, or into
    the tensor."""

    name: str
    row: bool
    picks: tuple[int, ...]

    def fill(self, inputs: Mapping[str, Tensor], row: int) -> object:
        tensor = inputs.get(self.name)
        if tensor is None:
            return None  # an optional input that was left out
        found = tensor[row] if self.row else tensor
        for pick in self.picks:
            if np.ndim(found) == 0 or pick >= len(found):
                raise invalid(
                    f"the other server's template asks for element {pick} of input '{self.name}', which has none"
                )
            found = found[pick]
        return _plain(self.name, found)


class RequestTemplate:
    """The JSON of a request, with slots for tensors. rowwise: whether it is filled once for each row."""

    def __init__(self, template: object, config: ModelConfig) -> None:
        """Raises INVALID_ARG if a slot names no input, or takes a row although the model does not batch."""
        self.rowwise = False
        self._names = sorted((one.name for one in config.input), key=len, reverse=True)
        self._batches = config.max_batch_size > 0
        self._parsed = self._parse(template)

    def fill(self, inputs: Mapping[str, Tensor], row: int = 0) -> bytes:
        """Return the JSON for a row, or for the whole request."""
        return orjson.dumps(_filled(self._parsed, inputs, row), option=orjson.OPT_SERIALIZE_NUMPY)

    def _parse(self, value: object) -> object:
        if isinstance(value, Mapping):
            return {key: self._parse(one) for key, one in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self._parse(one) for one in value]
        return self._slot(value) if isinstance(value, str) and value.startswith("$") else value

    def _slot(self, text: str) -> Slot:
        for name in self._names:
            picks = text[1 + len(name) :]
            if text.startswith(name, 1) and _PICKS.fullmatch(picks):
                row = picks.startswith(ROW)
                if row and not self._batches:
                    raise invalid(
                        f"'{text}' in the template of the other server asks for a row, but the model does not batch"
                    )
                self.rowwise = self.rowwise or row
                return Slot(name, row, tuple(map(int, _INDEX.findall(picks))))
        known = ", ".join(sorted(self._names))
        raise invalid(f"'{text}' in the template of the other server names no input; the model has {known}")


def _filled(value: object, inputs: Mapping[str, Tensor], row: int) -> object:
    if isinstance(value, Slot):
        return value.fill(inputs, row)
    if isinstance(value, dict):
        return {key: _filled(one, inputs, row) for key, one in value.items()}
    return [_filled(one, inputs, row) for one in value] if isinstance(value, list) else value


def _plain(name: str, found: Any) -> object:
    """Return a tensor, or an element of a tensor, in a form that orjson can write."""
    if isinstance(found, bytes | str):
        return json_text(name, found)
    if isinstance(found, np.ndarray) and found.dtype.kind in "OSU":
        flat = np.empty(found.size, np.object_)
        flat[:] = [json_text(name, one) for one in found.ravel()]
        return flat.reshape(found.shape).tolist()
    numbers = json_numbers(name, np.asarray(found))
    return numbers if numbers.ndim else numbers.item()  # orjson knows no arrays of 0 dimensions


class _Place(NamedTuple):
    """The place of one output in an answer. dims: the declared dimensions, without the batch dimension."""

    path: tuple[str, ...]
    datatype: str
    dims: tuple[int, ...]


class ResponseTemplate:
    """The places of outputs in an answer."""

    def __init__(self, paths: Mapping[str, str], config: ModelConfig) -> None:
        """Raises INVALID_ARG if `paths` names an output that the model does not have."""
        declared = {one.name: one for one in config.output}
        for name in paths:
            if name not in declared:
                raise invalid(
                    f"'response' of the other server names no output '{name}'; the model has {', '.join(declared)}"
                )
        self._batches = config.max_batch_size > 0
        self._places = {name: _place(path, declared[name]) for name, path in paths.items()}
        self.names = frozenset(paths)

    def read(self, bodies: Sequence[bytes], rowwise: bool, rows: int, wanted: Sequence[str]) -> dict[str, Tensor]:
        """Return the outputs in the answers. bodies: one answer for each row if `rowwise`, else one answer for all rows.
        wanted: the names of the requested outputs; empty for all. Raises LookupError, ValueError, TypeError or OverflowError if
        an output is not in its place, or does not have its datatype."""
        answers = [read_json(body) for body in bodies]
        found = {}
        for name, place in self._places.items():
            if wanted and name not in wanted:
                continue
            values = [array_of(place.datatype, _at(answer, place.path)) for answer in answers]
            if rowwise:
                found[name] = np.stack([_shaped(one, place.dims) for one in values])
            else:
                found[name] = _shaped(values[0], (rows, *place.dims) if self._batches else place.dims)
        return found


def _place(path: str, output: ModelOutput) -> _Place:
    steps = () if path == WHOLE else tuple(path.removeprefix(f"{WHOLE}.").split("."))
    return _Place(steps, BY_CONFIG[output.data_type].name, tuple(output.dims))


def _at(answer: Any, path: Sequence[str]) -> Any:
    for step in path:
        if isinstance(answer, list):
            answer = answer[int(step)]
        elif isinstance(answer, dict):
            answer = answer[step]
        else:
            raise KeyError(step)
    return answer


def _shaped(array: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return an array in its declared shape. If it does not fit, return it unchanged, and a later check refuses it."""
    if array.ndim == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, array.shape, strict=True)):
        return array
    known = int(np.prod([dim for dim in dims if dim >= 0], dtype=np.int64))
    free = dims.count(-1)
    if (free == 0 and array.size == known) or (free == 1 and known and array.size % known == 0):
        return array.reshape(dims)
    return array
