"""The JSON of a V2 inference response without its id and the elements of its tensors.

It is the same for all responses of one version of a model to equal request headers whose outputs have the same shapes: it is
made once, and cut where the elements belong.

Source: KServe V2 REST, Inference; Triton docs/protocol/extension_binary_data.md.
"""

import secrets
from collections.abc import Callable, Collection
from operator import methodcaller
from typing import Any

import orjson
from numpy.typing import NDArray

from serving.core.datatypes import COPIED_BYTES, datatype_of, raw_bytes
from serving.core.response import InferenceResponse
from serving.frontends.http1.message import Chunk
from serving.frontends.rest.json_output import dump_json, json_writer, not_json

Array = NDArray[Any]
Writer = Callable[[Array], Chunk]
_MARK = secrets.token_hex(8)
_MARK_TEXT = f'"{_MARK}"'.encode()
_to_bytes = methodcaller("tobytes")


class ResponseOutline:
    """Made for one response, and filled by `fill` with all that are like it."""

    __slots__ = ("_forms", "_start", "_version")

    def __init__(
        self, response: InferenceResponse, is_binary: Callable[[str], bool], elsewhere: Collection[str] = ()
    ) -> None:
        """is_binary: whether an output goes out as binary data. elsewhere: the outputs that lie in shared memory."""
        self._version = response.model_version
        outputs: list[dict[str, object]] = []
        writers: list[tuple[Writer | None, Writer | None, bool]] = []
        for name, array in response.outputs.items():
            row = datatype_of(array)
            output: dict[str, object] = {"name": name, "datatype": row.name, "shape": array.shape}
            if name in elsewhere:  # without parameters: else NVIDIA's C++ client wants a binary_data_size among them
                writers.append((None, None, False))
            elif not is_binary(name):
                output["data"] = _MARK
                writers.append((None, json_writer(name, row, array.size), True))
            else:
                sized = row.itemsize > 0
                output["parameters"] = {"binary_data_size": array.nbytes if sized else _MARK}
                small = sized and array.nbytes <= COPIED_BYTES
                writers.append((_to_bytes if small else raw_bytes, None, not sized))
            outputs.append(output)
        value: dict[str, object] = {"model_name": response.model_name, "model_version": str(response.model_version)}
        if response.parameters:
            value["parameters"] = response.parameters
        value["outputs"] = outputs
        start, *others = dump_json(value).split(_MARK_TEXT)
        self._start = start[1:]  # the brace stands before the id
        behind = iter(others)
        # Of each output: name, dtype and shape; what makes its binary data, or its JSON; and the JSON behind that, or behind
        # its number of bytes; empty where neither stands in the JSON.
        self._forms = [
            (name, array.dtype, array.shape, to_binary, to_json, next(behind) if cut else b"")
            for (name, array), (to_binary, to_json, cut) in zip(response.outputs.items(), writers, strict=True)
        ]

    def fill(self, response: InferenceResponse) -> tuple[bytes, list[Chunk]] | None:
        """Return the JSON, and the outputs' binary data in order; None where the response has another outline. INVALID_ARG
        for what JSON cannot hold."""
        outputs = response.outputs
        forms = self._forms
        if len(outputs) != len(forms) or response.model_version != self._version:
            return None
        pieces: list[Chunk] = [b'{"id":%b,' % _text(response.id) if response.id else b"{", self._start]
        parts: list[Chunk] = []
        for (name, array), (known, dtype, shape, to_binary, to_json, behind) in zip(
            outputs.items(), forms, strict=True
        ):
            if name != known or array.dtype is not dtype or array.shape != shape:
                return None
            if to_binary is not None:
                part = to_binary(array)
                parts.append(part)
                if behind:
                    pieces += (b"%d" % len(part), behind)
            elif to_json is not None:
                pieces += (to_json(array), behind)
        return b"".join(pieces), parts


def _text(value: str) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise not_json() from None
