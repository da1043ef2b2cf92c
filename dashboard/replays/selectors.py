"""Reads replays: those of a capture, and the requests that differ most, side by side."""

from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import QuerySet

from dashboard.access.authorisation import Actor
from dashboard.captures.selectors import reading_record, require_reader, tensor_words
from dashboard.drift.reading import files_after
from dashboard.models import Capture, Replay, ReplayDifference
from dashboard.replays.encoding import as_json
from dashboard.rollouts.differences import OutputDifference, differences_of
from dashboard.shared.exceptions import NotFound
from repository.core.capture_files import Rows, read_rows
from repository.core.json_types import JsonObject

SHOWN = 20  # requests on the page
NAMES = "the captured answer", "the replay"


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A request that differs, with both answers. inputs: each input in short words."""

    difference: ReplayDifference
    id: str
    inputs: dict[str, str]
    captured: list[JsonObject]
    compared: list[OutputDifference]


def replays(capture: Capture) -> QuerySet[Replay]:
    return Replay.objects.filter(capture=capture).select_related("version", "job")


def replay_get(capture: Capture, pk: int) -> Replay:
    try:
        found = replays(capture).get(pk=pk)
    except Replay.DoesNotExist:
        raise NotFound(f"the capture has no replay {pk}; it may have been deleted") from None
    found.capture = capture
    return found


def worst_requests(replay: Replay, actor: Actor, count: int = SHOWN) -> list[SideBySide]:
    """Return the requests that differ most with both answers, and record that the actor reads them, or why requests
    failed. Raises CaptureUnusable."""
    capture = replay.capture
    require_reader(actor, capture.model)
    differences = list(replay.differences.all()[:count])
    if differences or replay.figures["reasons"]:
        reading_record(capture, actor, f"Looked at replayed requests to {capture.model.name}")
    places = {number: (rows, place) for number, rows, place in _places(capture, [one.number for one in differences])}
    return [_side_by_side(one, *places[one.number]) for one in differences if one.number in places]


def _places(capture: Capture, numbers: list[int]) -> Iterator[tuple[int, Rows, int]]:
    """Yield where the requests with these numbers are."""
    wanted = sorted(numbers)
    while wanted:
        files = files_after(capture.folder, wanted[0] - 1)
        if not files:
            return
        rows = read_rows(files[0].path)
        place_of = {number: place for place, number in enumerate(rows.numbers.tolist())}
        yield from ((number, rows, place_of[number]) for number in wanted if number in place_of)
        last = int(rows.numbers[-1])
        wanted = [number for number in wanted if number > last]


def _side_by_side(difference: ReplayDifference, rows: Rows, place: int) -> SideBySide:
    inputs = {name: tensor_words(column, place) for name, column in rows.inputs.items()}
    answer = {name: column.tensor(place) for name, column in rows.outputs.items()}
    replayed = {row["name"] for row in difference.outputs}
    captured = [
        as_json(name, tensor)
        for name, tensor in answer.items()
        if tensor is not None and (name in replayed or not difference.outputs)
    ]
    compared = differences_of(captured, difference.outputs, NAMES) if difference.outputs else []
    return SideBySide(difference, rows.ids[place], inputs, captured, compared)
