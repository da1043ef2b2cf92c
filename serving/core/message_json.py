"""Converts protobuf messages to the JSON of Triton's HTTP frontend.

Unlike in protobuf's own JSON, 64-bit integers are numbers, names stay as in the .proto, and default values are shown.
"""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def message_to_json(message: Message, unset_messages: bool = False) -> dict[str, Any]:
    """Return a message as plain dicts and lists. Unset fields of message type are left out, unless `unset_messages` is true."""
    result = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            result[field.name] = _repeated(field, value, unset_messages)
        elif field.has_presence and not unset_messages and not message.HasField(field.name):
            continue
        else:
            result[field.name] = _single(field, value, unset_messages)
    return result


def _repeated(field: Any, value: Any, unset_messages: bool) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        item = kind.fields_by_name["value"]
        return {str(key): _single(item, value[key], unset_messages) for key in sorted(value)}
    return [_single(field, item, unset_messages) for item in value]


def _single(field: Any, value: Any, unset_messages: bool) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return message_to_json(value, unset_messages)
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value.decode("latin-1")
    return value
