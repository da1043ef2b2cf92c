"""Draws a rollout: its ladder of steps, its guardrails as lines with a limit, and its story in order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from django.db.models import QuerySet
from django.utils import timezone

from dashboard.models import AuditEntry, Rollout
from dashboard.releases.rollout_states import UNDER_WAY
from dashboard.rollouts.plan import weight_in_words
from dashboard.rollouts.selectors import GuardrailLine, RolloutStanding, standing
from dashboard.servers.selectors import all_down
from dashboard.shared import heartbeat
from dashboard.shared.choices import RolloutKind, RolloutState
from repository.core.quantities import duration

_ROOM = 1.25  # the width of a line, as a multiple of its largest value
_EDGE = 1.5  # per cent, so that a mark at either end is whole
_STORY = 200  # entries
_MOST_RUNGS = 8  # side by side
QUIET_AFTER = timedelta(
    seconds=15
)  # without a report for so long there were no requests: changes are reported each second
SHOWN_AFTER = timedelta(hours=24)  # an ended rollout stays on the page of releases for this time


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of the ladder, or one rung for `folded` steps. state: done, now, next, stopped. done: how many seconds of its bake
    time have passed."""

    weight: float
    bake_s: float
    state: str
    done: float = 0.0
    folded: int = 0


@dataclass(frozen=True, slots=True)
class DrawnGuardrail:
    """A guardrail with the positions of its values on its line, in per cent of the width, or None for values not yet known."""

    line: GuardrailLine
    stable_x: float | None
    candidate_x: float | None
    limit_x: float | None

    @property
    def by_chance(self) -> bool:
        """True if the candidate is beyond the limit by no more than chance explains."""
        value, limit = self.line.candidate, self.line.limit
        return self.line.state == "holds" and value is not None and limit is not None and value > limit


@dataclass(frozen=True, slots=True)
class Picture:
    """All values that the part of a page about one rollout shows. due: the time of the next automatic step, or None.

    outage: a sentence about a server or process that is down; "" if none is. next: the label of the button for the next step;
    "" if there is no such step. quiet: whether the server has reported no request for a while. person: a sentence that says
    which button somebody must press to continue; "" if the rollout continues automatically.
    """

    standing: RolloutStanding
    outage: str
    ladder: list[Rung]
    guardrails: list[DrawnGuardrail]
    due: datetime | None
    next: str
    quiet: bool
    person: str

    @property
    def rollout(self) -> Rollout:
        return self.standing.rollout

    @property
    def window(self) -> str:
        """The span of time of the figures, in words."""
        seconds = self.standing.recent_s
        return "since it began" if seconds is None else f"last {duration(seconds)}"

    @property
    def under_way(self) -> bool:
        return self.rollout.under_way

    @property
    def last(self) -> bool:
        """True at the last step of a canary, before the promotion."""
        canary = self.rollout.kind == RolloutKind.CANARY
        return self.under_way and self.rollout.next_weight is None and canary


def picture_of(rollout: Rollout) -> Picture:
    """Return the picture of a rollout, in a handful of queries."""
    found, now = standing(rollout), timezone.now()
    runs = rollout.state == RolloutState.RUNNING
    due = now + timedelta(seconds=found.bake_left) if found.bake_left and runs else None
    following = found.next_weight if found.may_advance else None
    quiet = found.told_at is None or now - found.told_at > QUIET_AFTER
    return Picture(
        standing=found,
        outage=outage() if rollout.ended_at is None else "",
        ladder=_ladder(found),
        guardrails=[_drawn(line) for line in found.guardrails],
        due=due,
        next=f"Go on to {weight_in_words(following)}" if following is not None else "",
        quiet=quiet and rollout.state in UNDER_WAY and found.serves,
        person=rollout.waits_for_person,
    )


def outage() -> str:
    """Return a sentence about a server or `watch` that is down; "" if both are up."""
    for server in all_down():
        state = getattr(server, "state", None)
        why = state.last_reason.rstrip(".") if state is not None else "it has not answered yet"
        return f"The server {server.name} is down{f': {why}' if why else ''}. It comes back with what was decided last."
    if heartbeat.is_silent("watch"):
        return "Nothing is heard of the server: the watcher does not answer. The server keeps to this step."
    return ""


def rollout_on_releases(recent: Sequence[Rollout]) -> Rollout | None:
    """Return the rollout for the page of releases: the model's newest, unless it ended long ago."""
    newest = recent[0] if recent else None
    if newest is None or newest.ended_at is None or timezone.now() - newest.ended_at < SHOWN_AFTER:
        return newest
    return None


def story(rollout: Rollout) -> QuerySet[AuditEntry]:
    """Return the audit entries of a rollout, the oldest first. A model has at most one unfinished rollout at a time."""
    rows = AuditEntry.objects.filter(model=rollout.model_id, action__startswith="rollout.", at__gte=rollout.started_at)
    if rollout.ended_at is not None:
        rows = rows.filter(at__lte=rollout.ended_at + timedelta(seconds=1))
        rows = rows.exclude(action="rollout.start", at__gt=rollout.ended_at)
    return rows.order_by("at", "pk")[:_STORY]


def _ladder(found: RolloutStanding) -> list[Rung]:
    rollout = found.rollout
    steps = rollout.plan["steps"]
    if rollout.kind != RolloutKind.CANARY or len(steps) < 2:
        return []
    over = rollout.state in (RolloutState.HOLDING, RolloutState.DONE)
    rungs = []
    for place, step in enumerate(steps):
        state = "done" if over or place < rollout.step else "now" if place == rollout.step else "next"
        if state == "now" and rollout.state not in UNDER_WAY:
            state = "stopped"
        done = step["bake_s"] - found.bake_left if state == "now" and found.bake_left is not None else 0.0
        rungs.append(Rung(step["weight"], step["bake_s"], state, max(done, 0.0)))
    return rungs if len(rungs) <= _MOST_RUNGS else _folded(rungs)


def _folded(rungs: list[Rung]) -> list[Rung]:
    """Return the steps around the present one, and the last; each group of other steps becomes one folded step."""
    at = next((place for place, rung in enumerate(rungs) if rung.state in ("now", "stopped")), len(rungs) - 1)
    shown = {at - 1, at, at + 1, at + 2, len(rungs) - 1}
    found: list[Rung] = []
    for left_out, stretch in groupby(enumerate(rungs), key=lambda one: one[0] not in shown):
        steps = [rung for _, rung in stretch]
        found += [replace(steps[-1], folded=len(steps))] if left_out and len(steps) > 1 else steps
    return found


def _drawn(line: GuardrailLine) -> DrawnGuardrail:
    known = [value for value in (line.stable, line.candidate, line.limit) if value is not None]
    top = max(known, default=0.0) * _ROOM
    return DrawnGuardrail(line, *(_place(value, top) for value in (line.stable, line.candidate, line.limit)))


def _place(value: float | None, top: float) -> float | None:
    if value is None:
        return None
    share = min(value / top, 1.0) if top > 0 else 0.0
    return round(_EDGE + (100 - 2 * _EDGE) * share, 2)
