"""Checks JSON from other programs against a TypedDict, because an inference server may be of another release."""

import functools
import math
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

HERE = "."
_Check = Callable[[Any], str]  # returns what `misfit` returns


def misfit(value: object, shape: Any) -> str:
    """Return the path of the first part of a value that does not fit a shape, such as ".arms.stable.requests"; "" if all fits.

    The path of the whole value is ".". shape: a TypedDict (the value may have more fields); a list, a dict or a union; or a
    plain type. Numbers must be finite, integers must fit into 64 bits, and texts must hold no NUL, because some databases
    cannot store other values. Values of any other shape are not checked.
    """
    return _check_of(shape)(value)


def _integer(value: object) -> str:
    return "" if type(value) is int and -(2**63) <= value < 2**63 else HERE


def _number(value: object) -> str:
    return "" if type(value) is float and math.isfinite(value) else _integer(value)


def _text(value: object) -> str:
    return "" if type(value) is str and "\0" not in value else HERE


_PLAIN: dict[Any, _Check] = {
    bool: lambda value: "" if type(value) is bool else HERE,
    int: _integer,
    float: _number,
    str: _text,
    NoneType: lambda value: "" if value is None else HERE,
}


@functools.cache
def _check_of(shape: Any) -> _Check:
    """Return a function for a shape, because the same few shapes are asked for again and again."""
    if shape in _PLAIN:
        return _PLAIN[shape]
    if is_typeddict(shape):
        return _of_fields(shape)
    origin, inner = get_origin(shape), get_args(shape)
    if origin in (Union, UnionType):
        return _of_union([_check_of(one) for one in inner])
    if origin is NotRequired:
        return _check_of(inner[0])
    if origin is list:
        each = _check_of(inner[0])
        return lambda value: _first(enumerate(value), each) if isinstance(value, list) else HERE
    if origin is dict:
        each = _check_of(inner[1])
        if each is _integer:
            return _of_integers
        return lambda value: _first(value.items(), each) if isinstance(value, dict) else HERE
    return lambda value: ""


def _of_union(checks: list[_Check]) -> _Check:
    def check(value: object) -> str:
        for one in checks:
            if not one(value):
                return ""
        return HERE

    return check


def _of_integers(value: object) -> str:
    """Check a histogram, of which a server sends many each second, without a call for each number."""
    if not isinstance(value, dict):
        return HERE
    for name, number in value.items():
        if type(number) is not int or not -(2**63) <= number < 2**63:
            return f".{name}"
    return ""


def _of_fields(shape: Any) -> _Check:
    hints: Mapping[str, Any] = get_type_hints(shape, localns={"Json": Any}, include_extras=True)
    required: frozenset[str] = shape.__required_keys__
    checks = {name: _check_of(kind) for name, kind in hints.items()}
    integers = [name for name, check in checks.items() if check is _integer and name in required]
    others = [(name, check) for name, check in checks.items() if name not in integers]

    def check(value: object) -> str:
        if not isinstance(value, dict):
            return HERE
        if missing := required - value.keys():
            return f".{min(missing)}"
        for name in integers:  # without a call for each, as above
            number = value[name]
            if type(number) is not int or not -(2**63) <= number < 2**63:
                return f".{name}"
        for name, of_field in others:
            if name in value and (wrong := of_field(value[name])):
                return f".{name}{'' if wrong == HERE else wrong}"
        return ""

    return check


def _first(parts: Any, check: _Check) -> str:
    """Return the path of the first of these named parts that does not pass the check."""
    for name, one in parts:
        if wrong := check(one):
            return f".{name}{'' if wrong == HERE else wrong}"
    return ""
