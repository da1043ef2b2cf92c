"""How a rollout is drawn: its ladder of steps, its guardrails as lines with a limit, its story in the order it happened."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.utils import timezone

from dashboard.models import AuditEntry, Model, Rollout
from dashboard.releases.rollout_states import UNDER_WAY
from dashboard.rollouts.plan import weight_in_words
from dashboard.rollouts.selectors import GuardrailLine, RolloutStanding, rollouts, standing
from dashboard.servers.selectors import all_down
from dashboard.shared.choices import RolloutKind, RolloutState
from repository.core.quantities import duration

_ROOM = 1.25  # that a line leaves behind its largest value
_EDGE = 1.5  # per cent, so that a mark at either end is whole
_STORY = 200  # entries
SHOWN_AFTER = timedelta(hours=24)  # that the end of a rollout is told on the page of releases


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of the ladder. state: done, now, next. done: seconds of its bake time that are over."""

    weight: float
    bake_s: float
    state: str
    done: float = 0.0


@dataclass(frozen=True, slots=True)
class DrawnGuardrail:
    """A guardrail with where its values stand on its line, in per cent of the width; None for what is not known yet."""

    line: GuardrailLine
    stable_x: float | None
    candidate_x: float | None
    limit_x: float | None


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that the part of a page about one rollout shows. due: when the next step comes by itself, or None.

    outage: which server is down, a sentence; "" for none. next: what the button for the next step does, in words; "" where
    there is no such step. back: what going back does. stale: whether the server has told nothing new for a while.
    """

    standing: RolloutStanding
    outage: str
    ladder: list[Rung]
    guardrails: list[DrawnGuardrail]
    due: datetime | None
    next: str
    stale: bool

    @property
    def rollout(self) -> Rollout:
        return self.standing.rollout

    @property
    def window(self) -> str:
        """Of when the figures are, in words."""
        return f"last {duration(self.rollout.plan['window_s'])}"

    @property
    def under_way(self) -> bool:
        return self.rollout.under_way

    @property
    def back(self) -> str:
        rollout = self.rollout
        if rollout.kind == RolloutKind.SHADOW and self.under_way:
            return "Stop the shadow"
        return f"Roll back to {rollout.stable_words}" if rollout.stable_version else "Roll back"

    @property
    def last(self) -> bool:
        """Whether the step is the last one, after which comes the promotion. A shadow leads to none: a person may want it."""
        shadow = self.rollout.kind == RolloutKind.SHADOW
        return self.under_way and self.rollout.next_weight is None and not shadow


STALE_AFTER = timedelta(seconds=15)


def picture_of(rollout: Rollout) -> Picture:
    """Return how a rollout stands, drawn; in a handful of queries."""
    found, now = standing(rollout), timezone.now()
    runs = rollout.state == RolloutState.RUNNING
    due = now + timedelta(seconds=found.bake_left) if found.bake_left and runs else None
    following = found.next_weight if found.may_advance else None
    quiet = found.told_at is None or now - found.told_at > STALE_AFTER
    return Picture(
        standing=found,
        outage=_outage() if rollout.ended_at is None else "",
        ladder=_ladder(found),
        guardrails=[_drawn(line) for line in found.guardrails],
        due=due,
        next=f"Go on to {weight_in_words(following)}" if following is not None else "",
        stale=quiet and rollout.state in UNDER_WAY and found.serves,
    )


def _outage() -> str:
    for server in all_down():
        state = getattr(server, "state", None)
        why = state.last_reason.rstrip(".") if state is not None else "it has not answered yet"
        return f"The server {server.name} is down{f': {why}' if why else ''}. It comes back at this step."
    return ""


def told_on_releases(model: Model) -> Rollout | None:
    """Return the rollout that the page of releases tells of: the one that is not over, or the newest, where it ended lately."""
    newest = rollouts(model).first()
    if newest is None or newest.ended_at is None or timezone.now() - newest.ended_at < SHOWN_AFTER:
        return newest
    return None


def story(rollout: Rollout) -> QuerySet[AuditEntry]:
    """Return what was done to a rollout, by whom and when, the first first. At most one of a model is not over at a time."""
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
    return rungs


def _drawn(line: GuardrailLine) -> DrawnGuardrail:
    known = [value for value in (line.stable, line.candidate, line.limit) if value is not None]
    top = max(known, default=0.0) * _ROOM
    return DrawnGuardrail(line, *(_place(value, top) for value in (line.stable, line.candidate, line.limit)))


def _place(value: float | None, top: float) -> float | None:
    if value is None:
        return None
    share = min(value / top, 1.0) if top > 0 else 0.0
    return round(_EDGE + (100 - 2 * _EDGE) * share, 2)
