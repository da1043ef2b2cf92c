"""OpenAI-compatible /v1/models, /v1/completions and /v1/chat/completions.

For models that say with `slipway.text_generation` that they generate text: {"prompt_input", "output", "message", "reply"}.
`message` is how one chat message becomes part of the prompt, with {role} and {content}; `reply` follows the last one. Each
response of the model is the next piece of text. Sampling settings go to the inputs of their names, else into parameters.
Source: OpenAI API reference, Completions, Chat and Models.
"""

import codecs
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.errors import RepositoryError
from repository.model_config import get_parameter
from serving.errors import ServingError, invalid, not_found
from serving.frontends.event_stream import EventStream, text_of
from serving.frontends.http_exchange import Exchange
from serving.frontends.http_generate import by_name, start
from serving.frontends.http_handlers import json_object
from serving.frontends.http_message import Reply, error_reply, json_reply
from serving.request import InferenceRequest, InferenceResponse
from serving.server import InferenceServer

_SETTINGS = ("max_tokens", "temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True)
class TextGeneration:
    """What a model's `slipway.text_generation` says."""

    prompt_input: str = "text_input"
    output: str = "text_output"
    message: str = "{role}: {content}\n"
    reply: str = "assistant: "


def text_generation(config: ModelConfig) -> TextGeneration | None:
    """None where the model does not generate text; INVALID_ARG for a declaration that is wrong."""
    try:
        value = get_parameter(config, "text_generation")
    except RepositoryError as error:
        raise invalid(str(error)) from None
    if value is None:
        return None
    fields = TextGeneration.__dataclass_fields__
    if not isinstance(value, dict) or not all(key in fields and isinstance(text, str) for key, text in value.items()):
        raise invalid(f"slipway.text_generation must be an object of texts: {', '.join(fields)}")
    return TextGeneration(**value)


# -- routes ------------------------------------------------------------------------------------------------------------
def models(server: InferenceServer, exchange: Exchange) -> Reply:
    names = sorted({row.name for row in server.repository_index(ready=True).models})
    return json_reply({"object": "list", "data": [_model(name) for name in names if _generates(server, name)]})


def model(server: InferenceServer, exchange: Exchange) -> Reply:
    name = exchange.head.params["model"]
    if not _generates(server, name):
        return _failure(not_found(f"the model '{name}' does not exist or does not generate text"))
    return json_reply(_model(name))


def completions(server: InferenceServer, exchange: Exchange) -> Reply | None:
    return _answer(server, exchange, "text_completion", "cmpl", _prompt)


def chat_completions(server: InferenceServer, exchange: Exchange) -> Reply | None:
    return _answer(server, exchange, "chat.completion", "chatcmpl", _chat_prompt)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "slipway"}


def _generates(server: InferenceServer, name: str) -> bool:
    try:
        return text_generation(server.model_config(name)) is not None
    except ServingError:
        return False


# -- requests ----------------------------------------------------------------------------------------------------------
def _answer(
    server: InferenceServer,
    exchange: Exchange,
    kind: str,
    prefix: str,
    prompt_of: Callable[[dict[str, Any], TextGeneration], str],
) -> Reply | None:
    try:
        body = json_object(exchange)
        name = body.get("model")
        if not isinstance(name, str) or not name:
            raise invalid("expected 'model' to be the name of a model")
        exchange.connection.listener.authoriser.check("inference", exchange.head.headers, name)
        config = server.model_config(name)
        declared = text_generation(config)
        if declared is None:
            raise invalid(f"the model '{name}' does not generate text: it has no slipway.text_generation")
        if body.get("n") not in (None, 1):
            raise invalid("'n' must be 1")
        inputs, parameters = by_name(config, {declared.prompt_input: prompt_of(body, declared), **_settings(body)})
        answer = _Answer(exchange, declared, kind, prefix, name, bool(body.get("stream")))
        request = InferenceRequest(
            name, inputs, answer.on_response, id=answer.id, requested=(declared.output,), parameters=parameters
        )
        start(server, exchange, request)
    except ServingError as error:
        return _failure(error)
    return None


def _settings(body: dict[str, Any]) -> dict[str, Any]:
    values = {name: body[name] for name in _SETTINGS if body.get(name) is not None}
    if body.get("max_completion_tokens") is not None:
        values["max_tokens"] = body["max_completion_tokens"]
    if isinstance(values.get("stop"), list):
        values["stop"] = json.dumps(values["stop"])
    return values


def _prompt(body: dict[str, Any], declared: TextGeneration) -> str:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise invalid("expected 'prompt' to be one text")
    return prompt


def _chat_prompt(body: dict[str, Any], declared: TextGeneration) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("expected 'messages' to be a list of messages")
    return "".join(_chat_message(message, declared) for message in messages) + declared.reply


def _chat_message(message: Any, declared: TextGeneration) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise invalid("expected each message to have a 'role' and a 'content'")
    content = message.get("content")
    if isinstance(content, list):  # parts; those that are not text have no place in a prompt
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise invalid("expected the parts of a message's content to be texts")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise invalid("expected a message's content to be a text")
    before, found, after = declared.message.replace("{role}", message["role"]).partition("{content}")
    return before + content + after if found else before


# -- answers -----------------------------------------------------------------------------------------------------------
class _Answer:
    """Collects the model's pieces of text, or passes them on as they come."""

    def __init__(
        self, exchange: Exchange, declared: TextGeneration, kind: str, prefix: str, model_name: str, streams: bool
    ) -> None:
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self._exchange = exchange
        self._output = declared.output
        self._kind = kind
        self._chat = kind == "chat.completion"
        self._model = model_name
        self._created = int(time.time())
        self._stream = EventStream(exchange) if streams else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._reason = "stop"

    def on_response(self, response: InferenceResponse | ServingError | None, final: bool) -> None:
        if self._exchange.done:
            return
        if isinstance(response, ServingError):
            self._fail(response)
            return
        text = "" if response is None else self._text(response)
        if final:
            text += self._decoder.decode(b"", True)
        if self._stream is None:
            self._pieces.append(text)
        elif text:
            self._stream.send(self._piece(text, None))
        if final:
            self._end()

    def _text(self, response: InferenceResponse) -> str:
        reason = response.parameters.get("finish_reason")
        if isinstance(reason, str):
            self._reason = reason
        array = response.outputs.get(self._output)
        if array is None:
            return ""
        parts = [one if isinstance(one, bytes) else str(one).encode() for one in array.ravel().tolist()]
        return self._decoder.decode(b"".join(parts))

    def _end(self) -> None:
        if self._stream is not None:
            self._stream.send(self._piece("", self._reason))
            self._stream.send("[DONE]")
            self._stream.end()
            return
        text = "".join(self._pieces)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self._reason}
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        self._exchange.reply(json_reply(self._envelope(self._kind, choice)))

    def _piece(self, text: str, reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if not self._chat:
            return self._envelope(self._kind, choice | {"text": text})
        delta = {"role": "assistant", "content": text} if not self._pieces else {"content": text}
        self._pieces.append(text)
        return self._envelope("chat.completion.chunk", choice | {"delta": {} if reason else delta})

    def _envelope(self, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "choices": [choice]}

    def _fail(self, error: ServingError) -> None:
        stream, request = self._stream, self._exchange.request
        if stream is None or not stream.started:
            self._exchange.reply(_failure(error))
        else:
            stream.send({"error": {"message": text_of(error), "type": "server_error", "code": error.code.value}})
            stream.end()
        if request is not None:
            request.cancel()


def _failure(error: ServingError) -> Reply:
    """The status of the error in OpenAI's form."""
    plain = error_reply(error)
    kind = "invalid_request_error" if plain.status < 500 else "server_error"
    body = {"error": {"message": text_of(error), "type": kind, "param": None, "code": error.code.value}}
    return json_reply(body, plain.status, plain.headers)
