"""Reads the answers to infer requests: V2, with outputs in the JSON or in binary form after it."""

from dataclasses import dataclass

import orjson

from dashboard.servers.client import RawAnswer
from dashboard.shared.exceptions import DashboardError
from repository.core.errors import InvalidExample
from repository.core.json_types import JsonObject
from repository.core.tensors import Tensor, from_binary, read_tensor


@dataclass(frozen=True, slots=True)
class Answer:
    """The outputs of an answer. refusal: the server's reason if it refused the request; then there are no outputs."""

    outputs: list[Tensor]
    version: str = ""
    refusal: str = ""


def read_answer(answer: RawAnswer) -> Answer:
    """Read an answer of any status. Raises DashboardError if the answer does not follow V2."""
    if answer.status != 200:
        return Answer([], refusal=_refusal(answer.status, answer.body))
    return _answer(answer.body, answer.headers.get("inference-header-content-length", ""))


def _refusal(status: int, body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"the inference server answered with status {status}"


def _answer(body: bytes, length: str) -> Answer:
    size = int(length) if length.isdigit() else len(body)
    try:
        head = orjson.loads(body[:size])
        return Answer(_outputs(head["outputs"], body[size:]), str(head.get("model_version", "")))
    except (orjson.JSONDecodeError, InvalidExample, KeyError, TypeError):
        raise DashboardError("the inference server's answer does not follow the V2 protocol") from None


def _outputs(rows: list[JsonObject], binary: bytes) -> list[Tensor]:
    tensors, at = [], 0
    for row in rows:
        parameters = row.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if not isinstance(size, int):
            tensors.append(read_tensor(row))
            continue
        name, datatype, shape = str(row["name"]), str(row["datatype"]), row["shape"]
        assert isinstance(shape, list)
        elements = from_binary(name, datatype, binary[at : at + size])
        tensors.append(Tensor(name, datatype, tuple(int(str(dim)) for dim in shape), elements))
        at += size
    return tensors
