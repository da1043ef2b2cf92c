"""Asks a model's handler for its own description (`describe_handle`), with a request that has the header `describe`."""

import asyncio
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson

from serving.core.errors import ServingError, without_traceback
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.core.request import InferenceRequest
from serving.core.response import Answer, InferenceResponse
from serving.server.inference_server import InferenceServer


async def customized_metadata(
    server: InferenceServer, name: str, number: str, headers: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    """Return the JSON object in the handler's answer, or {} for any other answer. Raises ServingError if the handler fails.

    number: the number of the version. headers: the headers of the client's request.
    """
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    body = bytearray()

    def take(answer: Answer, final: bool) -> None:
        if isinstance(answer, InferenceResponse):
            output = answer.outputs.get("data")
            if output is not None and output.size == 1 and isinstance(value := output.item(), bytes):
                body.extend(value)
        if answered.done():
            return
        if isinstance(answer, ServingError):
            answered.set_exception(without_traceback(answer))
        elif final:
            answered.set_result(bytes(body))

    config = server.model_config(name, number)
    if [one.name for one in config.input] != ["data"]:
        return {}
    data = np.empty((1, 1) if config.max_batch_size else (1,), object)
    data.fill(b"")
    sent = orjson.dumps([*headers, ("describe", "True")]).decode()
    asked = InferenceRequest(
        name, {"data": data}, number, parameters={"torchserve_parts": "[]", "torchserve_headers": sent}
    )
    request = InFlightRequest(asked, CallbackResponder(take))
    server.infer(request)
    try:
        metadata = await answered
    finally:
        request.cancel()
    try:
        described = orjson.loads(metadata)
    except orjson.JSONDecodeError:
        return {}
    return described if isinstance(described, dict) else {}
