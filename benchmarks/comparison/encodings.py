"""The encodings of requests and answers in each protocol, and a check that a server computes the right numbers."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from benchmarks.servers import models
from benchmarks.servers.process import CannotStart, Running, ask
from dashboard.loads.requests import Request, numbers, plain_json, v2_binary, v2_grpc, v2_json

ROW = models.inputs("mlp")
FEATURES = {"features": numbers(ROW["input"])}


@dataclass(frozen=True)
class Encoding:
    """A form in which the 512 numbers are sent to a server. read: returns the ten numbers in the body of an answer."""

    name: str
    request: Request
    read: Callable[[bytes], Any]


def check(running: Running, encoding: Encoding, expected: np.ndarray) -> None:
    """Raise CannotStart unless the server computes the expected numbers."""
    body = answer(running, encoding.request)
    try:
        found = np.asarray(encoding.read(body), np.float32).reshape(-1)
    except (ValueError, LookupError) as error:
        raise CannotStart(f"{encoding.name}: {error}") from None
    if found.shape != expected.shape or not np.allclose(found, expected, atol=1e-3):
        raise CannotStart(f"{encoding.name}: it computes {found[:3]}... instead of {expected[:3]}...")


def answer(running: Running, request: Request) -> bytes:
    """Return the body of one answer. Raise CannotStart if the server refuses, which h2load does not notice over gRPC."""
    try:
        if not request.http2:
            return ask(running.http, request)
        with grpc.insecure_channel(running.grpc) as channel:
            return bytes(channel.unary_unary(request.path)(request.body[5:], timeout=30))
    except (OSError, grpc.RpcError) as error:
        raise CannotStart(f"{request.path}: {error}") from None


def _of_v2_json(body: bytes) -> Any:
    return json.loads(body)["outputs"][0]["data"]


def _of_v2_binary(body: bytes) -> Any:
    return np.frombuffer(body[-40:], np.float32)


def _of_v2_grpc(body: bytes) -> Any:
    answer = pb.ModelInferResponse.FromString(body)
    if answer.raw_output_contents:
        return np.frombuffer(answer.raw_output_contents[0], np.float32)
    return list(answer.outputs[0].contents.fp32_contents)


def v2(model: str, names: Sequence[str] = ("JSON", "binary", "gRPC")) -> list[Encoding]:
    """Return encodings of the V2 protocol."""
    known = {
        "JSON": Encoding("JSON", v2_json(model, ROW), _of_v2_json),
        "binary": Encoding("binary", v2_binary(model, ROW), _of_v2_binary),
        "gRPC": Encoding("gRPC", v2_grpc(model, ROW), _of_v2_grpc),
    }
    return [known[name] for name in names]


def plain(path: str = "/predict") -> list[Encoding]:
    """Return the JSON encoding that most peers accept: {"features": [...]} -> {"output": [...]}."""
    return [Encoding("JSON", plain_json(path, FEATURES), lambda body: json.loads(body)["output"])]
