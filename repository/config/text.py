"""Reads the text of a person's config.pbtxt: the positions of fields, the comments, the difference between two texts.

protobuf's own parser (`model_config.parse`) reads the meaning of a text, and this module reads only texts that the parser
accepts. The parser is not enough for a page that points at a line, nor for an edit that keeps the rest of the text. The message
that it returns has no positions of fields, no spelling and no comments. It gives a line and column only for mistakes.
"""

import ast
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from repository.core.python_source import syntax_tree

# A quote that is not closed ends with its line, so that each character is read once, in texts with mistakes too.
_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)"""
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
    """text[start:end] is one `name: value`, with a closing comma or semicolon. Its value begins at `value_start`."""

    name: str
    start: int
    value_start: int = 0
    end: int = 0
    bracketed: bool = False
    values: list[Value] = field(default_factory=list)


def statements(text: str) -> list[Statement]:
    """Return the top-level fields of a text that `parse` accepts, in the order of the text."""
    return _Reader(text).fields("")


def comments(text: str) -> list[str]:
    """Return every comment, without its '#' and the spaces around it."""
    found = (match["comment"] for match in _TOKEN.finditer(text) if match["comment"])
    return [comment.lstrip("#").strip() for comment in found]


def dropped_comments(old: str, new: str) -> list[str]:
    """Return the comments of the old text that the new text lacks, in the order of the old text."""
    left = Counter(comments(new))
    dropped = []
    for comment in comments(old):
        if left[comment] > 0:
            left[comment] -= 1
        elif comment:
            dropped.append(comment)
    return dropped


def line_starts(text: str) -> list[int]:
    """Return the offset at which each line of a text begins."""
    return [0, *(match.end() for match in re.finditer("\n", text))]


class _Named(NamedTuple):
    """The statements with one name in one message: the offset of the first statement, and the values of all."""

    place: int
    values: list[Value]


class Places:
    """The places of fields in a text that `parse` accepts; the text is read once for all of them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = line_starts(text)
        self._names: dict[int, dict[str, _Named]] = {}
        self._keys: dict[int, dict[str | int, Value]] = {}
        self._top: list[Statement] | None = None

    def locate(self, path: str) -> tuple[int, int] | None:
        """Return line and column, from 1, of the field of a path such as `input[0].dims[1]`.

        For an absent field, return the line and column of the message that would contain it, or None if the text has no part of
        the path.
        """
        if self._top is None:
            self._top = statements(self._text)
        place: int | None = None
        level: list[Statement] | None = self._top
        values: list[Value] = []
        for part in _PATH.finditer(path):
            if part["name"]:
                found = self._named(level or []).get(part["name"])
                if found is None:
                    break
                place, values = found
                level = _inner(values)
            else:
                chosen = self._chosen(values, part)
                if chosen is None:
                    break
                place, level = chosen.start, chosen.fields
                values = _value_of_entry(chosen) if part["key"] is not None else values
                level = _inner(values) if part["key"] is not None else level
        if place is None:
            return None
        line = bisect_right(self._starts, place)
        return line, place - self._starts[line - 1] + 1

    def _named(self, level: list[Statement]) -> dict[str, _Named]:
        known = self._names.get(id(level))  # an id is unique as long as the tree of statements exists
        if known is None:
            known = self._names[id(level)] = {}
            for statement in level:
                known.setdefault(statement.name, _Named(statement.start, [])).values.extend(statement.values)
        return known

    def _chosen(self, values: list[Value], part: re.Match[str]) -> Value | None:
        """Return the value of a list by its index, or the entry of a map by its key. A number in brackets may be either."""
        if part["key"] is None and int(part["index"]) < len(values) and entry_key(self._text, values[0]) is None:
            return values[int(part["index"])]
        known = self._keys.get(id(values))
        if known is None:
            known = self._keys[id(values)] = {}
            for value in values:
                key = entry_key(self._text, value)
                if key is not None:
                    known.setdefault(key, value)
        return known.get(part["key"] if part["key"] is not None else int(part["index"]))


def _inner(values: list[Value]) -> list[Statement] | None:
    return values[0].fields if values else None


def entry_key(text: str, value: Value) -> str | int | None:
    """Return the key of a map entry as written, or None for a value that is no map entry."""
    for statement in value.fields or []:
        if statement.name == "key" and statement.values:
            literal = text[statement.values[0].start : statement.values[0].end]
            return unquoted(literal)
    return None


def unquoted(literal: str) -> str | int | None:
    """Return the Python value of a string or whole number in the text format, or None for any other token."""
    try:
        value = ast.literal_eval(syntax_tree(literal, "eval"))
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, str | int) else None


def _value_of_entry(entry: Value) -> list[Value]:
    return next((statement.values for statement in entry.fields or [] if statement.name == "value"), [])


class _Reader:
    """Reads the tokens once. protobuf's parser has already accepted the text, so the reader has no errors to report."""

    def __init__(self, text: str) -> None:
        self.tokens = [match for match in _TOKEN.finditer(text) if not match["comment"]]
        self.position = 0

    def fields(self, closing: str) -> list[Statement]:
        """Read the statements before the closing mark."""
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
