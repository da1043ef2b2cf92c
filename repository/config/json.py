"""A configuration in JSON, read as leniently as protobuf's C++ parser reads Triton's `config` parameter.

protobuf's Python parser, `json_format`, refuses forms that its C++ parser accepts and that Triton's clients send. So this
module parses the text and converts names and values to the strict form, for `json_format.ParseDict`.

In addition to JSON it accepts keys without quotes, single quotes, and commas after the last element. In strings it accepts any
escaped or control character. If a name is given twice, the last one counts. It also accepts enumerations in either case and
with dashes, true and false as strings, one element where a list is expected, and null in a list. Compared with tritonserver
2.51.
"""

import json
import re
from typing import cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from repository.core.json_types import Json, JsonObject

MAX_DEPTH = 50

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)
_PLAIN = {quote: re.compile(rf"[^\\{quote}]*") for quote in "\"'"}
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class BadJson(ValueError):
    """A mistake in the text, as one sentence."""


def parse_into(message: Message, text: str) -> None:
    """Fill a message from a text. Raises BadJson if the text does not fit the message."""
    value = _for_message(cast(Descriptor, message.DESCRIPTOR), _Reader(text).read())
    try:
        json_format.ParseDict(value, message, max_recursion_depth=MAX_DEPTH + 1)
    except json_format.ParseError as error:
        raise BadJson(str(error).splitlines()[0].rstrip(".")) from None


class _Reader:
    """Reads a text once, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> Json:
        value = self._value(0)
        if self._next():
            raise self._unexpected("the end")
        return value

    def _next(self) -> str:
        """Skip white space. Return the next character; "" at the end."""
        space = _SPACE.match(self._text, self._at)
        assert space is not None
        self._at = space.end()
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Json:
        if depth > MAX_DEPTH:
            raise BadJson(f"it is nested more than {MAX_DEPTH} deep")
        character = self._next()
        if character == "{":
            return self._object(depth)
        if character == "[":
            return self._list(depth)
        if character in ("'", '"'):
            return self._string(character)
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            return self._word()
        self._at = found.end()
        try:
            number: int | float = json.loads(found.group())
        except ValueError:  # the number has more digits than Python converts
            raise BadJson("it holds a number of too many digits") from None
        return number

    def _word(self) -> bool | None:
        found = _WORD.match(self._text, self._at)
        if found is None or found.group() not in _WORDS:
            raise self._unexpected("a value")
        self._at = found.end()
        return _WORDS[found.group()]

    def _object(self, depth: int) -> JsonObject:
        found: JsonObject = {}
        self._at += 1
        while (character := self._next()) != "}":
            if character in ("'", '"'):
                key = self._string(character)
            else:
                word = _WORD.match(self._text, self._at)
                if word is None:
                    raise self._unexpected("a name")
                self._at, key = word.end(), word.group()
            if self._next() != ":":
                raise self._unexpected("':'")
            self._at += 1
            found[key] = self._value(depth + 1)
            self._comma("}")
        self._at += 1
        return found

    def _list(self, depth: int) -> list[Json]:
        found: list[Json] = []
        self._at += 1
        while self._next() != "]":
            found.append(self._value(depth + 1))
            self._comma("]")
        self._at += 1
        return found

    def _comma(self, end: str) -> None:
        character = self._next()
        if character == ",":
            self._at += 1
        elif character != end:
            raise self._unexpected(f"',' or '{end}'")

    def _string(self, quote: str) -> str:
        parts = []
        self._at += 1
        while True:
            plain = _PLAIN[quote].match(self._text, self._at)
            assert plain is not None
            parts.append(plain.group())
            self._at = plain.end() + 1
            ended = self._text[plain.end() : self._at]
            if ended == quote:
                break
            if not ended:
                raise BadJson("a string does not end")
            parts.append(self._escaped())
        # A character outside the basic plane arrives as two escapes, one for each half.
        text = "".join(parts).encode("utf-16", "surrogatepass")
        try:
            return text.decode("utf-16")
        except UnicodeDecodeError:
            raise BadJson("a string holds half of a character") from None

    def _escaped(self) -> str:
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        if letter != "u":
            return _ESCAPES.get(letter, letter)
        digits = self._text[self._at : self._at + 4]
        self._at += 4
        if not re.fullmatch(r"[0-9A-Fa-f]{4}", digits):
            raise BadJson("a string holds \\u without four digits")
        return chr(int(digits, 16))

    def _unexpected(self, wanted: str) -> BadJson:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - self._text.rfind("\n", 0, self._at)
        return BadJson(f"expected {wanted} in line {line}, column {column}")


def _for_message(descriptor: Descriptor, value: Json) -> JsonObject:
    """Return the value with names and values in the form of `json_format`, which reports values that fit no field."""
    if not isinstance(value, dict):
        raise BadJson(f"expected an object in braces for a {descriptor.name}")
    fields = {name: field for field in descriptor.fields for name in (field.json_name, field.name)}
    found: JsonObject = {}
    for key, inner in value.items():
        field = fields.get(key)
        found[field.name if field is not None else key] = _for_field(field, inner) if field is not None else inner
    return found


def _for_field(field: FieldDescriptor, value: Json) -> Json:
    if value is None:
        return None
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {key: _single(inner, one) for key, one in value.items()} if isinstance(value, dict) else value
    if field.is_repeated:
        ones = value if isinstance(value, list) else [value]
        return [_single(field, one) for one in ones if one is not None]
    return _single(field, value)


def _single(field: FieldDescriptor, value: Json) -> Json:
    if field.message_type is not None:
        return _for_message(field.message_type, value)
    if field.enum_type is not None and isinstance(value, str) and value not in field.enum_type.values_by_name:
        return value.upper().replace("-", "_")
    if field.type == FieldDescriptor.TYPE_BOOL and value in ("true", "false"):
        return value == "true"
    return value
