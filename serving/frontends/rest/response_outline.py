"""The JSON of a V2 inference response without its id and the elements of its tensors.

Responses of a model version share an outline if their request headers are equal and their outputs have the same shapes. The
outline is split where the elements are inserted.

Source: KServe V2 REST, Inference; Triton docs/protocol/extension_binary_data.md.
"""

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.core.datatypes import COPIED_BYTES, datatype_of, raw_bytes
from serving.core.response import InferenceResponse
from serving.frontends.http1.message import Chunk
from serving.frontends.rest.json_output import dump_json, json_writer, not_json

Array = NDArray[Any]
_MARK = secrets.token_hex(8)
_MARK_TEXT = f'"{_MARK}"'.encode()


class ResponseOutline:
    """The outline of a response, which `fill` turns into the JSON of this or a similar response."""

    __slots__ = ("_forms", "_start", "_version")

    def __init__(self, response: InferenceResponse, is_binary: Callable[[str], bool]) -> None:
        """is_binary: returns whether an output is sent as binary data. Raises INVALID_ARG for a dtype that has no datatype."""
        elsewhere = response.in_shared_memory or ()
        self._version = response.model_version
        outputs: list[dict[str, object]] = []
        writers: list[tuple[Callable[[Array], Chunk] | None, Callable[[Array], bytes] | None, bool]] = []
        for name, array in response.outputs.items():
            row = datatype_of(array)
            output: dict[str, object] = {"name": name, "datatype": row.name, "shape": array.shape}
            if name in elsewhere:  # no parameters: NVIDIA's C++ client would expect a binary_data_size in them
                writers.append((None, None, False))
            elif not is_binary(name):
                output["data"] = _MARK
                writers.append((None, json_writer(name, row, array.size), True))
            else:
                sized = row.itemsize > 0
                output["parameters"] = {"binary_data_size": array.nbytes if sized else _MARK}
                small = sized and array.nbytes <= COPIED_BYTES and array.shape  # shape () may be a numpy scalar
                writers.append((np.ndarray.tobytes if small else raw_bytes, None, not sized))
            outputs.append(output)
        value: dict[str, object] = {"model_name": response.model_name, "model_version": str(response.model_version)}
        if response.parameters:
            value["parameters"] = response.parameters
        value["outputs"] = outputs
        start, *others = dump_json(value).split(_MARK_TEXT)
        self._start = start
        rest = iter(others)
        # For each output: name, dtype and shape; the function that makes its binary data; the function that makes its JSON; the
        # JSON after its elements or its number of bytes, or b"" if neither is in the JSON.
        self._forms = [
            (name, array.dtype, array.shape, to_binary, to_json, next(rest) if cut else b"")
            for (name, array), (to_binary, to_json, cut) in zip(response.outputs.items(), writers, strict=True)
        ]

    def fill(self, response: InferenceResponse) -> tuple[bytes, list[Chunk]] | None:
        """Return the JSON and the outputs' binary data in order, or None if the response has another outline. Raises
        INVALID_ARG for values that JSON cannot carry."""
        outputs = response.outputs
        forms = self._forms
        if len(outputs) != len(forms) or response.model_version != self._version:
            return None
        start = self._start
        if response.id:
            start = b'{"id":%b,%b' % (_text(response.id), start[1:])
        pieces = [start]
        parts: list[Chunk] = []
        for (name, dtype, shape, to_binary, to_json, rest), given, array in zip(
            forms, outputs, outputs.values(), strict=True
        ):
            if given != name or array.shape != shape or array.dtype is not dtype:
                return None
            if to_binary is not None:
                part = to_binary(array)
                parts.append(part)
                if rest:
                    pieces += (b"%d" % len(part), rest)
            elif to_json is not None:
                pieces += (to_json(array), rest)
        return b"".join(pieces) if len(pieces) > 1 else start, parts


def _text(value: str) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise not_json() from None
