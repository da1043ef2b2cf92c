"""Edits a person's config.pbtxt for a new configuration, with as little change to the text as possible."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, cast

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.text import Statement, Value, entry_key, line_starts, statements

# The search stops at the first character that is neither blank nor comment, because a text may be one long line.
_BLANK = " \t\r\f\v"
_REST_OF_LINE = re.compile(r"[ \t\r\f\v]*(?:#[^\n]*)?(?:\n|\Z)")
_INDENT = re.compile(r"[ \t\r\f\v]*")


class _Edit(NamedTuple):
    """Replace text[start:end]."""

    start: int
    end: int
    replacement: str


class _Element(NamedTuple):
    """One entry of a list or map. `key` identifies it: a map's key, a name, or its index."""

    key: str | int
    message: Message


def edited(text: str, old: ModelConfig, new: ModelConfig) -> str:
    """Change a text that means `old` so that it means `new`. Other parts of the text stay, and so do comments.

    The editor may fail on an unusual text, so the caller checks whether the result means `new`.
    """
    if text and not text.endswith("\n"):
        text += "\n"
    return _Editor(text).root(old, new)


class _Editor:
    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = line_starts(text)

    def root(self, old: Message, new: Message) -> str:
        whole = Value(0, len(self.text), statements(self.text))
        return self._changed(whole, old, new, root=True)

    def _changed(self, value: Value, old: Message, new: Message, *, root: bool = False) -> str:
        """Return the text of one message, changed from `old` to `new`."""
        edits: list[_Edit] = []
        kept = list(value.fields or [])
        absent: list[FieldDescriptor] = []
        for field in cast(list[FieldDescriptor], new.DESCRIPTOR.fields):
            if not _differs(field, old, new):
                continue
            written = [statement for statement in value.fields or [] if statement.name == field.name]
            if not written:
                absent.append(field)
            elif not _has(new, field) and not _is_number(field):
                edits += [self._deletion(statement) for statement in written]
                kept = [statement for statement in kept if statement.name != field.name]
            else:
                edits += self._replaced(written, field, old, new)
        edits += [self._insertion(value, kept, field, new, root=root) for field in absent]
        return self._applied(value, edits)

    def _applied(self, value: Value, edits: list[_Edit]) -> str:
        pieces: list[str] = []
        position = value.start
        for edit in sorted(edits, key=lambda edit: edit[:2]):
            pieces += [self.text[position : edit.start], edit.replacement]
            position = max(edit.end, position)
        return "".join([*pieces, self.text[position : value.end]])

    # -- existing statements -----------------------------------------------------------------------------------------
    def _replaced(
        self, written: list[Statement], field: FieldDescriptor, old: Message, new: Message
    ) -> Iterator[_Edit]:
        value = written[0].values[0] if written[0].values else None
        if field.is_repeated and field.message_type is not None:
            yield from self._replaced_elements(written, field, old, new)
        elif field.message_type is not None and value is not None:
            text = self._changed(value, getattr(old, field.name), getattr(new, field.name))
            yield _Edit(value.start, value.end, text)
        elif field.is_repeated or value is None:
            yield from self._rewritten(written, field, _body(field, new))
        else:
            yield _Edit(value.start, value.end, _body(field, new))

    def _rewritten(self, written: list[Statement], field: FieldDescriptor, body: str) -> Iterator[_Edit]:
        """Replace a list of numbers or strings, at the place of its first statement."""
        first, *rest = written
        if self.text.startswith("[ ", first.value_start):
            body = f"[ {body[1:-1]} ]"
        yield _Edit(first.value_start, self._end(first), body)
        yield from map(self._deletion, rest)

    def _replaced_elements(
        self, written: list[Statement], field: FieldDescriptor, old: Message, new: Message
    ) -> Iterator[_Edit]:
        """Change a list of messages or a map: each element that stays keeps its text."""
        places = [value for statement in written for value in statement.values]
        before = {element.key: element.message for element in _elements(field, old)}
        after = _elements(field, new)
        keys = [entry_key(self.text, place) for place in places] if _is_map(field) else list(before)
        place_of = dict(zip(keys, places, strict=False))
        if _is_map(field):
            order = {key: index for index, key in reversed([*enumerate(keys)])}
            after.sort(key=lambda element: order.get(element.key, len(keys)))
        if keys == [element.key for element in after] and len(keys) == len(places):
            for element, place in zip(after, places, strict=True):
                yield _Edit(place.start, place.end, self._changed(place, before[element.key], element.message))
            return
        indent = self._indent(written[0].start)
        blocks = [
            self._changed(place_of[element.key], before[element.key], element.message)
            if element.key in place_of and element.key in before
            else _block(element.message, indent)
            for element in after
        ]
        lines = f"\n{indent}".join(f"{field.name} {block}" for block in blocks)
        yield _Edit(written[0].start, self._end(written[0]), lines)
        yield from map(self._deletion, written[1:])

    def _deletion(self, statement: Statement) -> _Edit:
        """Delete the statement; delete its whole line, with the comment at its end, if the line has no other statement."""
        begins = statement.start
        while begins and self.text[begins - 1] in _BLANK:
            begins -= 1
        rest = _REST_OF_LINE.match(self.text, statement.end)
        if rest is not None and (begins == 0 or self.text[begins - 1] == "\n"):
            return _Edit(begins, rest.end(), "")
        return _Edit(statement.start, statement.end, "")

    # -- new statements ----------------------------------------------------------------------------------------------
    def _insertion(
        self, value: Value, kept: list[Statement], field: FieldDescriptor, new: Message, *, root: bool
    ) -> _Edit:
        """Insert a new statement after the nearest field that precedes it in the .proto, or else at the beginning."""
        order = {other.name: other.index for other in new.DESCRIPTOR.fields}
        before = [statement for statement in kept if order[statement.name] < field.index]
        anchor = max(before, key=lambda statement: (order[statement.name], statement.start), default=None)
        if not root and "\n" not in self.text[value.start : value.end]:
            place = anchor.end if anchor else value.start + 1
            return _Edit(place, place, " " + _statement(field, new, "", one_line=True))
        sample = anchor or (kept[0] if kept else None)
        indent = self._indent(sample.start) if sample else ("" if root else self._indent(value.start) + "  ")
        text = _statement(field, new, indent)
        if anchor is not None:
            return self._behind(anchor, text, indent)
        if root:
            place = self.text.rfind("\n", 0, kept[0].start) + 1 if kept else len(self.text)
            return _Edit(place, place, f"{text}\n")
        return _Edit(value.start + 1, value.start + 1, f"\n{indent}{text}")

    def _behind(self, anchor: Statement, text: str, indent: str) -> _Edit:
        """Insert on the line below the anchor and its comment; right after the anchor if its line has more statements."""
        rest = _REST_OF_LINE.match(self.text, anchor.end)
        place = anchor.end if rest is None else rest.end() - rest[0].endswith("\n")
        return _Edit(place, place, f"\n{indent}{text}" + ("" if rest is not None else f"\n{indent}"))

    def _indent(self, place: int) -> str:
        blank = _INDENT.match(self.text, self.starts[bisect_right(self.starts, place) - 1], place)
        return blank[0] if blank else ""

    def _end(self, statement: Statement) -> int:
        """Return the end of a statement, without a comma or semicolon that closes it."""
        return statement.end - 1 if self.text[statement.end - 1] in ",;" else statement.end


def _differs(field: FieldDescriptor, old: Message, new: Message) -> bool:
    if _has(old, field) != _has(new, field):
        return True
    if _is_map(field):
        return [*map(tuple, _elements(field, old))] != [*map(tuple, _elements(field, new))]
    return bool(getattr(old, field.name) != getattr(new, field.name))


def _has(message: Message, field: FieldDescriptor) -> bool:
    if field.is_repeated:
        return len(getattr(message, field.name)) > 0
    if field.has_presence:
        return bool(message.HasField(field.name))
    return bool(getattr(message, field.name) != field.default_value)


def _is_number(field: FieldDescriptor) -> bool:
    """Return whether a field is a single number or switch, which is set to 0 or false rather than removed."""
    plain = field.message_type is None and not field.is_repeated and not field.has_presence
    return plain and field.cpp_type not in (field.CPPTYPE_STRING, field.CPPTYPE_ENUM)


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _elements(field: FieldDescriptor, message: Message) -> list[_Element]:
    values = getattr(message, field.name)
    if _is_map(field):
        entry = GetMessageClass(cast(Descriptor, field.message_type))
        return [_Element(key, entry(key=key, value=values[key])) for key in sorted(values)]
    names = [getattr(value, "name", "") for value in values]
    named = all(names) and len(set(names)) == len(names)
    return [_Element(names[index] if named else index, value) for index, value in enumerate(values)]


def _statement(field: FieldDescriptor, message: Message, indent: str, *, one_line: bool = False) -> str:
    """Return the statements of one field, as protobuf writes them, without the end of the last line."""
    only = type(message)()
    if field.is_repeated:
        getattr(only, field.name).MergeFrom(getattr(message, field.name))
    elif field.message_type is not None:
        getattr(only, field.name).CopyFrom(getattr(message, field.name))
    else:
        setattr(only, field.name, getattr(message, field.name))
    text: str = text_format.MessageToString(
        only, as_utf8=True, use_short_repeated_primitives=True, as_one_line=one_line, use_index_order=True
    )
    return text.strip().replace("\n", f"\n{indent}")


def _body(field: FieldDescriptor, message: Message) -> str:
    """Return the text of a value, which follows the colon."""
    if not _has(message, field):
        return "false" if field.cpp_type == field.CPPTYPE_BOOL else "0"
    return _statement(field, message, "").removeprefix(field.name).lstrip(": ")


def _block(message: Message, indent: str) -> str:
    """Return a message in braces."""
    text: str = text_format.MessageToString(
        message, as_utf8=True, use_short_repeated_primitives=True, use_index_order=True
    )
    lines = "".join(f"{indent}  {line}\n" for line in text.splitlines())
    return f"{{\n{lines}{indent}}}"
