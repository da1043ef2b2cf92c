"""Compares the candidate's answer to a request with the answer of the stable version, in a shadow and in a replay.

compare(stable, candidate, tolerance, classes) -> Comparison

Elements agree if |candidate - stable| <= absolute + relative * |stable|, as in numpy's allclose. The reported relative
difference is |candidate - stable| / max(|candidate|, |stable|), which stays finite for a stable value of 0. NaN agrees with
NaN, and an infinity with the same infinity. An element that is finite in only one of the answers does not agree, and is left
out of the reported differences.

BYTES agree if they are equal. BYTES that are JSON, as many services answer, also agree if their numbers agree and all else is
equal. The first class of a row is the index of its greatest number; of a JSON object, the key of its greatest number. First
classes are compared for such objects, and for outputs with one axis of at least two numbers besides the batch axis. This is
thread-safe.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelOutput

from repository.core.capture_files import Tensor, datatype_name

WORST = 1e9  # the score of values that cannot be compared as numbers
_MOST = 1e6  # the highest score of numbers
_MAX_JSON = 1 << 20  # the largest element that is parsed as JSON, in bytes
_MAX_DETAILS = 5
_SMALL = 64 << 10  # up to this many bytes, tensors are first compared as a whole, because most answers are equal
_LARGEST = 1e290  # the largest reported difference, so that sums stay finite: JSON has no infinity
_TINY = 5e-324  # replaces a divisor of 0: the quotient is then 0 or infinite
_AT_ONCE = 1 << 16  # elements that are converted to doubles at a time


class Tolerance(NamedTuple):
    """How far an element may differ: by `absolute` plus `relative` times the stable value."""

    absolute: float
    relative: float


@dataclass(slots=True)
class Comparison:
    """The result of comparing two answers to one request.

    mismatched: whether names, shapes or datatypes differ. disagreed: whether the answers are mismatched, or an element is
    beyond the tolerance.
    max_absolute, max_relative: the greatest differences of elements. mean_absolute: the mean difference of all numbers of all
    outputs. These differences are finite even if numbers overflow.
    top1_compared: how many rows have classes. top1_agreed: how many of these have the same first class in both answers.
    score: the greatest difference in multiples of the tolerance, or WORST if values other than numbers differ.
    details: the differences, as clauses.
    """

    mismatched: bool = False
    disagreed: bool = False
    max_absolute: float = 0.0
    mean_absolute: float = 0.0
    max_relative: float = 0.0
    top1_compared: int = 0
    top1_agreed: int = 0
    score: float = 0.0
    details: list[str] = field(default_factory=list)
    _sum: float = 0.0
    _count: int = 0

    def tell(self, detail: str) -> None:
        """Keep the description of a difference, up to _MAX_DETAILS descriptions."""
        if len(self.details) < _MAX_DETAILS:
            self.details.append(detail)

    def mismatch(self, detail: str) -> None:
        """Record that outputs cannot be compared."""
        self.mismatched = True
        self.differ(detail)

    def differ(self, detail: str) -> None:
        """Record that values other than numbers are not equal."""
        self.disagreed = True
        self.score = WORST
        self.tell(detail)

    def count_difference(self, stable: NDArray[Any], candidate: NDArray[Any], tolerance: Tolerance) -> int | None:
        """Count how much numbers differ. Return how many of them are beyond the tolerance. If a number is not finite, count
        nothing and return None."""
        if not stable.size:
            return 0
        difference = np.abs(candidate - stable)
        greatest = float(np.maximum.reduce(difference))
        if not math.isfinite(greatest) and not (np.isfinite(stable).all() and np.isfinite(candidate).all()):
            return None
        size = np.abs(stable)
        relative = difference / np.maximum(np.maximum(np.abs(candidate), size), _TINY)
        self.max_absolute = max(self.max_absolute, min(_LARGEST, greatest))
        self.max_relative = max(self.max_relative, min(2.0, float(np.fmax.reduce(relative))))
        self._sum = min(_LARGEST, self._sum + float(np.add.reduce(difference)))
        self._count += difference.size
        self.mean_absolute = self._sum / self._count
        allowed = size * tolerance.relative + tolerance.absolute
        found = int(np.count_nonzero(difference > allowed))
        if found:
            self.disagreed = True
            times = np.fmax.reduce(difference / np.maximum(allowed, _TINY))
            self.score = max(self.score, min(_MOST, float(times)))
        return found

    def count_equal(self, size: int) -> None:
        """Count `size` numbers that are equal."""
        self._count += size
        self.mean_absolute = self._sum / max(1, self._count)


def compare(
    stable: Mapping[str, Tensor], candidate: Mapping[str, Tensor], tolerance: Tolerance, classes: frozenset[str]
) -> Comparison:
    """Compare the outputs of two answers. classes: the outputs whose first class is compared."""
    found = Comparison()
    with np.errstate(all="ignore"):  # a subtraction may overflow
        for name in dict.fromkeys((*stable, *candidate)):
            if name not in candidate:
                found.mismatch(f"output '{name}' is missing in the candidate's answer")
            elif name not in stable:
                found.mismatch(f"output '{name}' is only in the candidate's answer")
            else:
                _compare_output(found, name, stable[name], candidate[name], tolerance, name in classes)
    return found


def class_outputs(config: ModelConfig) -> frozenset[str]:
    """Return the outputs whose elements may be classes: outputs with labels or, if there are none, outputs with one axis
    besides the batch axis. The batch axis of a model without batching is a first dimension of 1 or -1."""
    labelled = frozenset(output.name for output in config.output if output.label_filename)
    return labelled or frozenset(output.name for output in config.output if _has_one_axis(config, output))


def _has_one_axis(config: ModelConfig, output: ModelOutput) -> bool:
    return len(output.dims) == 1 or (not config.max_batch_size and len(output.dims) == 2 and output.dims[0] in (-1, 1))


def _compare_output(
    found: Comparison, name: str, stable: Tensor, candidate: Tensor, tolerance: Tolerance, has_classes: bool
) -> None:
    kinds = datatype_name(stable.dtype), datatype_name(candidate.dtype)
    if kinds[0] != kinds[1]:
        found.mismatch(f"output '{name}' is {kinds[0]} of stable but {kinds[1]} of the candidate")
    if stable.shape != candidate.shape:
        found.mismatch(
            f"output '{name}' is {list(stable.shape)} of stable but {list(candidate.shape)} of the candidate"
        )
    elif "BYTES" in kinds:
        if kinds[0] == kinds[1]:
            _compare_bytes(found, name, stable, candidate, tolerance)
    else:
        _compare_numbers(found, name, stable, candidate, tolerance, has_classes)


def _compare_numbers(
    found: Comparison, name: str, stable: Tensor, candidate: Tensor, tolerance: Tolerance, has_classes: bool
) -> None:
    if has_classes and stable.ndim and stable.shape[-1] >= 2 and stable.size and stable.dtype.kind != "b":
        _compare_classes(found, name, stable, candidate)
    if stable.dtype == candidate.dtype and stable.nbytes <= _SMALL and stable.tobytes() == candidate.tobytes():
        found.count_equal(stable.size)
        return
    wide = np.longdouble if stable.dtype.kind in "iu" and stable.dtype.itemsize == 8 else np.float64
    flat = stable.reshape(-1), candidate.reshape(-1)
    odd = beyond = 0
    for start in range(0, stable.size, _AT_ONCE):
        first, second = (one[start : start + _AT_ONCE].astype(wide) for one in flat)
        apart = found.count_difference(first, second, tolerance)
        if apart is None:
            finite = np.isfinite(first) & np.isfinite(second)
            same = (first == second) | (np.isnan(first) & np.isnan(second))
            odd += int(np.count_nonzero(~finite & ~same))
            apart = found.count_difference(first[finite], second[finite], tolerance) or 0
        beyond += apart
    if odd:
        found.differ(f"output '{name}': {odd} of {stable.size} elements are NaN or infinite in only one answer")
    if beyond:
        found.tell(f"output '{name}': {beyond} of {stable.size} elements are beyond the tolerance")


def _compare_classes(found: Comparison, name: str, stable: Tensor, candidate: Tensor) -> None:
    if stable.dtype.kind not in "iuf" or candidate.dtype.kind not in "iuf":
        stable, candidate = stable.astype(np.float32), candidate.astype(np.float32)  # BF16, which numpy cannot sort
    if stable.size == stable.shape[-1]:  # one row
        classes = int(stable.argmax()), int(candidate.argmax())
        found.top1_compared += 1
        found.top1_agreed += classes[0] == classes[1]
        if classes[0] != classes[1]:
            found.tell(f"output '{name}': the first class differs")
        return
    first, second = (one.reshape(-1, one.shape[-1]).argmax(1) for one in (stable, candidate))
    found.top1_compared += len(first)
    agreed = first == second
    found.top1_agreed += int(np.count_nonzero(agreed))
    if not agreed.all():
        apart = int(np.count_nonzero(~agreed))
        found.tell(f"output '{name}': the first class differs in {apart} of {agreed.size} rows")


# -- BYTES ---------------------------------------------------------------------------------------------------------------
def _compare_bytes(found: Comparison, name: str, stable: Tensor, candidate: Tensor, tolerance: Tolerance) -> None:
    for index, (one, other) in enumerate(zip(stable.ravel(), candidate.ravel(), strict=True)):
        values = _json_of(one), _json_of(other)
        if None not in values:
            where = f"output '{name}', element {index}"
            _compare_json(found, where, values[0], values[1], tolerance)
        elif _raw(one) != _raw(other):
            found.differ(f"output '{name}': element {index} is not equal")


def _raw(element: object) -> bytes:
    return element if isinstance(element, bytes) else str(element).encode()


def _json_of(element: object) -> object:
    """Parse an element that is a JSON object or list; return None for any other element."""
    raw = _raw(element)
    if len(raw) > _MAX_JSON or raw.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        value: object = orjson.loads(raw)
    except ValueError:
        return None
    return value


def _compare_json(found: Comparison, where: str, stable: object, candidate: object, tolerance: Tolerance) -> None:
    """Compare two JSON values: their numbers within the tolerance, all else for equality."""
    first, second = _first_class(stable), _first_class(candidate)
    if first is not None and second is not None:
        found.top1_compared += 1
        found.top1_agreed += first == second
    numbers: list[tuple[float, float]] = []
    waiting: list[tuple[object, object]] = [(stable, candidate)]
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                found.mismatch(f"{where}: the objects in the JSON have other members")
                return
            waiting += [(value, other[key]) for key, value in one.items()]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                found.mismatch(f"{where}: the lists in the JSON have {len(one)} and {len(other)} elements")
                return
            waiting += zip(one, other, strict=True)
        elif _is_number(one) and _is_number(other):
            numbers.append((float(one), float(other)))  # type: ignore[arg-type]
        elif type(one) is not type(other) or one != other:
            found.differ(f"{where}: the JSON is not equal")
            return
    pairs = np.array(numbers, np.float64).reshape(-1, 2)
    beyond = found.count_difference(pairs[:, 0], pairs[:, 1], tolerance)
    if beyond is None:
        found.differ(f"{where}: a number in the JSON is too large to compare")
    elif beyond:
        found.tell(f"{where}: {beyond} of {len(pairs)} numbers in the JSON are beyond the tolerance")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _first_class(value: object) -> str | None:
    """Return the key of the greatest number in an object of two or more numbers, or None for any other value."""
    if not isinstance(value, dict) or len(value) < 2 or not all(_is_number(one) for one in value.values()):
        return None
    first: str = max(value, key=lambda key: float(value[key]))
    return first
