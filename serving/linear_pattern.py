"""Regular expressions whose matching cannot take for ever, for names that clients choose.

Python's `re` tries one way after the other: `(a+)+x` takes twice as long with each letter. This reads re's own parse of an
expression and follows all ways at once, as RE2 does, which Triton uses: the positions that a part of the expression can end at,
from all those it may begin at. Back references and look-around, which cannot be matched so, are refused as RE2 refuses them.
"""

import functools
import re
from collections.abc import Callable, Iterable
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MAX_NAME = 256  # characters; longer names match nothing
MAX_REPEATS = 1000  # as RE2's
_KEPT = 4096  # names whose answer is remembered

Ends = set[int]
_REPEATS = (code.MAX_REPEAT, code.MIN_REPEAT)
_CHARACTERS = (code.LITERAL, code.NOT_LITERAL, code.IN, code.ANY)
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    code.CATEGORY_DIGIT: str.isdecimal,
    code.CATEGORY_NOT_DIGIT: lambda one: not one.isdecimal(),
    code.CATEGORY_SPACE: str.isspace,
    code.CATEGORY_NOT_SPACE: lambda one: not one.isspace(),
    code.CATEGORY_WORD: lambda one: one.isalnum() or one == "_",
    code.CATEGORY_NOT_WORD: lambda one: not (one.isalnum() or one == "_"),
}


class LinearPattern:
    """`search(name)`: whether the expression matches somewhere in the name. re.error for what it does not take."""

    def __init__(self, expression: str, ignore_case: bool = False) -> None:
        parsed = _parser.parse(expression)
        self._parts = list(parsed)
        self._ignore_case = ignore_case or bool(parsed.state.flags & re.IGNORECASE)
        _check(self._parts)
        self.search = functools.lru_cache(_KEPT)(self._search)

    def _search(self, name: str) -> bool:
        return len(name) <= MAX_NAME and bool(_ends(self._parts, name, set(range(len(name) + 1)), self._ignore_case))


def _check(parts: Iterable[Any]) -> None:
    for kind, argument in parts:
        if kind in _REPEATS:
            if argument[0] > MAX_REPEATS:
                raise re.error(f"a repeat of more than {MAX_REPEATS} times is not taken")
            _check(argument[2])
        elif kind is code.SUBPATTERN:
            _check(argument[3])
        elif kind is code.BRANCH:
            for one in argument[1]:
                _check(one)
        elif kind not in _CHARACTERS and kind is not code.AT:
            raise re.error("back references, look-around and atomic groups are not taken")


def _ends(parts: Iterable[Any], name: str, starts: Ends, ignore_case: bool) -> Ends:
    """Where `parts`, one behind the other, can end."""
    for kind, argument in parts:
        starts = _ends_of(kind, argument, name, starts, ignore_case)
    return starts


def _ends_of(kind: Any, argument: Any, name: str, starts: Ends, ignore_case: bool) -> Ends:
    if kind in _REPEATS:
        least, most, part = argument
        return _repeated(least, most, part, name, starts, ignore_case)
    if kind is code.SUBPATTERN:
        _, added, removed, part = argument
        ignore_case = (ignore_case or bool(added & re.IGNORECASE)) and not removed & re.IGNORECASE
        return _ends(part, name, starts, ignore_case)
    if kind is code.BRANCH:
        return set().union(*(_ends(one, name, starts, ignore_case) for one in argument[1]))
    if kind is code.AT:
        return {at for at in starts if _holds(argument, name, at)}
    return {at + 1 for at in starts if at < len(name) and _is(kind, argument, name[at], ignore_case)}


def _repeated(least: int, most: int, part: Any, name: str, starts: Ends, ignore_case: bool) -> Ends:
    for _ in range(least):
        starts = _ends(part, name, starts, ignore_case)
    found, new = set(starts), starts
    for _ in range(least, min(most, least + len(name))):
        new = _ends(part, name, new, ignore_case) - found
        if not new:
            break
        found |= new
    return found


def _is(kind: Any, argument: Any, one: str, ignore_case: bool) -> bool:
    if not ignore_case:
        return _matches(kind, argument, one)
    forms = {one, one.lower(), one.upper()}
    if kind is code.NOT_LITERAL or (kind is code.IN and argument[0][0] is code.NEGATE):
        return all(_matches(kind, argument, form) for form in forms)
    return any(_matches(kind, argument, form) for form in forms)


def _matches(kind: Any, argument: Any, one: str) -> bool:
    if kind is code.LITERAL:
        return bool(ord(one) == argument)
    if kind is code.NOT_LITERAL:
        return bool(ord(one) != argument)
    if kind is code.ANY:
        return one != "\n"
    if argument[0][0] is code.NEGATE:
        return not any(_in(member, value, one) for member, value in argument[1:])
    return any(_in(member, value, one) for member, value in argument)


def _in(kind: Any, argument: Any, one: str) -> bool:
    if kind is code.RANGE:
        return bool(argument[0] <= ord(one) <= argument[1])
    if kind is code.CATEGORY:
        return _CATEGORIES[argument](one)
    return bool(ord(one) == argument)


def _holds(place: Any, name: str, at: int) -> bool:
    if place in (code.AT_BEGINNING, code.AT_BEGINNING_STRING):
        return at == 0
    if place in (code.AT_END, code.AT_END_STRING):
        return at == len(name)
    edges = [0 <= index < len(name) and _CATEGORIES[code.CATEGORY_WORD](name[index]) for index in (at - 1, at)]
    return (edges[0] != edges[1]) == (place is code.AT_BOUNDARY)
