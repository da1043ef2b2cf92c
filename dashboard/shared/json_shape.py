"""Checks JSON from other programs against a TypedDict, because an inference server may be of another release."""

import functools
import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

_PLAIN = {bool: (bool,), int: (int,), float: (int, float), str: (str,), NoneType: (NoneType,)}
HERE = "."


def misfit(value: object, shape: Any) -> str:
    """Return the path of the first part of a value that does not fit a shape, such as ".arms.stable.requests"; "" if all fits.

    The path of the whole value is ".". shape: a TypedDict (the value may have more fields); a list, a dict or a union; or a
    plain type. Numbers must be finite, integers must fit into 64 bits, and texts must hold no NUL, because some databases
    cannot store other values. Values of any other shape are not checked.
    """
    if shape in _PLAIN:
        right = isinstance(value, _PLAIN[shape]) and isinstance(value, bool) == (shape is bool)
        return "" if right and _can_be_kept(value) else HERE
    if is_typeddict(shape):
        return _of_fields(value, _fields(shape), shape.__required_keys__)
    origin, inner = get_origin(shape), get_args(shape)
    if origin in (Union, UnionType):
        return "" if any(not misfit(value, one) for one in inner) else HERE
    if origin is NotRequired:
        return misfit(value, inner[0])
    if origin is list:
        return _first(enumerate(value), inner[0]) if isinstance(value, list) else HERE
    if origin is dict:
        return _first(value.items(), inner[1]) if isinstance(value, dict) else HERE
    return ""


def _can_be_kept(value: object) -> bool:
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if type(value) is float:
        return math.isfinite(value)
    return not (type(value) is str and "\0" in value)


def _of_fields(value: object, fields: Mapping[str, Any], required: frozenset[str]) -> str:
    if not isinstance(value, dict):
        return HERE
    if missing := required - value.keys():
        return f".{min(missing)}"
    return next(
        (found for name, kind in fields.items() if name in value and (found := _first([(name, value[name])], kind))), ""
    )


def _first(parts: Any, shape: Any) -> str:
    """Return the path of the first of these named parts that does not fit the shape."""
    for name, one in parts:
        if wrong := misfit(one, shape):
            return f".{name}{'' if wrong == HERE else wrong}"
    return ""


@functools.cache
def _fields(shape: Any) -> Mapping[str, Any]:
    return get_type_hints(shape, localns={"Json": Any}, include_extras=True)
