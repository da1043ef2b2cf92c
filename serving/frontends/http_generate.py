"""POST .../generate and .../generate_stream: JSON by names in, JSON by names out.

A key that names an input of the model becomes that tensor, any other a request parameter; a value is one element, a list is
one dimension. Source: Triton, docs/protocol/extension_generate.md.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.datatypes import BY_CONFIG, datatype_of
from serving.errors import ServingError, invalid
from serving.frontends.event_stream import EventStream, text_of
from serving.frontends.http_exchange import Exchange
from serving.frontends.http_handlers import json_object
from serving.frontends.http_message import Reply
from serving.frontends.http_tensors import array_from_json, array_to_json, dump_json
from serving.request import InferenceRequest, InferenceResponse, OnResponse, Parameters, Tensor
from serving.server import InferenceServer

_SCALARS = (str, int, float, bool)


def generate(server: InferenceServer, exchange: Exchange) -> None:
    """Exactly one response."""
    answers: list[InferenceResponse] = []

    def on_response(response: InferenceResponse | ServingError | None, final: bool) -> None:
        if exchange.done:
            return
        if isinstance(response, ServingError):
            _fail(exchange, response)
            return
        if response is not None:
            answers.append(response)
        if len(answers) > 1 or (final and not answers):
            _fail(exchange, invalid("generate expects the model to give exactly one response; use generate_stream"))
        elif final:
            _reply(exchange, answers[0])

    _infer(server, exchange, on_response)


def generate_stream(server: InferenceServer, exchange: Exchange) -> None:
    """Each response as a server-sent event."""
    stream = EventStream(exchange)

    def on_response(response: InferenceResponse | ServingError | None, final: bool) -> None:
        if exchange.done:
            return
        if isinstance(response, ServingError):
            if not stream.started:
                exchange.fail(response)
                return
            stream.send({"error": text_of(response)})
        elif response is not None:
            try:
                stream.send(dump_json(_described(response)).decode())
            except ServingError as error:
                stream.send({"error": text_of(error)})
        if final:
            stream.end()

    _infer(server, exchange, on_response)


# -- requests ----------------------------------------------------------------------------------------------------------
def _infer(server: InferenceServer, exchange: Exchange, on_response: OnResponse) -> None:
    params = exchange.head.params
    model, version = params["model"], params.get("version", "")
    body = json_object(exchange)
    identifier, nested = body.pop("id", ""), body.pop("parameters", {})
    if not isinstance(identifier, str):
        raise invalid("expected 'id' to be a string")
    if not isinstance(nested, dict):
        raise invalid("expected 'parameters' to be a JSON object")
    inputs, parameters = by_name(server.model_config(model, version), nested | body)
    start(server, exchange, InferenceRequest(model, inputs, on_response, version, identifier, parameters=parameters))


def start(server: InferenceServer, exchange: Exchange, request: InferenceRequest) -> None:
    """Queue a request whose answers go to this exchange."""
    exchange.request = request
    exchange.body = exchange.binary = b""
    server.infer(request, "http", exchange.connection.transport, exchange.head.headers)


def by_name(config: ModelConfig, values: dict[str, Any]) -> tuple[dict[str, Tensor], Parameters]:
    """Tensors for the values that name inputs, parameters for the others; None is left out."""
    known = {tensor.name: tensor for tensor in config.input}
    inputs: dict[str, Tensor] = {}
    parameters: Parameters = {}
    for name, value in values.items():
        if value is None:
            continue
        if name in known:
            inputs[name] = _tensor(name, known[name].data_type, value, config.max_batch_size > 0)
        elif isinstance(value, _SCALARS):
            parameters[name] = value
        else:
            raise invalid(f"parameter '{name[:100]}' must be a string, a number or a boolean")
    return inputs, parameters


def _tensor(name: str, data_type: int, value: Any, batched: bool) -> NDArray[Any]:
    data = value if isinstance(value, list) else [value]
    if not all(isinstance(element, _SCALARS) for element in data):
        raise invalid(f"input '{name}' must be a string, a number, a boolean or a list of them")
    shape = (1, len(data)) if batched else (len(data),)
    return array_from_json(name, BY_CONFIG[data_type], shape, len(data), data)


# -- answers -----------------------------------------------------------------------------------------------------------
def _reply(exchange: Exchange, response: InferenceResponse) -> None:
    try:
        exchange.reply(Reply(200, (dump_json(_described(response)),), "application/json"))
    except Exception as error:
        exchange.fail(error)


def _fail(exchange: Exchange, error: ServingError) -> None:
    """Answer with the error; further responses are not wanted."""
    request = exchange.request
    exchange.fail(error)
    if request is not None:
        request.cancel()


def _described(response: InferenceResponse) -> dict[str, Any]:
    """Outputs of one element as a value, others as flat lists."""
    value: dict[str, Any] = {"id": response.id} if response.id else {}
    value |= {"model_name": response.model_name, "model_version": str(response.model_version)}
    value |= response.parameters
    for name, array in response.outputs.items():
        flat = array_to_json(name, datatype_of(array), array)
        if len(flat) == 1:
            value[name] = flat[0].item() if isinstance(flat[0], np.generic) else flat[0]
        else:
            value[name] = flat
    return value
