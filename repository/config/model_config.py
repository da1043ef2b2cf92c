"""Converts between config.pbtxt and the ModelConfig message, which is the configuration object everywhere.

The message is from `tritonclient`, and config.pbtxt is in protobuf's text format. Settings without a field in Triton are JSON
values in `parameters`, under `slipway.<name>`, which stock Triton ignores.
"""

import difflib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import json as config_json
from repository.config.backends import BACKEND_OF_FILENAME, PLATFORMS
from repository.core.errors import InvalidConfig
from repository.core.json_types import Json
from repository.core.layout import CONFIG_FILE, CONFIGS_FOLDER, OVERLAY_FILE

MAX_CONFIG_BYTES = 4 << 20
# The most values in a configuration: numbers, texts and messages, and each element of a list or map. An input has four or five.
MAX_VALUES = 65_536
SLIPWAY_PREFIX = "slipway."

# The fields that no version may set for itself: they belong to the model.
_NOT_IN_OVERLAY = ("name", "platform", "backend", "version_policy")
OWN_SETTINGS = "version_settings"  # the parameter with settings of single versions, see `version_settings`
_PARAMETERS_NOT_IN_OVERLAY = ("slipway.release", "slipway.aliases", "slipway.traffic", SLIPWAY_PREFIX + OWN_SETTINGS)


def parse(text: str) -> ModelConfig:
    """Return the message of a text. Raises InvalidConfig, with line, column and field, if the text has mistakes."""
    config = ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise _explained(error, text) from None
    _refuse_odd_values(config)
    return config


def parse_bytes(content: bytes) -> ModelConfig:
    """Parse a file's content. See `parse`."""
    return parse(_decoded(content))


def parse_file(path: Path) -> ModelConfig:
    """Parse a file of at most MAX_CONFIG_BYTES. See `parse`."""
    return parse_bytes(_content(path))


def format(config: ModelConfig) -> str:
    """Return the text of a message: fields in the order of Triton's model_config.proto, lists of numbers on one line."""
    text: str = text_format.MessageToString(
        config, as_utf8=True, use_short_repeated_primitives=True, use_index_order=True
    )
    return text


def parse_json(text: str) -> ModelConfig:
    """Return the message of a JSON text, the `config` parameter of Triton's repository load."""
    config = ModelConfig()
    if len(text) > MAX_CONFIG_BYTES:
        raise InvalidConfig(f"the configuration is larger than {MAX_CONFIG_BYTES >> 20} MiB")
    try:
        config_json.parse_into(config, text)
    except config_json.BadJson as error:
        raise InvalidConfig(f"the configuration is not a ModelConfig in JSON: {error}") from None
    _refuse_odd_values(config)
    return config


def _refuse_odd_values(config: ModelConfig) -> None:
    """Raise InvalidConfig for too many values, and for a number that its enumeration does not have."""
    count = values_of(config)
    if count > MAX_VALUES:
        raise InvalidConfig(f"the configuration has {count} values; expected at most {MAX_VALUES}")
    _refuse_unknown_numbers(config)


def values_of(message: Message) -> int:
    """Return the number of values in a message: the message itself, its numbers and strings, and the values of its messages."""
    count = 1
    for field, value in message.ListFields():
        if field.message_type is None:
            count += len(value) if field.is_repeated else 1
        elif isinstance(value, Mapping) and not _maps_to_messages(field):
            count += 2 * len(value)
        else:
            count += sum(map(values_of, _messages(field, value)))
    return count


def _refuse_unknown_numbers(message: Message) -> None:
    """Raise InvalidConfig for a number that its enumeration does not have, because the text may give any number."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in _messages(field, value):
                _refuse_unknown_numbers(inner)
        elif field.enum_type is not None:
            for number in value if field.is_repeated else [value]:
                if number not in field.enum_type.values_by_number:
                    raise InvalidConfig(f"unknown value {number} of '{field.name}'", field=field.name)


def _messages(field: FieldDescriptor, value: Message | Sequence[Message] | Mapping[str, Message]) -> Iterable[Message]:
    """Return the messages in a field's value: one, a list, or a map of them."""
    if isinstance(value, Message):
        return [value]
    if isinstance(value, Mapping):
        return value.values() if _maps_to_messages(field) else ()
    return value


def _maps_to_messages(field: FieldDescriptor) -> bool:
    entry = field.message_type
    return entry is not None and entry.fields_by_name["value"].message_type is not None


def read(model_dir: Path, version: int | None = None, custom: str = "") -> ModelConfig:
    """Return a model's configuration, with the overlay of `version` merged in if that version has one.

    Without a config.pbtxt the configuration contains only the name, and the server completes the rest from the model file.
    Only a path where nothing exists counts as no config.pbtxt: a folder, a pipe or a dangling link there raises InvalidConfig.
    An empty name becomes the name of the folder. `custom` names a file in configs/ that replaces config.pbtxt, if the model
    has that file.
    """
    path = _chosen(model_dir, custom)
    config = parse_file(path) if os.path.lexists(path) else ModelConfig()
    if version is not None:
        overlay = model_dir / str(version) / OVERLAY_FILE
        if os.path.lexists(overlay):
            merge_overlay(config, parse_file(overlay))
    if not config.name:
        config.name = model_dir.name
    return config


def has_config(model_dir: Path, custom: str = "") -> bool:
    """Return whether there is a configuration for `read` to read."""
    return os.path.lexists(_chosen(model_dir, custom))


def _chosen(model_dir: Path, custom: str) -> Path:
    path = model_dir / CONFIGS_FOLDER / f"{custom}.pbtxt"
    return path if custom and path.is_file() else model_dir / CONFIG_FILE


def read_text(model_dir: Path) -> str | None:
    """Return the text of config.pbtxt as a person wrote it, or None if there is no such file."""
    path = model_dir / CONFIG_FILE
    return _decoded(_content(path)) if os.path.lexists(path) else None


def merge_overlay(config: ModelConfig, overlay: ModelConfig) -> None:
    """Merge the settings of one version into those of the model: numbers and lists replace, messages and maps merge."""
    for field in _NOT_IN_OVERLAY:
        if _is_set(overlay, field):
            raise InvalidConfig(
                f"a version's settings may not set '{field}', which belongs to the whole model", field=field
            )
    for key in _PARAMETERS_NOT_IN_OVERLAY:
        if key in overlay.parameters:
            field = f'parameters["{key}"]'
            raise InvalidConfig(
                f"a version's settings may not set '{key}', which belongs to the whole model", field=field
            )
    _overlay(config, overlay)


def backend_of(config: ModelConfig) -> str:
    """Return the backend that a configuration names, directly or by its platform; "" for an ensemble or if it names none."""
    return config.backend or PLATFORMS.get(config.platform, "")


def runner(config: ModelConfig, version_dir: Path) -> tuple[str, str]:
    """Return (backend, file name) of a version, from its configuration, and otherwise from the files in its folder.

    The backend is "" if neither names one. The file name is "" if none is configured and the folder has no default file of
    the backend.
    """
    backend = backend_of(config)
    filename = config.default_model_filename or next(
        (
            name
            for name, owner in BACKEND_OF_FILENAME.items()
            if backend in ("", owner) and (version_dir / name).exists()
        ),
        "",
    )
    return backend or BACKEND_OF_FILENAME.get(filename, ""), filename


def is_ensemble(config: ModelConfig) -> bool:
    return bool(config.platform == "ensemble" or config.WhichOneof("scheduling_choice") == "ensemble_scheduling")


def get_parameter(config: ModelConfig, name: str, default: Json = None) -> Json:
    """Return the JSON value of `slipway.<name>`; the default if the parameter is absent."""
    key = SLIPWAY_PREFIX + name
    if key not in config.parameters:
        return default
    try:
        value: Json = json.loads(config.parameters[key].string_value)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(
            f"the value of '{key}' is not JSON{_json_mistake(error)}", field=f'parameters["{key}"]'
        ) from None
    return value


def _json_mistake(error: Exception) -> str:
    """Return the place of a mistake in JSON and the correct form, as the end of a sentence; "" if the place is unknown."""
    if not isinstance(error, json.JSONDecodeError):
        return ""
    what = error.msg[:1].lower() + error.msg[1:]
    return f""" (character {error.pos + 1}: {what}); write it between single quotes, string_value: '"text"' or '{{"key": 1}}'"""


def _content(path: Path) -> bytes:
    try:
        # Without O_NONBLOCK, opening a named pipe could block forever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidConfig(f"{path.name} is no plain file; put a file in its place, or remove it")
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise InvalidConfig(f"{path.name} cannot be read: {error.strerror}") from None
    if len(content) > MAX_CONFIG_BYTES:
        raise InvalidConfig(f"{path.name} is larger than {MAX_CONFIG_BYTES >> 20} MiB")
    return content


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidConfig(f"line {line}: the text is not UTF-8", line=line, column=1) from None


def _is_set(message: Message, field: str) -> bool:
    return any(descriptor.name == field for descriptor, _ in message.ListFields())


def _overlay(target: Message, source: Message) -> None:
    for field, value in source.ListFields():
        if field.is_repeated:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                _overlay_map(getattr(target, field.name), value, field)
            else:
                target.ClearField(field.name)
                getattr(target, field.name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(target, field.name).SetInParent()
            _overlay(getattr(target, field.name), value)
        else:
            setattr(target, field.name, value)


def _overlay_map(target: MutableMapping[str, Message], source: Mapping[str, Message], field: FieldDescriptor) -> None:
    for key, value in source.items():
        if _maps_to_messages(field):
            target[key].CopyFrom(value)
        else:  # the field is a map of texts
            target[key] = value


_UNKNOWN_FIELD = re.compile(r'Message type "inference\.(?P<message>[\w.]+)" has no field named "(?P<field>\w+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "inference\.(?P<enum>[\w.]+)" has no value named (?P<value>\w+)')
_TWICE = re.compile(r'should not have multiple "(?P<field>\w+)" fields')
_ONEOF = re.compile(r'Field "(?P<field>[\w.]+)" is specified along with field "(?P<other>[\w.]+)"')
_POSITION = re.compile(r"^\d+:\d+ : ")
_QUOTED_LINE = re.compile(r"^'.*': ", re.DOTALL)


def _explained(error: text_format.ParseError, text: str) -> InvalidConfig:
    """Return the parser's error as one plain sentence."""
    line, column = error.GetLine() or 0, error.GetColumn() or 0
    message, field = _sentence(str(error))
    if line and text.split("\n")[line - 1][: column - 1].endswith('"'):  # usually JSON between double quotes
        message += """; a double quote ends a text: put single quotes around one with quotes inside, '{"key": 1}'"""
    place = f"line {line}, column {column}: " if line else ""
    return InvalidConfig(place + message, line=line, column=column, field=field)


def _sentence(text: str) -> tuple[str, str]:
    """Return (sentence, field) for a message of protobuf's parser."""
    if found := _UNKNOWN_FIELD.search(text):
        known = _fields_of(found["message"])
        return f"unknown field '{found['field']}' in {found['message']}{_suggest(found['field'], known)}", found[
            "field"
        ]
    if found := _UNKNOWN_VALUE.search(text):
        known = _values_of(found["enum"])
        return f"unknown value '{found['value']}'; expected one of {', '.join(known)}", ""
    if found := _TWICE.search(text):
        return f"'{found['field']}' is given more than once", found["field"]
    if found := _ONEOF.search(text):
        field, other = found["field"].rpartition(".")[2], found["other"].rpartition(".")[2]
        return f"'{field}' cannot be given together with '{other}'", field
    plain = _QUOTED_LINE.sub("", _POSITION.sub("", text)).rstrip(".")
    return plain[:1].lower() + plain[1:], ""


def _suggest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; it knows {', '.join(known)}"


def _fields_of(message: str) -> list[str]:
    """Return the fields of a message of model_config.proto, named without the package, such as "ModelEnsembling.Step"."""
    outer, *inner = message.split(".")
    descriptor = ModelConfig.DESCRIPTOR.file.message_types_by_name[outer]
    for name in inner:
        descriptor = descriptor.nested_types_by_name[name]
    return [field.name for field in descriptor.fields]


def _values_of(enum: str) -> list[str]:
    *outer, name = enum.split(".")
    types = ModelConfig.DESCRIPTOR.file
    if not outer:
        return [value.name for value in types.enum_types_by_name[name].values]
    descriptor = types.message_types_by_name[outer[0]]
    for part in outer[1:]:
        descriptor = descriptor.nested_types_by_name[part]
    return [value.name for value in descriptor.enum_types_by_name[name].values]
