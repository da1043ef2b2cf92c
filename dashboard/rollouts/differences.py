"""Compares two answers to one request: which elements differ, and which differ most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.rollouts.tensor_pictures import picture_of
from repository.core.errors import InvalidExample
from repository.core.tensors import Element, Tensor, read_tensor

SHOWN = 40  # the most elements of a tensor, and pairs of an output, that are shown
NAMES = "stable", "the candidate"
_LONGEST = 200  # the most characters that are shown of an element that is a text

Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ShownTensor:
    """The first elements of a tensor, as text. more: the number of elements not shown. picture: the URL of an image; "" if
    there is none."""

    name: str
    datatype: str
    shape: list[int]
    elements: list[str]
    more: int
    picture: str


@dataclass(frozen=True, slots=True)
class Pair:
    """One element of both answers. place: its index, such as "[0, 3]". difference: a number, or None for texts and infinity."""

    place: str
    stable: str
    candidate: str
    difference: float | None
    relative: float | None
    largest: bool


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """One output of both answers. wrong: a sentence that says why its elements cannot be compared. pairs: unequal elements, the
    largest difference first. differing: the number of unequal elements, of `count`."""

    name: str
    stable: ShownTensor | None
    candidate: ShownTensor | None
    wrong: str
    pairs: list[Pair]
    differing: int
    count: int


def shown_tensors(rows: object) -> list[ShownTensor]:
    """Return tensors from the JSON of examples for display, without those that cannot be read."""
    return [_format_tensor(tensor) for tensor in _tensors(rows).values()]


def differences_of(stable: object, candidate: object, names: Names = NAMES) -> list[OutputDifference]:
    """Return every output of two answers, in the order of the stable answer. names: what sentences call the two answers."""
    one, other = _tensors(stable), _tensors(candidate)
    return [_difference(name, one.get(name), other.get(name), names) for name in dict.fromkeys([*one, *other])]


def _tensors(rows: object) -> dict[str, Tensor]:
    found = {}
    for row in rows if isinstance(rows, list) else []:
        try:
            tensor = read_tensor(row)
        except InvalidExample:
            continue
        found[tensor.name] = tensor
    return found


def _difference(name: str, stable: Tensor | None, candidate: Tensor | None, names: Names) -> OutputDifference:
    sides = [_format_tensor(one) if one is not None else None for one in (stable, candidate)]
    if stable is None or candidate is None:
        wrong = f"Only {names[1] if stable is None else names[0]} has it."
        return OutputDifference(name, sides[0], sides[1], wrong, [], 0, 0)
    if stable.shape != candidate.shape:
        wrong = f"Shape {list(stable.shape)} of {names[0]}, {list(candidate.shape)} of {names[1]}."
        return OutputDifference(name, sides[0], sides[1], wrong, [], 0, 0)
    wrong = (
        ""
        if stable.datatype == candidate.datatype
        else f"{stable.datatype} of {names[0]}, {candidate.datatype} of {names[1]}."
    )
    differing = [
        (_apart(one, other), place)
        for place, (one, other) in enumerate(zip(stable.elements, candidate.elements, strict=True))
        if not _same(one, other)
    ]
    differing.sort(key=lambda pair: (-pair[0], pair[1]))
    shown = [place for _, place in differing[:SHOWN]]
    pairs = [_pair(stable, candidate, place, largest=rank == 0) for rank, place in enumerate(shown)]
    return OutputDifference(name, sides[0], sides[1], wrong, pairs, len(differing), len(stable.elements))


def _pair(stable: Tensor, candidate: Tensor, place: int, *, largest: bool) -> Pair:
    one, other = stable.elements[place], candidate.elements[place]
    apart = None if isinstance(one, bytes) or isinstance(other, bytes) else _apart(one, other)
    relative = None
    if apart is not None and math.isfinite(apart):
        top = max(abs(float(one)), abs(float(other)))
        relative = apart / top if top else None
    difference = apart if apart is not None and math.isfinite(apart) else None
    return Pair(_place(place, stable.shape), _text(one), _text(other), difference, relative, largest)


def _apart(one: Element, other: Element) -> float:
    """Return the difference of two elements; infinity if the difference is not a number."""
    if isinstance(one, bytes) or isinstance(other, bytes):
        return math.inf
    whole = isinstance(one, int) and isinstance(other, int)  # floats could round both integers to one value
    apart = float(abs(one - other)) if whole else abs(float(one) - float(other))
    return math.inf if math.isnan(apart) else apart


def _same(one: Element, other: Element) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return one == other


def _place(index: int, shape: Sequence[int]) -> str:
    """Return the indices of the element at `index` in row-major order."""
    places: list[int] = []
    for size in reversed(shape):
        places.insert(0, index % size)
        index //= size
    return str(places)


def _format_tensor(tensor: Tensor) -> ShownTensor:
    texts = [_text(one) for one in tensor.elements[:SHOWN]]
    more = len(tensor.elements) - len(texts)
    return ShownTensor(tensor.name, tensor.datatype, list(tensor.shape), texts, more, picture_of(tensor))


def _text(element: Element) -> str:
    if isinstance(element, bytes):
        text = element[:_LONGEST].decode("utf-8", "replace")
        return text if len(element) <= _LONGEST else f"{text}…"
    return f"{element:.7g}" if isinstance(element, float) else str(element)
