"""Compares the answers of a converted model with those of its source, and says in one sentence whether they are the same."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ANSWERS, CONVERTED, VERDICT = "answers.npz", "converted.npz", "verdict.json"


_ALIKE = (
    "the source answers all sample rows alike, so that the comparison says little: add examples.csv with other rows"
)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a number may be from the source's: absolute + relative * |source's|.

    If all of the source's numbers are below 1, absolute is as much less, so that a model that always answers 0 is no good copy
    of one with small answers. agreement: the least share of equal labels, and of rows whose highest score is of the same class.
    """

    absolute: float
    relative: float
    agreement: float


_ADVICE = "choose another opset or datatype, or keep the source"  # unless the recipe knows better
# By the least exact datatype on the way: of an output, or of the weights.
TOLERANCES = {
    "FP64": Tolerance(1e-6, 1e-5, 1.0),
    "FP32": Tolerance(1e-4, 1e-3, 1.0),
    "FP16": Tolerance(2e-2, 2e-2, 0.97),
    "INT8": Tolerance(0.05, 0.1, 0.9),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one output.

    maximum, mean: of the absolute differences; None for labels. agreement: the share of rows with an equal label, or with the
    same class first; None for other numbers. lost: how many numbers are NaN or infinite on one side alone.
    """

    output: str
    maximum: float | None
    mean: float | None
    agreement: float | None
    within: bool
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """sentence: why the converted model is refused; empty if it is as good as its source. caution: why that says little."""

    rows: int
    tolerance: Tolerance
    differences: tuple[Difference, ...]
    sentence: str = ""
    caution: str = ""

    @property
    def maximum(self) -> float | None:
        return max((one.maximum for one in self.differences if one.maximum is not None), default=None)

    @property
    def mean(self) -> float | None:
        means = [one.mean for one in self.differences if one.mean is not None]
        return float(np.mean(means)) if means else None

    @property
    def agreement(self) -> float | None:
        return min((one.agreement for one in self.differences if one.agreement is not None), default=None)

    def as_json(self) -> dict[str, Any]:
        total = {"maximum": self.maximum, "mean": self.mean, "agreement": self.agreement}
        return {**asdict(self), **total, "differences": [asdict(one) for one in self.differences]}


def check(target: Path, report: dict[str, Any]) -> Verdict:
    """Compare the two files of answers in the folder that a recipe wrote."""
    with (
        np.load(target / ANSWERS, allow_pickle=False) as own,
        np.load(target / CONVERTED, allow_pickle=False) as converted,
    ):
        return compare(dict(own), dict(converted), report)


def compare(source: dict[str, np.ndarray], converted: dict[str, np.ndarray], report: dict[str, Any]) -> Verdict:
    """Compare answers by the names of the outputs. report: the recipe's, which names the outputs that are scores of classes,
    the datatype of the weights if it is less exact than the outputs', and what to do if the answers differ (`if_different`)."""
    tolerance = TOLERANCES[report.get("precision") or _least_exact(report)]
    rows = min((len(array) for array in source.values() if array.ndim), default=0)
    if missing := sorted(source.keys() - converted.keys()) or (not source and ["any output"]):
        return Verdict(
            rows, tolerance, (), f"the converted model has no output {', '.join(missing)}: choose another recipe"
        )
    scores = {name: source[name].astype(np.float64) for name in report.get("scores", ()) if name in source}
    ties = _ties(scores, tolerance, rows)
    differences: list[Difference] = []
    sentence = ""
    for name, expected in source.items():
        found = _shaped(converted[name], expected)
        if found is None:
            shapes = f"{_shape(converted[name])} where its source answers {_shape(expected)}"
            return Verdict(
                rows, tolerance, tuple(differences), f"output '{name}' has the shape {shapes}: choose other options"
            )
        if _is_label(expected):
            one = _labels(name, expected, found, tolerance, ties)
        else:
            one = _numbers(name, expected, found, tolerance, name in scores)
        differences.append(one)
        if not one.within and not sentence:
            sentence = _sentence(one, tolerance, str(report.get("if_different") or _ADVICE))
    alike = rows > 1 and all(len(np.unique(array, axis=0)) == 1 for array in source.values())
    return Verdict(rows, tolerance, tuple(differences), sentence, _ALIKE if alike else "")


def _least_exact(report: dict[str, Any]) -> str:
    datatypes = {one["datatype"] for one in (*report.get("inputs", ()), *report.get("outputs", ()))}
    return next((kind for kind in ("FP16", "FP32", "FP64") if kind in datatypes), "FP32")


def _is_label(array: np.ndarray) -> bool:
    return array.dtype.kind in "USbiu"


def _ties(scores: dict[str, np.ndarray], tolerance: Tolerance, rows: int) -> np.ndarray:
    """Return bool [rows]: whether two classes share the first place, so that either label is right."""
    found = np.zeros(rows, bool)
    for array in scores.values():
        if array.ndim == 2 and array.shape[1] > 1:
            found |= _margin(array) <= tolerance.absolute
        elif array.ndim == 2:  # the score of a decision between two classes
            found |= np.abs(array[:, 0]) <= tolerance.absolute
    return found


def _margin(scores: np.ndarray) -> np.ndarray:
    """Return by how much the highest of the last dimension is ahead of the second."""
    first = np.partition(scores, -2, -1)
    return np.asarray(first[..., -1] - first[..., -2])


def _shaped(found: np.ndarray, expected: np.ndarray) -> np.ndarray | None:
    """Return an answer in the shape of the source's; None if the shapes differ in more than dimensions of one element."""
    if [size for size in found.shape if size != 1] != [size for size in expected.shape if size != 1]:
        return None
    return found.reshape(expected.shape)


def _labels(name: str, expected: np.ndarray, found: np.ndarray, tolerance: Tolerance, ties: np.ndarray) -> Difference:
    if expected.dtype.kind in "US" or found.dtype.kind in "US":
        expected, found = expected.astype(str), found.astype(str)
    equal = expected == found
    if expected.ndim and len(ties) == len(expected):
        equal[ties] = True
    share = float(equal.mean()) if expected.size else 1.0
    return Difference(name, None, None, share, share >= tolerance.agreement)


def _numbers(name: str, expected: np.ndarray, found: np.ndarray, tolerance: Tolerance, are_scores: bool) -> Difference:
    a, b = expected.astype(np.float64), found.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    lost = ~same & ~(np.isfinite(a) & np.isfinite(b))
    apart = np.abs(np.where(same | lost, 0.0, a) - np.where(same | lost, 0.0, b))
    sizes = np.abs(np.where(np.isfinite(a), a, 0.0))
    largest = float(sizes.max(initial=0.0)) or 1.0
    relative = tolerance.relative * (largest if tolerance is TOLERANCES["INT8"] else sizes)
    within = not lost.any() and bool(np.all(apart <= tolerance.absolute * min(1.0, largest) + relative))
    agreement = None
    if are_scores and a.ndim > 1 and a.shape[-1] > 1:
        agreement = float(((a.argmax(-1) == b.argmax(-1)) | (_margin(a) <= tolerance.absolute)).mean())
        within = within and agreement >= tolerance.agreement
    maximum, mean = (float(apart.max()), float(apart.mean())) if apart.size else (0.0, 0.0)
    return Difference(name, maximum, mean, agreement, within, int(lost.sum()))


def _sentence(one: Difference, tolerance: Tolerance, advice: str) -> str:
    start = f"output '{one.output}' differs from the source's"
    if one.maximum is None:
        return f"{start} in {1 - (one.agreement or 0):.0%} of the rows: {advice}"
    said = f"{start} by {one.maximum:.3g} at most and {one.mean:.3g} on average"
    if one.agreement is not None and one.agreement < tolerance.agreement:
        said += f", with another class first in {1 - one.agreement:.0%} of the rows"
    if one.lost:
        said += f", and {one.lost} numbers are NaN or infinite on one side alone"
    value = "largest value" if tolerance is TOLERANCES["INT8"] else "value"
    allowed = f"{tolerance.absolute:g} plus {tolerance.relative:.1%} of the {value} is allowed"
    return f"{said}, where {allowed}: {advice[:300]}"


def _shape(array: np.ndarray) -> str:
    return f"[{', '.join(map(str, array.shape))}]"
