"""What an entry of a file may look like. `checked` returns it in one form, so that two entries that say the same are equal.

A shape is `str`, `int`, `float`, `bool`, a Record, a Table, a list of one shape such as `[str]`, NAMES (a sorted set of texts),
MOMENT, TIME_OF_DAY or ANYTHING. A field that has its default is left out of the form.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from typing import Any

from dashboard.shared.exceptions import Invalid

_MOST = 2**63 - 1  # the largest whole number of a database
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
NAMES, MOMENT, TIME_OF_DAY, ANYTHING = "names", "moment", "time of day", "anything"


@dataclass(frozen=True, slots=True)
class Record:
    """Fields by name. defaults: of those that may be missing; a field whose default is None may be null."""

    fields: Mapping[str, Any]
    defaults: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """Entries of one shape by their key, which is a text, or a whole number."""

    entry: Any
    key: type = str


@dataclass(frozen=True, slots=True)
class Place:
    """A value of a file. lines: the line of each value, by the keys that lead to it."""

    file: str
    lines: Mapping[tuple[object, ...], int] = field(default_factory=dict)
    trail: tuple[object, ...] = ()

    def at(self, key: object) -> "Place":
        return Place(self.file, self.lines, (*self.trail, key))

    def inside(self, field: str) -> "Place":
        """Return the place of a field in this value; this place if there is none."""
        found = (trail for trail in self.lines if trail[-1:] == (field,) and trail[: len(self.trail)] == self.trail)
        return Place(self.file, self.lines, next(found, self.trail))

    def error(self, message: str) -> Invalid:
        """Return the error of this value, with the file and the line of the value, or of what holds it."""
        known = (self.lines.get(self.trail[:length]) for length in range(len(self.trail), -1, -1))
        line = next((found for found in known if found), 0)
        named = ": ".join(str(key)[:100] for key in self.trail if not isinstance(key, int) or isinstance(key, bool))
        return Invalid(f"in {self.file}{f', line {line}' if line else ''}{f', {named}' if named else ''}: {message}")


def checked(value: object, shape: Any, place: Place) -> Any:
    """Return a value in its one form. Raises Invalid, with file and line, if it has another shape."""
    if isinstance(shape, Record):
        return _record(value, shape, place)
    if isinstance(shape, Table):
        return _table(value, shape, place)
    if isinstance(shape, list):
        return [checked(one, shape[0], place.at(number)) for number, one in enumerate(_listed(value, place))]
    if shape == NAMES:
        return sorted({checked(one, str, place.at(number)) for number, one in enumerate(_listed(value, place))})
    if shape in (MOMENT, TIME_OF_DAY):
        return _moment(value, place) if shape == MOMENT else _time_of_day(value, place)
    if shape == ANYTHING:
        return value
    if shape is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST:
        return float(value)
    if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        raise place.error(f"expected {_WORDS[shape]}, got {_shown(value)}")
    if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, int) and abs(value) > _MOST):
        raise place.error(f"the number {_shown(value)} is too large")
    if isinstance(value, str):
        if "\0" in value:
            raise place.error("a text cannot have the character 0")
        return value.strip()
    return value


def _record(value: object, shape: Record, place: Place) -> dict[str, object]:
    if not isinstance(value, dict):
        raise place.error(f"expected {', '.join(shape.fields)}, got {_shown(value)}")
    for name in value:
        if name not in shape.fields:
            raise place.at(name).error(f"there is no such field; expected {', '.join(shape.fields)}")
    found: dict[str, object] = {}
    for name, inner in shape.fields.items():
        given = value.get(name)
        if given is None and name not in shape.defaults:
            raise place.error(f"'{name}' is missing")
        if given is None:
            continue
        one = checked(given, inner, place.at(name))
        if name not in shape.defaults or one != shape.defaults[name]:
            found[name] = one
    return found


def _table(value: object, shape: Table, place: Place) -> dict[Any, object]:
    if not isinstance(value, dict):
        raise place.error(f"expected entries by name, got {_shown(value)}")
    for key in value:
        if not isinstance(key, shape.key) or isinstance(key, bool) or key in ("", 0):
            raise place.at(key).error(f"expected {_WORDS[shape.key]} as the name of an entry, got {_shown(key)}")
        checked(key, shape.key, place.at(key))
    return {key: checked(value[key], shape.entry, place.at(key)) for key in sorted(value)}


def _listed(value: object, place: Place) -> list[object]:
    if not isinstance(value, list):
        raise place.error(f"expected a list, got {_shown(value)}")
    return value


def _moment(value: object, place: Place) -> str:
    """Return a moment in ISO 8601, in UTC."""
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(value)  # type: ignore[arg-type]
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, TypeError, OverflowError):
        raise place.error(f"expected a moment such as '2030-01-31T12:00:00+00:00', got {_shown(value)}") from None


def _time_of_day(value: object, place: Place) -> str:
    try:
        found = value if isinstance(value, time) else time.fromisoformat(value)  # type: ignore[arg-type]
        return found.strftime("%H:%M")
    except (ValueError, TypeError):
        raise place.error(f"expected a time such as '22:00', in quotes, got {_shown(value)}") from None


def _shown(value: object) -> str:
    """Return a value for a sentence."""
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "fields"
    return "nothing" if value is None else f"'{str(value)[:40]}'"
