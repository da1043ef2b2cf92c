"""POST .../generate and .../generate_stream: inputs and outputs are members of a JSON object.

A member with the name of an input becomes that tensor. Any other member becomes a request parameter. A single value is one
element; a list has the elements in row-major order. Source: Triton, docs/protocol/extension_generate.md.
"""

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import TYPE_BOOL, TYPE_STRING, ModelConfig, ModelInput

from serving.core.datatypes import BY_CONFIG, Tensor, datatype_of
from serving.core.errors import ServingError, invalid
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.core.request import InferenceRequest, Parameters
from serving.core.response import Answer, InferenceResponse
from serving.frontends.http1.event_stream import EventStream
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import STATUS, Reply, encodable
from serving.frontends.rest.infer import submit
from serving.frontends.rest.json_body import JsonObject, with_json
from serving.frontends.rest.json_input import MAX_PARAMETERS, array_from_json, check_count
from serving.frontends.rest.json_output import dump_json, flat_values
from serving.server.inference_server import InferenceServer

with_names_once = partial(with_json, names_once=True)

_SCALARS = (str, int, float, bool)
_KINDS = {TYPE_STRING: ("string", str), TYPE_BOOL: ("boolean", bool)}  # datatype -> the type of its JSON values


@with_names_once
def generate(server: InferenceServer, exchange: Exchange, body: JsonObject) -> None:
    """Answer with the model's only response."""
    answers: list[InferenceResponse] = []

    def on_response(response: Answer, final: bool) -> None:
        if exchange.done:
            return
        if isinstance(response, ServingError):
            exchange.fail(response)
            return
        if response is not None:
            answers.append(response)
        if len(answers) > 1 or (final and not answers):
            exchange.fail(
                invalid("generate expects model to produce exactly 1 response, use generate_stream for others")
            )
        elif final:
            _reply(exchange, answers[0])

    start(server, exchange, InFlightRequest(_request(server, exchange, body), CallbackResponder(on_response)))


@with_names_once
def generate_stream(server: InferenceServer, exchange: Exchange, body: JsonObject) -> None:
    """Answer with each response or error of the model as a server-sent event. A refused request gets a plain error."""
    stream = EventStream(exchange)

    def on_response(response: Answer, final: bool) -> None:
        if exchange.done:
            return
        if response is not None:
            _send(stream, response)
        if final:
            stream.end()

    responder = CallbackResponder(on_response, stream.flow)
    start(server, exchange, InFlightRequest(_request(server, exchange, body), responder))


# -- requests ----------------------------------------------------------------------------------------------------------
def _request(server: InferenceServer, exchange: Exchange, body: JsonObject) -> InferenceRequest:
    params = exchange.route.params
    model, version = params["model"], params.get("version", "")
    identifier, nested = body.pop("id", ""), body.pop("parameters", {})
    if not isinstance(identifier, str):
        raise invalid("expected 'id' to be a string")
    if not isinstance(nested, dict):
        raise invalid("Expected JSON object for keyword: 'parameters'")
    check_count("'parameters'", nested, MAX_PARAMETERS)
    if bad := next((name for name, value in nested.items() if isinstance(value, dict)), None):
        raise invalid(
            f"Converting keyword: 'parameters': parameter '{bad[:100]}' has invalid type. It must be no object"
        )
    inputs, parameters = by_name(server.answering_config(model, version), nested | body)
    return InferenceRequest(model, inputs, version, identifier, parameters=parameters)


def start(server: InferenceServer, exchange: Exchange, *requests: InFlightRequest) -> None:
    """Submit requests that have just been decoded. This exchange gets their answers."""
    submit(server, exchange, exchange.received() if server.tracing else None, *requests)


def by_name(config: ModelConfig, values: JsonObject) -> tuple[dict[str, Tensor], Parameters]:
    """Return the values that have the names of inputs as tensors, and the others as parameters. Values of None are left out."""
    known = {tensor.name: tensor for tensor in config.input}
    inputs: dict[str, Tensor] = {}
    parameters: Parameters = {}
    for name, value in values.items():
        if value is None:
            continue
        if name in known:
            inputs[name] = _tensor(name, known[name], value, config.max_batch_size > 0)
        elif isinstance(value, _SCALARS):
            parameters[name] = value
        else:
            raise invalid(f"parameter '{name[:100]}' has invalid type. It must be a string, a number or a boolean")
    return inputs, parameters


def _tensor(name: str, tensor: ModelInput, value: object, batched: bool) -> NDArray[Any]:
    data = value if isinstance(value, list) else [value]
    wanted = _KINDS.get(tensor.data_type)
    if wanted is not None and not all(isinstance(element, wanted[1]) for element in data):
        raise invalid(f"attempt to access JSON non-{wanted[0]} as {wanted[0]}: input '{name}' takes no other")
    if not all(isinstance(element, _SCALARS) for element in data):
        raise invalid(f"input '{name}' must be a string, a number, a boolean or a list of them")
    dims = [-1, *tensor.dims] if batched and not tensor.is_shape_tensor else list(tensor.dims)
    shape = _shape(name, dims, len(data))
    return array_from_json(name, BY_CONFIG[tensor.data_type], shape, len(data), data)


def _shape(name: str, dims: list[int], count: int) -> tuple[int, ...]:
    """Return a shape for `count` elements. The innermost variable dim takes the elements that the fixed dims leave; other
    variable dims are 1."""
    left, rest = divmod(count, math.prod(dim for dim in dims if dim > 0))
    variable = [index for index, dim in enumerate(dims) if dim < 0]
    if rest or (left != 1 and not variable):
        raise invalid(f"input '{name}' of shape {dims} cannot hold {count} elements")
    for index in variable:
        dims[index] = left if index == variable[-1] else 1
    return tuple(dims)


# -- answers -----------------------------------------------------------------------------------------------------------
def _reply(exchange: Exchange, response: InferenceResponse) -> None:
    try:
        exchange.reply(Reply(200, (dump_json(_described(response)),), "application/json"))
    except Exception as error:
        exchange.fail(error)


def _send(stream: EventStream, response: InferenceResponse | ServingError) -> None:
    error = response if isinstance(response, ServingError) else None
    if isinstance(response, InferenceResponse):
        stream.count(response)
        try:
            stream.send(dump_json(_described(response)).decode())
        except ServingError as unfit:
            error = unfit
    if error is not None:
        stream.send({"error": encodable(error.message)}, STATUS[error.code])


def _described(response: InferenceResponse) -> JsonObject:
    """Return a response as JSON. Outputs of one element become a value, other outputs a flat list."""
    value: JsonObject = {"id": response.id} if response.id else {}
    value |= {"model_name": response.model_name, "model_version": str(response.model_version)}
    value |= response.parameters
    for name, array in response.outputs.items():
        flat = flat_values(name, datatype_of(array), array)
        if len(flat) == 1:
            value[name] = flat[0].item() if isinstance(flat[0], np.generic) else flat[0]
        else:
            value[name] = flat
    return value
