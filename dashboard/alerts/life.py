"""The states of an alert, without I/O.

    (none) --found--> pending --found for hold_s--> firing --not found for clear_s--> resolved
                      pending --not found for hold_s--> (none)

So a condition that comes and goes, such as that of a process that ends again and again, is told as well.

`services` writes each arrow as one statement that checks the old state, so that of two processes only one makes the move and
tells people.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from dashboard.shared.choices import AlertState


class Move(Enum):
    STAY = "stay"
    OPEN = "open"
    FIRE = "fire"
    DISCARD = "discard"
    RESOLVE = "resolve"


def next_move(
    state: str | None, *, found: bool, now: float, since: float, seen_at: float, hold_s: float, clear_s: float
) -> Move:
    """Return what happens to an alert. state: of the open alert, None for none. found: whether its condition holds now.

    since: when the condition began. seen_at: when it held last. All times in seconds.
    """
    if state is None:
        return Move.OPEN if found else Move.STAY
    if state == AlertState.PENDING:
        if found:
            return Move.FIRE if now - since >= hold_s else Move.STAY
        return Move.DISCARD if now - seen_at >= hold_s else Move.STAY
    return Move.RESOLVE if not found and now - seen_at >= clear_s else Move.STAY


class Episode(NamedTuple):
    """An alert that fires or has fired. ended: when it was resolved, in seconds; None while it fires."""

    kind: str
    ended: float | None


def tells_already(unless: Mapping[str, float], episodes: Iterable[Episode], now: float) -> bool:
    """Return whether another alert on the same subject tells the same fault: it fires, or ended a moment ago.

    unless: kind -> the seconds after its end that count as a moment.
    """
    return any(one.kind in unless and (one.ended is None or now - one.ended <= unless[one.kind]) for one in episodes)
