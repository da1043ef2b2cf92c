"""The checks of a release as steps on a page: done, under way, failed, or still to come."""

from dataclasses import dataclass, field
from typing import Any

from dashboard.models.release import CheckStep
from dashboard.releases.selectors import ReleaseLife
from dashboard.shared.choices import CheckState

# The steps of a load in their order: the server's names (docs/server.md), and their labels on a page.
STEPS = {
    "check": "Configuration",
    "memory": "Memory",
    "load": "Load",
    "warm": "Warm up",
    "golden": "Golden requests",
    "switch": "Switch",
    "drain": "Drain",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a check on a page. state: the state as the page names it, or "" for a step still to come. ms: its duration."""

    label: str
    state: str
    ms: float | None = None
    done: int = 0
    of: int = 0
    golden: list[dict[str, Any]] = field(default_factory=list)  # name, version, passed, detail


def steps_of(life: ReleaseLife) -> list[Step]:
    """Return the steps of the release's last check, in their order; [] if none began or its steps are unknown."""
    check = life.check
    if check is None:
        return []
    if check.state != CheckState.RUNNING:
        return [_ended_step(row) for row in check.steps]
    if not check.steps:
        return [Step(label, "") for label in STEPS.values()]
    now = check.steps[-1]
    place = list(STEPS).index(now["step"]) if now["step"] in STEPS else 0
    return [_under_way(label, at - place, now) for at, label in enumerate(STEPS.values())]


def _ended_step(row: CheckStep) -> Step:
    label = STEPS.get(row["step"], row["step"])
    state = "failed" if row.get("failed") else "done"
    return Step(label, state, row.get("ms"), golden=list(row.get("checks", [])))


def _under_way(label: str, after: int, now: CheckStep) -> Step:
    """Return a step of a running check. after: the number of steps from the one under way to this one."""
    if after:
        return Step(label, "done" if after < 0 else "")
    return Step(label, "loading", done=now.get("done", 0), of=now.get("of", 0))
