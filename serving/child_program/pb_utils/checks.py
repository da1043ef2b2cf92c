"""Checks a model's values for requests and responses, because the server kills a process that sends malformed ones."""

import operator
from collections.abc import Mapping
from typing import SupportsIndex, cast

from serving.backends.channel.messages import ParameterValue
from serving.child_program.link.errors import TritonModelException

_LARGEST = (1 << 64) - 1


def checked_parameters(parameters: Mapping[str, object] | None, whose: str) -> dict[str, ParameterValue]:
    """Return a copy of the parameters; {} for None. whose: the object that has them, for messages ("request", "response").

    Values are booleans, whole numbers of 64 bits and strings. As in Triton, only clients may send floats. Raises TypeError if
    `parameters` is no dictionary, and TritonModelException for a value of another type.
    """
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TypeError(f"{whose} parameters must be a dictionary, not {type(parameters).__name__}")
    for name, value in parameters.items():
        if not isinstance(name, str) or not _is_text(name) or not _fits(value):
            raise TritonModelException(
                f"{whose} parameters must be strings, whole numbers or booleans, by name; {name!r:.100} is {value!r:.100}"
            )
    return cast("dict[str, ParameterValue]", dict(parameters))


def whole_number(name: str, value: object, least: int = 0) -> int:
    """Return a whole number of at least `least` and at most 64 bits. Raises TypeError for any other value."""
    try:
        number = operator.index(cast("SupportsIndex", value))
    except TypeError:
        number = least - 1
    if not least <= number <= _LARGEST:
        raise TypeError(f"{name} must be a whole number of at least {least}, not {value!r:.100}")
    return number


def text(name: str, value: object) -> str:
    """Return a string that UTF-8 can encode. Raises TypeError for any other value.

    Bytes are read as UTF-8, as in Triton, because models use elements of BYTES tensors as names.
    """
    if type(value) is str and value.isascii():
        return value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str) or not _is_text(value):
        raise TypeError(f"{name} must be text, not {value!r:.100}")
    return value


def _fits(value: object) -> bool:
    if isinstance(value, str):
        return _is_text(value)
    return isinstance(value, int) and -(1 << 63) <= value <= _LARGEST


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # the text has half a surrogate pair
        return False
    return True
