"""Decides the next move of a deployment. It does no I/O; the caller passes what the servers reported.

A group of servers changes at a time, never two zones at once. The next group begins when every server of the environment
answers, and every reached one serves the release. A server that fails stops the deployment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dashboard.shared.choices import StepState

AWAY_S = 15.0  # a server that has not answered for so long stops the deployment
PATIENCE_S = 1800.0  # the same for one that answers, and neither serves the release nor says why


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A server of a deployment, and what it reported.

    away_s: seconds since it last answered, 0 if it answers now. serves: whether it serves the release as it is wanted now.
    error: why it does not, "" if it has not said. since_s: seconds since it was reached.
    """

    id: int
    name: str
    zone: str
    state: str
    away_s: float = 0.0
    serves: bool = False
    error: str = ""
    since_s: float = 0.0


@dataclass(slots=True)
class Move:
    """What to do now. done, again, begin: ids of steps: that have ended, that serve no more, that are next. stop: why the
    deployment stops, "" if it goes on. failed: the id of the step that stopped it. over: whether all servers have changed."""

    done: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    begin: list[int] = field(default_factory=list)
    stop: str = ""
    failed: int | None = None
    over: bool = False


def in_order(servers: Sequence[tuple[str, str]]) -> list[int]:
    """Return the places of servers in their order: zone by zone, then by name. servers: zone and name."""
    return sorted(range(len(servers)), key=lambda place: servers[place])


def next_move(steps: Sequence[StepFacts], at_once: int) -> Move:
    """Return the next move of a running deployment. steps: all servers of the environment, in order."""
    steps = [one for one in steps if one.state != StepState.LEFT_OUT]
    if not steps:
        return Move(stop="no server is left")
    move = Move()
    for one in steps:
        if one.state == StepState.CHANGING and one.serves:
            move.done.append(one.id)
        elif one.state == StepState.DONE and not one.serves and not one.away_s:
            move.again.append(one.id)
        if not one.serves and (why := _failure(one)):
            return Move(done=move.done, stop=why, failed=one.id if one.state == StepState.CHANGING else None)
    if move.again or any(not one.serves and one.state != StepState.WAITING for one in steps):
        return move
    if any(one.away_s for one in steps):
        return move
    waiting = [one for one in steps if one.state == StepState.WAITING]
    move.over = not waiting
    move.begin = [one.id for one in _group(waiting, at_once)]
    return move


def _failure(one: StepFacts) -> str:
    """Return why a server stops the deployment, as a clause; "" if it does not."""
    if one.away_s > AWAY_S:
        return f"server {one.name} does not answer"
    if one.state != StepState.CHANGING:
        return ""
    if one.error:
        return f"server {one.name} failed: {one.error}"
    if one.since_s > PATIENCE_S and not one.away_s:
        return f"server {one.name} has not served the release for {PATIENCE_S / 60:.0f} min, and does not say why"
    return ""


def _group(waiting: Sequence[StepFacts], at_once: int) -> list[StepFacts]:
    """Return the next servers: at most `at_once` that follow each other in one zone."""
    group: list[StepFacts] = []
    for one in waiting[:at_once]:
        if group and one.zone != group[0].zone:
            break
        group.append(one)
    return group
