"""Where things stand in a person's config.pbtxt: the fields' places, the comments, the difference between two texts.

Meaning is protobuf's affair (`model_config.parse`); this module only finds the places of what that parser accepts, so that a
page can point at a line and an edit can leave the rest of the text alone.
"""

import ast
import difflib
import re
from collections import Counter
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<mark>[{}<>\[\]:,;])|(?P<word>[^\s{}<>\[\]:,;\#"']+)"""
)
_PATH = re.compile(r'(?P<name>\w+)|\[(?P<index>\d+)\]|\["(?P<key>[^"]*)"\]')


@dataclass(slots=True)
class Value:
    """text[start:end] is a literal, or a message in braces whose `fields` are given."""

    start: int
    end: int
    fields: "list[Statement] | None" = None


@dataclass(slots=True)
class Statement:
    """text[start:end] is one `name: value`, with a closing comma or semicolon; `value_start` is where its value begins."""

    name: str
    start: int
    value_start: int = 0
    end: int = 0
    bracketed: bool = False
    values: list[Value] = field(default_factory=list)


def statements(text: str) -> list[Statement]:
    """Return the top-level fields of a text that `parse` accepts, in its order."""
    return _Reader(text).fields("")


def comments(text: str) -> list[str]:
    """Return every comment, without its '#' and the spaces around it."""
    found = (match["comment"] for match in _TOKEN.finditer(text) if match["comment"])
    return [comment.lstrip("#").strip() for comment in found]


def dropped_comments(old: str, new: str) -> list[str]:
    """Return the comments of the old text that the new one no longer has, in the old one's order."""
    left = Counter(comments(new))
    dropped = []
    for comment in comments(old):
        if left[comment] > 0:
            left[comment] -= 1
        elif comment:
            dropped.append(comment)
    return dropped


def diff(old: str, new: str, *, old_name: str = "before", new_name: str = "after", context: int = 3) -> str:
    """Return a unified diff; empty when the texts are the same."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, n=context, lineterm="")
    return "\n".join(lines)


def locate(text: str, path: str) -> tuple[int, int] | None:
    """Return line and column, from 1, of the field of a path such as `input[0].dims[1]`, or of what holds it when it is absent.

    None where not even the first part of the path is in the text.
    """
    place: int | None = None
    level: list[Statement] | None = statements(text)
    values: list[Value] = []
    for part in _PATH.finditer(path):
        if part["name"]:
            found = [statement for statement in level or [] if statement.name == part["name"]]
            if not found:
                break
            values = [value for statement in found for value in statement.values]
            place, level = found[0].start, _inner(values)
        else:
            chosen = _chosen(text, values, part)
            if chosen is None:
                break
            place, level = chosen.start, chosen.fields
            values = _value_of_entry(chosen) if part["key"] is not None else values
            level = _inner(values) if part["key"] is not None else level
    if place is None:
        return None
    before = text[:place]
    return before.count("\n") + 1, place - (before.rfind("\n") + 1) + 1


def _inner(values: list[Value]) -> list[Statement] | None:
    return values[0].fields if values else None


def _chosen(text: str, values: list[Value], part: re.Match[str]) -> Value | None:
    """Return the value of a list by its index, or the entry of a map by its key (a number in brackets is either)."""
    if part["key"] is None and int(part["index"]) < len(values) and entry_key(text, values[0]) is None:
        return values[int(part["index"])]
    key: str | int = part["key"] if part["key"] is not None else int(part["index"])
    return next((value for value in values if entry_key(text, value) == key), None)


def entry_key(text: str, value: Value) -> str | int | None:
    """Return the key of a map's entry as written; None for what is no entry."""
    for statement in value.fields or []:
        if statement.name == "key" and statement.values:
            literal = text[statement.values[0].start : statement.values[0].end]
            return unquoted(literal)
    return None


def unquoted(literal: str) -> str | int | None:
    """Return a string or a whole number of the text format as Python's; None for anything else."""
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, str | int) else None


def _value_of_entry(entry: Value) -> list[Value]:
    return next((statement.values for statement in entry.fields or [] if statement.name == "value"), [])


class _Reader:
    """One pass over the tokens. protobuf's parser has accepted the text, so there are no errors to report."""

    def __init__(self, text: str) -> None:
        self.tokens = [match for match in _TOKEN.finditer(text) if not match["comment"]]
        self.position = 0

    def fields(self, closing: str) -> list[Statement]:
        """Read statements up to, but without, the closing mark."""
        found: list[Statement] = []
        while (token := self._peek()) is not None and token[0] != closing:
            self.position += 1
            found.append(self._statement(token))
        return found

    def _statement(self, name: re.Match[str]) -> Statement:
        statement = Statement(name[0], name.start())
        self._skip(":")
        token = self._peek()
        statement.value_start = token.start() if token else name.end()
        if token is not None and token[0] == "[":
            self.position += 1
            statement.bracketed = True
            while (token := self._peek()) is not None and token[0] != "]":
                statement.values.append(self._value())
                self._skip(",")
            self.position += 1
        else:
            statement.values.append(self._value())
        self._skip(",") or self._skip(";")
        statement.end = self.tokens[min(self.position, len(self.tokens)) - 1].end()
        return statement

    def _value(self) -> Value:
        token = self.tokens[self.position]
        self.position += 1
        if token[0] in "{<":
            fields = self.fields("}" if token[0] == "{" else ">")
            self.position += 1
            return Value(token.start(), self.tokens[self.position - 1].end(), fields)
        end = token.end()
        while token["string"] and (following := self._peek()) is not None and following["string"]:
            self.position += 1
            end = following.end()
        return Value(token.start(), end)

    def _peek(self) -> re.Match[str] | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def _skip(self, mark: str) -> bool:
        token = self._peek()
        if token is None or token[0] != mark:
            return False
        self.position += 1
        return True
