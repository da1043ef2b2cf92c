"""Requests to TorchServe's handlers, as its frontends and clients of the V2 protocol make them, in the test's own process."""

import json
from typing import Any

import numpy as np

from serving.core.response import InferenceResponse
from serving.server.inference_server import InferenceServer
from tests.serving.in_process import response


def strings(rows: list[list[bytes]]) -> np.ndarray[Any, Any]:
    """Return a BYTES tensor."""
    found = np.empty((len(rows), len(rows[0])), np.object_)
    for row, values in enumerate(rows):
        found[row, :] = values
    return found


async def send(
    server: InferenceServer,
    model: str,
    parts: list[tuple[str, str | None, bytes]],
    headers: list[tuple[str, str]] | None = None,
    **parameters: Any,
) -> InferenceResponse:
    """Return the response to a request as TorchServe's frontends send it: parts of a name, a content type and bytes."""
    said = {
        "torchserve_parts": json.dumps([[name, content_type, None] for name, content_type, _ in parts]),
        "torchserve_headers": json.dumps(headers or []),
        **parameters,
    }
    data = strings([[content for *_, content in parts]])
    return await response(server, model, {"data": data}, parameters=said)


async def ask(server: InferenceServer, model: str, body: bytes, **fields: Any) -> bytes:
    """Return the body of the answer to a client of the V2 protocol."""
    answer = await response(server, model, {"data": strings([[body]])}, **fields)
    return bytes(answer.outputs["data"][0, 0])
