"""The envelope `kservev2` (KServe V2 as JSON): a request {"inputs": [...]} is answered by {"outputs": [...]}.

A handler gets each input as {"name", "shape", "datatype", "data"}, with the data nested in the input's shape, and returns one
value for each input.
"""

from typing import Any

import numpy as np

from .base import BaseEnvelope, object_of

_DTYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "INT8": np.int8,
    "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
_DATATYPES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


class KServev2Envelope(BaseEnvelope):
    _requests: list[tuple[Any, list[str]]]  # for each request, its id and the names of its inputs

    def parse_input(self, data: list[Any]) -> list[Any]:
        self._requests = []
        found = []
        for index, row in enumerate(data):
            body = object_of(row)
            inputs = body.get("inputs")
            if not isinstance(inputs, list):
                raise ValueError('the body must have the list "inputs"')
            self._requests.append(
                (body.get("id") or self.context.get_request_id(index), [one.get("name") for one in inputs])
            )
            found += [_shaped(one) for one in inputs]
        return found

    def format_output(self, data: list[Any]) -> list[Any]:
        wanted = sum(len(names) for _, names in self._requests)
        if len(data) != wanted:
            raise ValueError(f"the handler returned {len(data)} answers for {wanted} inputs")
        model = (self.context.manifest or {}).get("model", {})
        answers, start = [], 0
        for identifier, names in self._requests:
            values = data[start : start + len(names)]
            start += len(names)
            outputs = [_output(value, name) for value, name in zip(values, names, strict=True)]
            answers.append(
                {
                    "id": identifier,
                    "model_name": model.get("modelName"),
                    "model_version": model.get("modelVersion"),
                    "outputs": outputs,
                }
            )
        return answers


def _shaped(given: dict[str, Any]) -> dict[str, Any]:
    """Return an input with its data nested in its shape. For BYTES with one element, the data is only that element."""
    values, datatype = given.get("data"), given.get("datatype")
    if datatype == "BYTES":
        return {**given, "data": values[0] if isinstance(values, list) and len(values) == 1 else values}
    if datatype not in _DTYPES:
        raise ValueError(
            f"the datatype {datatype!r} of input {given.get('name')!r} is none of {', '.join(_DTYPES)}, BYTES"
        )
    return {**given, "data": np.asarray(values).reshape(given["shape"]).tolist()}


def _output(value: Any, name: str) -> dict[str, Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.atleast_1d(np.asarray(value))
    return {
        "name": name,
        "datatype": _DATATYPES.get(array.dtype, "BYTES"),
        "data": array.reshape(-1).tolist(),
        "shape": list(array.shape),
    }


ENVELOPE = KServev2Envelope
