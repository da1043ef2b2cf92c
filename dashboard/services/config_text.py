"""Edits config.pbtxt where it must change and nowhere else, so that a person's comments and order stay.

Protobuf's own tokenizer finds where each field begins and ends; only texts that parse are given to it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf import text_format
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository import model_config

_CLOSING = {"{": "}", "<": ">"}


@dataclass(frozen=True, slots=True)
class Span:
    """One field of the outermost message: its name, and where it lies in the text (end excluded)."""

    name: str
    start: int
    end: int


class _Walker:
    """Walks the tokens of a valid text: spans of the outermost fields, and the line of every field by its path."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._offsets = [0]
        for line in self._lines:
            self._offsets.append(self._offsets[-1] + len(line) + 1)
        self._tokens = text_format.Tokenizer(self._lines)
        self.spans: list[Span] = []
        self.lines: dict[str, int] = {}
        self._paths: list[str] = []  # of `lines`, in order
        self._end = 0
        self._fields("", "")

    def _here(self) -> tuple[int, int]:
        """(line counted from 1, offset in the text) of the present token."""
        place = self._tokens.ParseError("")
        line, column = place.GetLine(), place.GetColumn()
        return line, self._offsets[line - 1] + column - 1

    def _next(self) -> str:
        token = self._tokens.token
        self._end = self._here()[1] + len(token)
        self._tokens.NextToken()
        return token

    def _note(self, path: str, line: int) -> None:
        if path not in self.lines:
            self.lines[path] = line
            self._paths.append(path)

    def _fields(self, prefix: str, closing: str) -> str:
        """Fields up to `closing`; returns the text of `key`, which names an entry of a map."""
        counts: Counter[str] = Counter()
        key = ""
        while not self._tokens.AtEnd() and self._tokens.token != closing:
            line, start = self._here()
            name = self._next()
            if self._tokens.token == ":":
                self._next()
            first = self._end
            value = self._values(prefix + name, line, counts)
            key = value if name == "key" else key
            if not prefix:
                self.spans.append(Span(name, start, max(first, self._end)))
            if self._tokens.token in (",", ";"):
                self._next()
        return key

    def _values(self, path: str, line: int, counts: Counter[str]) -> str:
        self._note(path, line)
        if self._tokens.token != "[":
            return self._value(path, counts)
        self._next()
        while self._tokens.token != "]":
            self._value(path, counts)
            if self._tokens.token == ",":
                self._next()
        self._next()
        return ""

    def _value(self, path: str, counts: Counter[str]) -> str:
        line, _ = self._here()
        item = f"{path}[{counts[path]}]"
        counts[path] += 1
        self._note(item, line)
        if self._tokens.token not in _CLOSING:
            return self._scalar()
        closing = _CLOSING[self._next()]
        before = len(self._paths)
        key = self._fields(f"{item}.", closing)
        self._next()
        self._alias(item, path, before, f"{path}[{key}]" if key else "")
        return ""

    def _alias(self, item: str, path: str, before: int, keyed: str) -> None:
        """A message that is not repeated is known without its index; an entry of a map by its key."""
        for name in self._paths[before:]:
            self._note(path + name[len(item) :], self.lines[name])
        if keyed:
            self._note(keyed, self.lines[item])

    def _scalar(self) -> str:
        """One value; strings that stand side by side are one."""
        token = self._next()
        while token[:1] in "\"'" and self._tokens.token[:1] in ('"', "'"):
            self._next()
        return token


def line_of(text: str, path: str) -> int:
    """The line, from 1, of a field such as `input[0].dims[1]`, or of the nearest one around it; 0 when none is there."""
    try:
        lines = _Walker(text).lines
    except text_format.ParseError:
        return 0
    while path:
        if path in lines:
            return lines[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return 0


def rewrite(text: str, new: ModelConfig) -> str:
    """`text` with every outermost field that differs from `new` written anew, and all else as it was."""
    old = model_config.parse(text)
    changed = changed_fields(old, new)
    spans = _Walker(text).spans
    for span in reversed(spans):
        if span.name in changed:
            first = next(other for other in spans if other.name == span.name) is span
            text = _replaced(text, span, _rendered(new, span.name) if first else "")
    missing = [name for name in changed if not any(span.name == name for span in spans)]
    text = "".join([text, *_appended(text, [_rendered(new, name) for name in missing])])
    return text if model_config.parse(text) == new else model_config.format(new)


def changed_fields(old: Message, new: Message) -> list[str]:
    """The outermost fields that differ, in the order of the .proto."""
    return [field.name for field in new.DESCRIPTOR.fields if _part(old, field.name) != _part(new, field.name)]


def comments(text: str) -> list[str]:
    """The text of each comment, in order."""
    return list(_comments(text))


def dropped_comments(old: str, new: str) -> list[str]:
    left = Counter(comments(old)) - Counter(comments(new))
    return list(left.elements())


def _comments(text: str) -> Iterator[str]:
    for line in text.splitlines():
        quote = ""
        for index, character in enumerate(line):
            if quote:
                escaped = line[index - 1] == "\\" and line[index - 2 : index] != "\\\\"
                quote = "" if character == quote and not escaped else quote
            elif character in "\"'":
                quote = character
            elif character == "#":
                yield line[index:].strip()
                break


def _part(config: Message, name: str) -> ModelConfig:
    """A configuration that has only this field of `config`."""
    part = type(config)()
    for field, value in config.ListFields():
        if field.name != name:
            continue
        if field.is_repeated:
            getattr(part, name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(part, name).CopyFrom(value)
        else:
            setattr(part, name, value)
    return part


def _rendered(config: ModelConfig, name: str) -> str:
    return model_config.format(_part(config, name)).rstrip("\n")


def _replaced(text: str, span: Span, replacement: str) -> str:
    start, end = span.start, span.end
    if not replacement:
        line_start = text.rfind("\n", 0, start) + 1
        line_end = text.find("\n", end)
        line_end = len(text) if line_end < 0 else line_end + 1
        if not text[line_start:start].strip() and not text[end:line_end].strip(" \t\n,;"):
            start, end = line_start, line_end
    return text[:start] + replacement + text[end:]


def _appended(text: str, parts: list[str]) -> Iterator[str]:
    if text and not text.endswith("\n") and any(parts):
        yield "\n"
    for part in parts:
        if part:
            yield part + "\n"
