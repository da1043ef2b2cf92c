"""`slipway.text_generation`: the way in which the OpenAI-compatible routes call a model that generates text.

    {"prompt_input": "text_input", "output": "text_output", "begin": "", "message": "{role}: {content}\\n",
     "reply": "assistant: "}

are the defaults. A chat becomes a prompt: `begin`, then `message` for each message of the chat, then `reply`. `message` may be
an object with a text for each role. A model that builds its prompt itself declares the input that takes the messages as JSON:
{"messages_input": ...}.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import get_parameter
from repository.core.json_types import Json, JsonObject

PARAMETER = "text_generation"


@dataclass(frozen=True, slots=True)
class TextGeneration:
    """See the module's docstring."""

    prompt_input: str = "text_input"
    output: str = "text_output"
    begin: str = ""
    message: str | Mapping[str, str] = "{role}: {content}\n"
    reply: str = "assistant: "
    messages_input: str = ""


def text_generation(config: ModelConfig) -> TextGeneration | None:
    """Return the declaration of a validated configuration, or None if the model does not generate text."""
    value = get_parameter(config, PARAMETER)
    return _declared(value) if isinstance(value, dict) else None


def problem(value: Json, config: ModelConfig) -> str:
    """Return the mistake in a declaration; "" if there is none. Tensors are checked if the configuration has some."""
    fields = TextGeneration.__dataclass_fields__
    if not isinstance(value, dict):
        return 'expected an object such as {"prompt_input": "text_input", "output": "text_output"}'
    unknown = sorted(value.keys() - fields.keys())
    if unknown:
        return f"expected {', '.join(fields)}, not '{unknown[0]}'"
    for name, text in value.items():
        if not isinstance(text, str) and name != "message":
            return f"expected '{name}' to be a text, not {text!r}"
    return _message_problem(value.get("message", "{content}")) or _tensor_problem(value, config)


def _message_problem(message: Json) -> str:
    templates = list(message.values()) if isinstance(message, dict) and message else [message]
    texts = [template for template in templates if isinstance(template, str)]
    if len(texts) < len(templates):
        return "expected 'message' to be a text, or an object with a text for each role"
    if not all("{content}" in text for text in texts):
        return "expected each 'message' to say where its {content} goes"
    return ""


def _declared(value: JsonObject) -> TextGeneration:
    """Return the declaration with its defaults. With `messages_input`, the default of `prompt_input` is ""."""
    no_prompt: JsonObject = {"prompt_input": ""}
    fields = no_prompt | value if value.get("messages_input") else value
    return TextGeneration(**cast("dict[str, str]", fields))


def _tensor_problem(value: JsonObject, config: ModelConfig) -> str:
    declared = _declared(value)
    wanted = [("prompt_input", declared.prompt_input), ("messages_input", declared.messages_input)]
    problems = [_text_problem(field, name, "input", config.input) for field, name in wanted if name]
    problems.append(_text_problem("output", declared.output, "output", config.output))
    return next(filter(None, problems), "")


def _text_problem(field: str, name: str, kind: str, tensors: Iterable[mc.ModelInput | mc.ModelOutput]) -> str:
    known = {tensor.name: tensor for tensor in tensors}
    tensor = known.get(name)
    if tensor is None:
        return f"'{field}': the model has no {kind} '{name}'" if known else ""
    if tensor.data_type not in (mc.TYPE_STRING, mc.TYPE_INVALID):
        return f"'{field}': expected {kind} '{name}' to be TYPE_STRING, not {mc.DataType.Name(tensor.data_type)}"
    if kind == "input" and any(dim > 1 for dim in tensor.dims):
        return f"'{field}': expected input '{name}' to hold one text, but its dims are {list(tensor.dims)}"
    return ""
