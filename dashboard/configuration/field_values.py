"""Values of a form's fields as a browser or a program sends them: numbers and lists of numbers may be text ("8, 16")."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper


class FieldError(ValueError):
    """The value of a field cannot become part of a configuration. `message` says what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


def whole_number(field: str, value: object, least: int = -(1 << 31)) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise FieldError(field, f"expected a whole number, not '{text[:40]}'")
    number = int(text)
    if not least <= number < 1 << 31:
        raise FieldError(field, f"expected a number from {max(least, 0)} to {(1 << 31) - 1}, not {number}")
    return number


def number(field: str, value: object) -> float | int:
    """Return a number; a whole number as int, so that it is written without a decimal point."""
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,9})?", text):
        raise FieldError(field, f"expected a number, not '{text[:40]}'")
    found = float(text)
    return int(found) if found.is_integer() else found


def numbers(field: str, value: object) -> list[int]:
    parts = re.split(r"[,\s]+", value.strip(" ,[]")) if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise FieldError(field, "expected a list of whole numbers")
    return [_long(field, part) for part in parts if part != ""]


def _long(field: str, value: object) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise FieldError(field, f"expected whole numbers, but found '{text[:40]}'")
    return int(text)


def truth(value: object) -> bool:
    return value is True or str(value).lower() in ("true", "on", "1", "yes")


def named(field: str, value: object, prefix: str, enum: "EnumTypeWrapper") -> int:
    """Return the enum value of a name that is given with or without its prefix."""
    name = str(value).upper().removeprefix(prefix)
    try:
        return int(enum.Value(prefix + name))
    except ValueError:
        known = ", ".join(key.removeprefix(prefix) for key in enum.DESCRIPTOR.values_by_name)
        raise FieldError(field, f"expected one of {known}, not '{str(value)[:40]}'") from None


def rows(field: str, given: object) -> list[dict[str, object]]:
    """Return a list of objects. Raises FieldError if the value is not a list of objects."""
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise FieldError(field, "expected a list of objects")
    return given
