"""Counts the replies to a window of captured requests: what differs, what fails, and which differ most."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dashboard.models.replay import FailureReason, OutputFigures, ReplayFigures
from dashboard.replays.encoding import Array, as_json, outputs_in, request_body
from dashboard.replays.sending import Reply
from dashboard.shared.exceptions import DashboardError
from repository.core.capture_files import Rows
from repository.core.comparison import WORST, Comparison, Tolerance, compare
from repository.core.histogram import bucket_of
from repository.core.json_types import JsonObject

KEPT = 50  # requests that differ most
KEPT_BYTES = 64 << 10  # of an answer that is kept
MOST_REASONS = 20
OTHER = "other reasons"
BINS = 6
_REASON_CHARACTERS = 200


@dataclass(frozen=True, slots=True, order=True)
class Worst:
    """A request that differs. Sorted by how bad it is, the least bad first."""

    score: float
    max_absolute: float
    place: int  # minus its number: of two that are equally bad, the later one goes first
    detail: str = field(compare=False)
    outputs: list[JsonObject] = field(compare=False)

    @property
    def number(self) -> int:
        return -self.place


@dataclass(frozen=True, slots=True)
class Rules:
    """How answers are compared. classes: outputs whose first class is compared. unlike: masked outputs, which are not."""

    tolerance: Tolerance
    classes: frozenset[str]
    unlike: frozenset[str]


class Window:
    """Consecutive requests of one file, `rows[places]`, whose replies are counted into `figures`. worst: those that differ
    most, of all windows so far."""

    def __init__(self, rows: Rows, places: range, rules: Rules, figures: ReplayFigures, worst: list[Worst]) -> None:
        self.rows, self.places = rows, places
        self.figures, self.worst = figures, worst
        self.answered = 0
        self._rules = rules

    @property
    def last(self) -> int:
        """The number of the last request."""
        return int(self.rows.numbers[self.places[-1]])

    def bodies(self) -> Iterator[tuple[bytes, Mapping[str, str]]]:
        for place in self.places:
            inputs = {name: column.tensor(place) for name, column in self.rows.inputs.items()}
            there = {name: tensor for name, tensor in inputs.items() if tensor is not None}
            yield request_body(there, list(self._captured(place)))

    def count(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            self._count(self.places[reply.place], reply)

    def _captured(self, place: int) -> dict[str, Array]:
        """Return the outputs of a captured answer that can be compared."""
        outputs = {
            name: column.tensor(place) for name, column in self.rows.outputs.items() if name not in self._rules.unlike
        }
        return {name: tensor for name, tensor in outputs.items() if tensor is not None}

    def _count(self, place: int, reply: Reply) -> None:
        figures, failure = self.figures, reply.failure
        answered: dict[str, Array] = {}
        if not failure:
            self.answered += 1
            try:
                answered = outputs_in(reply.answer)
            except DashboardError as error:
                failure = error.message
        if self.rows.errors[place] is not None:
            figures["failed_before"] += 1
            figures["mended"] += not failure
        elif failure:
            figures["failed"] += 1
            _add_reason(figures["reasons"], failure[:_REASON_CHARACTERS], int(self.rows.numbers[place]))
        else:
            bucket = str(bucket_of(int(self.rows.latency_us[place])))
            figures["captured"][bucket] = figures["captured"].get(bucket, 0) + 1
            self._compare(place, self._captured(place), answered)

    def _compare(self, place: int, captured: Mapping[str, Array], answered: Mapping[str, Array]) -> None:
        if not captured:
            return
        rules, figures = self._rules, self.figures
        found = {
            name: compare(_only(name, captured), _only(name, answered), rules.tolerance, rules.classes)
            for name in captured
        }
        figures["compared"] += 1
        for name, one in found.items():
            _add_output(figures["outputs"].setdefault(name, _no_output()), one)
        if any(one.disagreed for one in found.values()):
            figures["differ"] += 1
            self._offer(int(self.rows.numbers[place]), found.values(), lambda: _kept(captured, answered))

    def _offer(self, number: int, found: Iterable[Comparison], outputs: Callable[[], list[JsonObject]]) -> None:
        """Keep a request if it is among the worst."""
        found = list(found)
        key = max(one.score for one in found), max(one.max_absolute for one in found), -number
        if len(self.worst) >= KEPT and key <= (self.worst[0].score, self.worst[0].max_absolute, self.worst[0].place):
            return
        detail = "; ".join(words for one in found for words in one.details)[:1000]
        heapq.heappush(self.worst, Worst(*key, detail, outputs()))
        if len(self.worst) > KEPT:
            heapq.heappop(self.worst)


def _only(name: str, outputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: outputs[name]} if name in outputs else {}


def _kept(captured: Mapping[str, Array], answered: Mapping[str, Array]) -> list[JsonObject]:
    """Return an answer as JSON; [] if it is too large."""
    there = {name: answered[name] for name in captured if name in answered}
    size = sum(sum(map(len, one.reshape(-1))) if one.dtype.kind == "O" else one.nbytes for one in there.values())
    return [as_json(name, tensor) for name, tensor in there.items()] if size <= KEPT_BYTES else []


def _add_reason(reasons: dict[str, FailureReason], reason: str, number: int) -> None:
    if reason not in reasons and len(reasons) >= MOST_REASONS:
        reason = OTHER
    known = reasons.setdefault(reason, FailureReason(requests=0, first=number))
    known["requests"] += 1
    known["first"] = min(known["first"], number)


def _no_output() -> OutputFigures:
    return OutputFigures(compared=0, differ=0, max_absolute=0.0, max_relative=0.0, top1=[0, 0], bins=[0] * BINS)


def _add_output(figures: OutputFigures, found: Comparison) -> None:
    figures["compared"] += 1
    figures["differ"] += found.disagreed
    figures["max_absolute"] = max(figures["max_absolute"], found.max_absolute)
    figures["max_relative"] = max(figures["max_relative"], found.max_relative)
    figures["top1"][0] += found.top1_compared
    figures["top1"][1] += found.top1_agreed
    figures["bins"][_bin(found)] += 1


def _bin(found: Comparison) -> int:
    if not found.disagreed:
        return 1 if found.max_absolute else 0
    return 5 if found.score >= WORST else 2 if found.score <= 10 else 3 if found.score <= 100 else 4
