"""GET and DELETE /v2/slipway/models/{model}/traffic/mismatches?after=N: the worst mismatches of a rollout's shadow.

The answer is [{"id", "at", "score", "detail", "inputs", "stable", "candidate"}]. Tensors have the format of golden requests
(repository.core.tensors). Tensors of more than LISTED elements are in base64, because long lists of numbers take seconds to
write and to parse.
"""

import base64
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

import orjson

from repository.core.json_types import Json
from repository.core.tensors import tensor_json
from serving.core.datatypes import Tensor, datatype_of, raw_bytes
from serving.core.errors import invalid
from serving.core.example_tensors import from_array
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.frontends.rest.json_body import JsonObject
from serving.frontends.shared.worker_threads import in_thread
from serving.server.inference_server import InferenceServer
from serving.traffic.mismatches import Mismatch

LISTED = 1000


async def mismatches(server: InferenceServer, exchange: Exchange) -> Reply:
    query = parse_qs(exchange.head.query)
    given = query.get("after", ["0"])[-1]
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise invalid("expected 'after' to be the id of a mismatch, a whole number from 0")
    found = server.mismatches(exchange.route.params["model"], int(given))
    return Reply(200, (await in_thread(_written, found),), "application/json")


async def forget_mismatches(server: InferenceServer, exchange: Exchange) -> Reply:
    given = parse_qs(exchange.head.query).get("until", ["inf"])[-1]
    try:
        until = float(given)
    except ValueError:
        raise invalid("expected 'until' to be a time in unix seconds") from None
    server.forget_mismatches(exchange.route.params["model"], until)
    return Reply(200)


def _written(found: Sequence[Mismatch]) -> bytes:
    return orjson.dumps([_mismatch(one) for one in found])


def _mismatch(one: Mismatch) -> JsonObject:
    return {
        "id": one.id,
        "at": one.at,
        "score": one.score,
        "detail": one.detail,
        "inputs": _tensors(one.inputs),
        "stable": _tensors(one.stable),
        "candidate": _tensors(one.candidate),
    }


def _tensors(tensors: Mapping[str, Tensor]) -> list[dict[str, Json]]:
    return [_tensor(name, tensor) for name, tensor in tensors.items()]


def _tensor(name: str, tensor: Tensor) -> dict[str, Json]:
    if tensor.size <= LISTED:
        return tensor_json(from_array(name, tensor))
    content = base64.b64encode(raw_bytes(tensor)).decode()
    return {"name": name, "datatype": datatype_of(tensor).name, "shape": [*tensor.shape], "base64": content}
