"""Whether outputs are as expected: the same datatype and shape, and values within a tolerance.

Floats may differ by `absolute` + `relative` * |expected|, integers by `absolute`; BOOL and BYTES are equal or not. NaN equals
NaN, and an infinity itself. What differs is told in one sentence: which output, where, got, expected, the largest difference.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.core.datatypes import Tensor, datatype_of

MAX_SHOWN = 60  # characters of a text that is told


class Tolerance(NamedTuple):
    """How far a value may be from the expected one; neither is negative."""

    absolute: float = 0.0
    relative: float = 1e-3


USUAL = Tolerance()


class Comparison(NamedTuple):
    """`detail`: what differs; of equal outputs, how far they are apart."""

    equal: bool
    detail: str


def compare_outputs(expected: Mapping[str, Tensor], got: Mapping[str, Tensor], tolerance: Tolerance) -> Comparison:
    """Compare every expected output; the model may have given others beside them. The first that differs is told."""
    largest = 0.0
    for name, wanted in expected.items():
        found = got.get(name)
        if found is None:
            others = ", ".join(f"'{other}'" for other in got) or "none"
            return Comparison(False, f"output '{name}' was not answered; the outputs are {others}")
        comparison, difference = _compare(name, wanted, found, tolerance)
        if not comparison.equal:
            return comparison
        largest = max(largest, difference)
    return Comparison(True, f"the largest difference is {largest:.3g}" if largest else "all values are equal")


def _compare(name: str, expected: Tensor, got: Tensor, tolerance: Tolerance) -> tuple[Comparison, float]:
    """Return the outcome for one output, and the largest difference of its values."""
    types = datatype_of(got).name, datatype_of(expected).name
    if types[0] != types[1]:
        return Comparison(False, f"output '{name}' is {types[0]}, expected {types[1]}"), 0.0
    if got.shape != expected.shape:
        shapes = list(got.shape), list(expected.shape)
        return Comparison(False, f"output '{name}' has the shape {shapes[0]}, expected {shapes[1]}"), 0.0
    if types[0] in ("BYTES", "BOOL"):
        return _compare_exactly(name, expected, got), 0.0
    if types[0].startswith(("INT", "UINT")):
        return _compare_numbers(name, expected, got, _integer_distance(expected, got), tolerance.absolute)
    wanted, found = expected.astype(np.float64), got.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = tolerance.absolute + tolerance.relative * np.abs(wanted)
        distance = np.abs(found - wanted)
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    distance = np.where(same, 0.0, distance)
    finite = np.isfinite(found) & np.isfinite(wanted)
    distance = np.where(finite | same, distance, np.inf)  # one of them is NaN, or infinite
    return _compare_numbers(name, expected, got, distance, np.where(np.isfinite(allowed), allowed, 0.0))


def _integer_distance(expected: Tensor, got: Tensor) -> NDArray[Any]:
    """Return how far apart whole numbers are, of any width: the difference of 64 bits wraps around to the right one."""
    wide = np.int64 if got.dtype.kind == "i" else np.uint64
    one, other = got.astype(wide), expected.astype(wide)
    bits, others = one.view(np.uint64), other.view(np.uint64)
    with np.errstate(over="ignore"):
        return np.where(one >= other, bits - others, others - bits)


def _compare_exactly(name: str, expected: Tensor, got: Tensor) -> Comparison:
    pairs = zip(got.reshape(-1).tolist(), expected.reshape(-1).tolist(), strict=True)
    wrong = [index for index, (one, other) in enumerate(pairs) if _plain(one) != _plain(other)]
    if not wrong:
        return Comparison(True, "")
    place = np.unravel_index(wrong[0], got.shape)
    values = f"got {_shown(got[place])}, expected {_shown(expected[place])}"
    return Comparison(False, f"output '{name}'{_where(place)}: {values}{_count(len(wrong), got.size)}")


def _compare_numbers(
    name: str, expected: Tensor, got: Tensor, distance: NDArray[Any], allowed: NDArray[Any] | float
) -> tuple[Comparison, float]:
    if not distance.size:
        return Comparison(True, ""), 0.0
    wrong = distance > allowed
    count = int(np.count_nonzero(wrong))
    if not count:
        return Comparison(True, ""), float(distance.max())
    place = np.unravel_index(int(np.argmax(np.where(wrong, distance, 0))), got.shape)
    largest = distance[place].item()
    bound = np.broadcast_to(np.asarray(allowed), got.shape)[place].item()
    values = f"got {_shown(got[place])}, expected {_shown(expected[place])}"
    differ = f", the largest difference is {largest:.6g} (allowed is {bound:.6g})" if math.isfinite(largest) else ""
    return Comparison(False, f"output '{name}'{_where(place)}: {values}{differ}{_count(count, got.size)}"), float(
        largest
    )


def _where(place: tuple[Any, ...]) -> str:
    return f" at [{', '.join(str(int(index)) for index in place)}]" if place else ""


def _count(wrong: int, size: int) -> str:
    return f"; {wrong} of {size} values differ" if size > 1 else ""


def _plain(value: object) -> object:
    """Return a text as its bytes: BYTES elements may be either."""
    return value.encode() if isinstance(value, str) else value


def _shown(value: Any) -> str:
    value = _plain(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, bytes):
        text = repr(value.decode(errors="backslashreplace"))
        return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(value)} bytes)"
    return f"{value:.9g}" if isinstance(value, float) else str(value)
