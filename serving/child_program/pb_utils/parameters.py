"""What a model puts into requests and responses, checked where it does so: the server ends a process that sends nonsense."""

import operator
from typing import Any

from serving.child_program.pb_utils.errors import TritonModelException

_LARGEST = (1 << 64) - 1


def checked_parameters(parameters: dict[str, Any] | None, whose: str) -> dict[str, Any]:
    """A copy. Values are booleans, whole numbers of 64 bits and texts: floats only come from clients, as in Triton."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TypeError(f"{whose} parameters must be a dictionary, not {type(parameters).__name__}")
    for name, value in parameters.items():
        if not isinstance(name, str) or not _is_text(name) or not _fits(value):
            raise TritonModelException(
                f"{whose} parameters must be strings, whole numbers or booleans, by name; {name!r:.100} is {value!r:.100}"
            )
    return dict(parameters)


def whole_number(name: str, value: Any, least: int = 0) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= _LARGEST:
        raise TypeError(f"{name} must be a whole number of at least {least}, not {value!r:.100}")
    return number


def text(name: str, value: Any) -> str:
    """Bytes are taken as UTF-8, as Triton takes them: elements of BYTES tensors are such names."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str) or not _is_text(value):
        raise TypeError(f"{name} must be text, not {value!r:.100}")
    return value


def _fits(value: Any) -> bool:
    if isinstance(value, str):
        return _is_text(value)
    return isinstance(value, int) and -(1 << 63) <= value <= _LARGEST


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True
