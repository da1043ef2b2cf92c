"""Checks a request to the OpenAI-compatible routes: its prompts, the number of answers to each, and the sampling settings.

A request with an unsupported field is refused. Source: OpenAI API reference, Completions and Chat.
"""

import json
from dataclasses import dataclass

import orjson

from repository.config.text_generation import TextGeneration
from serving.frontends.openai.errors import WrongField
from serving.frontends.rest.json_body import JsonObject

MAX_CHOICES = 128  # answers to one request: the number of prompts times `n`
MAX_STOPS = 16
MAX_STOP = 256  # characters

_RANGES: dict[str, tuple[float, float]] = {"temperature": (0, 2), "top_p": (0, 1)}
_RANGES |= {"presence_penalty": (-2, 2), "frequency_penalty": (-2, 2)}
_INTEGERS = {"max_tokens": 0, "max_completion_tokens": 0, "seed": -(1 << 63)}  # setting -> its lowest value
_UNSUPPORTED = ("logprobs", "top_logprobs", "logit_bias", "suffix", "tools", "functions", "audio")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked request for completions. prompts: texts for the model's input `input_name`; each gets `n` answers."""

    input_name: str
    prompts: tuple[str, ...]
    n: int
    settings: dict[str, "int | float | str"]  # max_completion_tokens is renamed to max_tokens
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    user: str  # the end user; "" if the request has none
    echo: bool = False


def model_of(body: JsonObject) -> str:
    """Return the id of the requested model."""
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise WrongField("model", "expected 'model' to be the name of a model")
    return name


def read_completion(body: JsonObject, declared: TextGeneration) -> CompletionRequest:
    """Check the body of a request to /v1/completions. declared: how the model generates text. Raises WrongField."""
    if not declared.prompt_input:
        raise WrongField("prompt", f"the model '{model_of(body)}' takes messages only: use /v1/chat/completions")
    prompt = body.get("prompt")
    given: list[object] = prompt if isinstance(prompt, list) else [prompt]
    prompts = tuple(one for one in given if isinstance(one, str) and one)
    if not given or len(prompts) != len(given):
        raise WrongField("prompt", "expected 'prompt' to be a text or a list of texts, none of them empty")
    if body.get("best_of") not in (None, body.get("n") or 1):
        raise WrongField("best_of", "'best_of' must be the same as 'n': every answer is returned")
    return _read_completion(body, declared.prompt_input, prompts, _flag(body, "echo"))


def read_chat(body: JsonObject, declared: TextGeneration) -> CompletionRequest:
    """Check the body of a request to /v1/chat/completions, as `read_completion` does."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise WrongField("messages", "expected 'messages' to be a list of messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise WrongField("messages", "expected each message to have a 'role' and a 'content'")
    if declared.messages_input:
        return _read_completion(body, declared.messages_input, (_as_json(messages),))
    prompt = "".join(
        (declared.begin, *(_message(one["role"], one.get("content"), declared) for one in messages), declared.reply)
    )
    return _read_completion(body, declared.prompt_input, (prompt,))


def _as_json(messages: list[object]) -> str:
    try:
        return orjson.dumps(messages).decode()
    except TypeError:  # orjson's error for values that are nested too deep
        raise WrongField("messages", "'messages' are nested too deep") from None


def _message(role: str, content: object, declared: TextGeneration) -> str:
    """Return the text of one message, made by the prompt template."""
    if isinstance(content, list):  # a list of parts, all of which must be texts
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise WrongField("messages", "expected the parts of a message's content to be texts")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise WrongField("messages", "expected a message's content to be a text")
    template = declared.message if isinstance(declared.message, str) else declared.message.get(role)
    if template is None:
        raise WrongField("messages", f"the model knows the roles {', '.join(declared.message)}, not '{role[:40]}'")
    before, _, after = template.replace("{role}", role).partition("{content}")
    return before + content + after


def _read_completion(
    body: JsonObject, input_name: str, prompts: tuple[str, ...], echo: bool = False
) -> CompletionRequest:
    _refuse_unsupported(body)
    n = 1 if body.get("n") is None else body["n"]
    if type(n) is not int or not 1 <= n * len(prompts) <= MAX_CHOICES:
        raise WrongField("n", f"expected 'n' to be a number that asks for 1 to {MAX_CHOICES} answers in all")
    stream = _flag(body, "stream")
    return CompletionRequest(
        input_name=input_name,
        prompts=prompts,
        n=n,
        settings=_settings(body),
        stops=_stops(body.get("stop")),
        stream=stream,
        include_usage=_include_usage(body, stream),
        user=_user(body.get("user")),
        echo=echo,
    )


def _refuse_unsupported(body: JsonObject) -> None:
    for name in _UNSUPPORTED:
        if body.get(name):
            raise WrongField(name, f"'{name}' is not supported")
    wanted = body.get("response_format")
    if wanted is not None and wanted != {"type": "text"}:
        raise WrongField("response_format", "'response_format' must be text: the model's answer is not constrained")


def _flag(body: JsonObject, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise WrongField(name, f"expected '{name}' to be true or false")
    return bool(value)


def _include_usage(body: JsonObject, stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not stream or not isinstance(options, dict):
        raise WrongField("stream_options", "'stream_options' must be an object, and needs a 'stream' of true")
    return _flag(options, "include_usage")


def _user(value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise WrongField("user", "expected 'user' to be a text")
    return value or ""


def _stops(value: object) -> tuple[str, ...]:
    stops = [] if value is None else value if isinstance(value, list) else [value]
    if len(stops) > MAX_STOPS or not all(isinstance(one, str) and 0 < len(one) <= MAX_STOP for one in stops):
        raise WrongField("stop", f"expected 'stop' to be at most {MAX_STOPS} texts of 1 to {MAX_STOP} characters")
    return tuple(stops)


def _settings(body: JsonObject) -> dict[str, "int | float | str"]:
    """Return the sampling settings for the model. A list of stop sequences becomes a JSON text, because a parameter cannot be a
    list."""
    found: dict[str, int | float | str] = {}
    for name, lowest in _INTEGERS.items():
        value = body.get(name)
        if value is not None:
            if type(value) is not int or not lowest <= value < 1 << 63:
                raise WrongField(name, f"expected '{name}' to be a whole number of at least {lowest}")
            found[name] = value
    for name, (low, high) in _RANGES.items():
        value = body.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise WrongField(name, f"expected '{name}' to be a number from {low} to {high}")
            found[name] = value
    if "max_completion_tokens" in found:
        found["max_tokens"] = found.pop("max_completion_tokens")
    stop = body.get("stop")  # `_stops` checks it
    if stop:
        found["stop"] = json.dumps(stop) if isinstance(stop, list) else str(stop)
    return found
