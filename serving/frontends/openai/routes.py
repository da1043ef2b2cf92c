"""OpenAI-compatible /v1/models, /v1/completions and /v1/chat/completions, for models with `slipway.text_generation`.

That parameter describes how a model generates text (repository/config/text_generation.py). Each answer to each prompt is one
request to the model. A sampling setting becomes the input with its name, or a parameter if there is no such input. A model with
inputs of the vLLM or TensorRT-LLM backend also gets these.
Source: OpenAI API reference; Triton, python/openai.
"""

import json
from collections.abc import Callable, Mapping

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.release import DEFAULT_ALIAS
from repository.config.text_generation import TextGeneration, text_generation
from serving.core.errors import ServingError, invalid, not_found
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.core.request import InferenceRequest
from serving.core.rollout_arm import arm_of
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply, json_reply
from serving.frontends.openai.completion import INPUT_TOKENS, OUTPUT_TOKENS, Choice, Completion
from serving.frontends.openai.request import CompletionRequest, model_of, read_chat, read_completion
from serving.frontends.rest.generate import by_name, start
from serving.frontends.rest.json_body import JsonObject, with_json
from serving.server.inference_server import InferenceServer


# -- routes ------------------------------------------------------------------------------------------------------------
def models(server: InferenceServer, exchange: Exchange) -> Reply:
    """List the models that generate text, and their aliases."""
    rows = server.known_models()
    names = sorted({(row.name, alias) for row in rows for alias in ("", *row.aliases)})
    return json_reply({"object": "list", "data": [_model(*one) for one in names if _generates(server, *one)]})


def model(server: InferenceServer, exchange: Exchange) -> Reply:
    asked = exchange.route.params["model"]
    name, version = _identify(server, asked)
    if not _generates(server, name, version):
        raise not_found(f"the model '{asked}' does not exist or does not generate text")
    return json_reply(_model(name, version))


@with_json
def completions(server: InferenceServer, exchange: Exchange, body: JsonObject) -> None:
    _complete(server, exchange, body, read_completion, chat=False)


@with_json
def chat_completions(server: InferenceServer, exchange: Exchange, body: JsonObject) -> None:
    _complete(server, exchange, body, read_chat, chat=True)


def _model(name: str, version: str) -> JsonObject:
    return {"id": _id(name, version), "object": "model", "created": 0, "owned_by": "slipway"}


def _id(name: str, version: str) -> str:
    return f"{name}@{version}" if version else name


def _identify(server: InferenceServer, asked: str) -> tuple[str, str]:
    """Return the model and version ("" for none) of an id: MODEL, or MODEL@VERSION with a number or an alias. A model's name
    may contain "@", too."""
    name, at, version = asked.rpartition("@")
    return (asked, "") if not at or server.knows_model(asked) else (name, version)


def _generates(server: InferenceServer, name: str, version: str) -> bool:
    """Return whether a model takes requests and generates text. A model that its first request loads counts, too."""
    try:
        return text_generation(server.model_config(name, version)) is not None
    except ServingError:
        return False


# -- requests ----------------------------------------------------------------------------------------------------------
def _complete(
    server: InferenceServer,
    exchange: Exchange,
    body: JsonObject,
    read: Callable[[JsonObject, TextGeneration], CompletionRequest],
    chat: bool,
) -> None:
    name, version = _identify(server, model_of(body))
    exchange.pipeline.context.authoriser.check("inference", exchange.head.headers, name)
    config = server.answering_config(name, version)
    declared = text_generation(config)
    if declared is None:
        raise invalid(f"the model '{name}' does not generate text: it has no slipway.text_generation")
    asked = read(body, declared)
    shared = version == DEFAULT_ALIAS and server.rollout(name) is not None
    answering_version = str(server.resolved_version(name, version)) if version and not shared else version
    completion = Completion(exchange, asked, _id(name, answering_version), declared.output, chat)
    requests = [_request(config, answering_version, declared, completion, choice) for choice in completion.choices]
    for request in requests:
        request.made_for(requests[0])
    start(server, exchange, *requests)
    arm = arm_of(requests[0])
    if arm is not None and arm.version:
        completion.model = _id(name, arm.version)


def _request(
    config: ModelConfig, version: str, declared: TextGeneration, completion: Completion, choice: Choice
) -> InFlightRequest:
    asked = completion.asked
    prompt = asked.prompts[choice.index // asked.n]
    settings = dict(asked.settings)
    if "seed" in settings:  # different for each answer, because otherwise all answers to a prompt would be the same
        settings["seed"] = int(settings["seed"]) + choice.index % asked.n
    known = {tensor.name for tensor in config.input}
    extra = {key: value for key, value in _backend_inputs(asked, settings).items() if key in known}
    user = {"user": asked.user or None}
    inputs, parameters = by_name(config, {asked.input_name: prompt} | user | settings | extra)
    counts = [output.name for output in config.output if output.name in (INPUT_TOKENS, OUTPUT_TOKENS)]
    requested = (declared.output, *counts)
    request = InferenceRequest(
        config.name, inputs, version, completion.id, requested_outputs=requested, parameters=parameters
    )
    flow = completion.stream.flow if completion.stream is not None else None
    return InFlightRequest(request, CallbackResponder(choice.on_response, flow))


def _backend_inputs(asked: CompletionRequest, settings: Mapping[str, int | float | str]) -> JsonObject:
    """Return the additional inputs of models for the vLLM and TensorRT-LLM backends. Some of them disable the backend's echo of
    the prompt, because `Choice` echoes it."""
    return {
        "stream": asked.stream,
        "sampling_parameters": json.dumps({**settings} | ({"stop": list(asked.stops)} if asked.stops else {})),
        "stop_words": list(asked.stops) or None,
        "exclude_input_in_output": True,
        "sampling_param_exclude_input_from_output": True,
        f"return_{INPUT_TOKENS}": True,
        f"return_{OUTPUT_TOKENS}": True,
    }
