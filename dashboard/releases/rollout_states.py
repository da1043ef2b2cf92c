"""The states of a rollout, and the only functions that move it from one to the next.

     start
       |
       v   advance: the next weight          pause
    RUNNING <---------------------- RUNNING ---------> PAUSED
       |  ^                                              |
       |  +------------------- resume -------------------+
       |
       | promote: the candidate answers all; also from PAUSED
       v
    HOLDING <-- keep: for longer --+
       |    +----------------------+
       | finish: the old version leaves, or nothing is held; a shadow that is stopped; also from RUNNING, PAUSED
       v
     DONE
                 abort: somebody goes back to stable; from RUNNING, PAUSED, HOLDING           to ABORTED
                 roll back: a guardrail, or a candidate that does not load; RUNNING, PAUSED   to ROLLED_BACK

The contents of each state. Everything except the row follows from the newest release, which is written in the same transaction.

    state        newest release                             on the server                    after a SIGKILL
    RUNNING      both versions, `default` at stable, the    as the text; weight 0 after a    the server keeps to the text and
                 policy with the weight of a step           breach, which it reports         its breaches; `watch` reads its
    PAUSED       the same                                   the same; no automatic step      report, and continues from the row
    HOLDING      both versions, `default` at the candidate  the old version, unused          `watch` looks at hold_until again
    DONE         the candidate; the old version gone, or    as any model
                 kept for its name
    ABORTED,     as before the rollout                      as any model
    ROLLED_BACK

Text, release and state are written in one transaction, the text last. A process that is killed in between leaves the old row,
which is still correct, and a text that `text_take_back` overwrites.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max, Q
from django.utils import timezone

from dashboard.models import Model, Release, Rollout
from dashboard.shared.choices import RolloutState as State
from dashboard.shared.exceptions import WrongState
from dashboard.shared.transitions import Transition, move
from repository.core.json_types import JsonObject

# The states in which requests are split between the arms, and the states in which a rollout is not over.
UNDER_WAY = (State.RUNNING, State.PAUSED)
UNFINISHED = (*UNDER_WAY, State.HOLDING)

_PERSON, _BOTH = "whoever operates", "`watch`, or whoever operates"
_OVER = "is not running any more"
TRANSITIONS = {
    "advance": Transition((State.RUNNING,), State.RUNNING, _BOTH, "is not running at that step any more"),
    "pause": Transition((State.RUNNING,), State.PAUSED, _PERSON, "is not running"),
    "resume": Transition((State.PAUSED,), State.RUNNING, _PERSON, "is not paused"),
    "promote": Transition(UNDER_WAY, State.HOLDING, _BOTH, _OVER),
    "keep": Transition((State.HOLDING,), State.HOLDING, _PERSON, "holds no old version"),
    "finish": Transition(UNFINISHED, State.DONE, _BOTH, "is over already"),
    "abort": Transition(UNFINISHED, State.ABORTED, _PERSON, "is over already"),
    "roll_back": Transition(UNDER_WAY, State.ROLLED_BACK, "`watch`", _OVER),
}


def start(*, model: Model, **facts: Any) -> Rollout:
    """Make the row, in the transaction of the rollout's first release."""
    return Rollout.objects.create(model=model, state=State.RUNNING, **facts)


def record_first_release(rollout: Rollout, release: Release) -> None:
    """Record the first release of the rollout."""
    Rollout.objects.filter(pk=rollout.pk).update(step_release=release)
    rollout.step_release = release


def advance(rollout: Rollout, release: Release) -> None:
    """Record that the next step has begun, with its release. Raises WrongState if somebody else took that step."""
    begins = {"step_since": timezone.now(), "step_release": release, "baked_s": 0.0, "resumed_at": None}
    _move(rollout, "advance", {"step": rollout.step + 1, **begins, "trouble": ""}, where=Q(step=rollout.step))


def pause(rollout: Rollout, *, baked_s: float) -> None:
    """Pause the rollout at its weight; the time of its step stops counting. baked_s: the seconds that the step has served."""
    _move(rollout, "pause", {"baked_s": baked_s})


def resume(rollout: Rollout) -> None:
    """Resume the rollout: steps are taken automatically again, after the rest of the present step's time."""
    _move(rollout, "resume", {"resumed_at": timezone.now()})


def promote(rollout: Rollout, *, by: str, days: float) -> None:
    """Record that the candidate answers everything. days: how long the old version stays loaded; 0 if none is held."""
    until = timezone.now() + timedelta(days=days) if days else None
    _move(rollout, "promote", {"hold_until": until, "ended_by_name": by, "trouble": ""})


def keep(rollout: Rollout, *, until: datetime) -> None:
    """Change the time until which the old version stays loaded."""
    _move(rollout, "keep", {"hold_until": until})


def finish(rollout: Rollout, *, reason: str, by: str) -> None:
    """Record the regular end of the rollout."""
    _end(rollout, "finish", reason, by)


def abort(rollout: Rollout, *, reason: str, by: str) -> None:
    """Record that a person ended the rollout early: stable answers everything."""
    _end(rollout, "abort", reason, by)


def roll_back(rollout: Rollout, *, reason: str) -> None:
    """Record that the candidate breached a guardrail: stable answers everything."""
    _end(rollout, "roll_back", reason, "system")


def troubled(rollout: Rollout, trouble: str) -> bool:
    """Record why the rollout cannot continue, as a clause ("" if it can). Return whether the reason is new."""
    if rollout.trouble == trouble:
        return False
    Rollout.objects.filter(pk=rollout.pk).update(trouble=trouble)
    rollout.trouble = trouble
    return True


# -- other releases ----------------------------------------------------------------------------------------------------
def unfinished(model: Model) -> Rollout | None:
    """Return the rollout of a model that is not over; there is one at most."""
    return Rollout.objects.filter(model=model, state__in=UNFINISHED).first()


def under_way(model: Model) -> Rollout | None:
    """Return the rollout that splits the requests of a model now, or None if there is none."""
    return Rollout.objects.filter(model=model, state__in=UNDER_WAY).first()


def taken_out(model: Model) -> dict[int, int]:
    """Return the versions that guardrails have taken out, each with the number of the last release of its rollout."""
    rows = Rollout.objects.filter(model=model, state=State.ROLLED_BACK).annotate(last=Max("releases__number"))
    found = rows.order_by("last").values_list("candidate", "last")
    return {candidate: last for candidate, last in found if isinstance(candidate, int) and last is not None}


def kept_by(model: Model, policy: Mapping[str, object] | JsonObject | None) -> Rollout | None:
    """Return the rollout under way whose policy a text contains, or None if there is none."""
    if policy is None:
        return None
    return Rollout.objects.filter(model=model, state__in=UNDER_WAY, name=str(policy.get("rollout"))).first()


def overtaken(*, release: Release, answers: int, by: str) -> None:
    """End the unfinished rollout if a release that is not one of its steps conflicts with it.

    answers: the version with which that release answers requests that name no version.
    """
    rollout = unfinished(release.model)
    if rollout is None:
        return
    reason = f"{by} made release {release.number}: {release.summary or release.get_kind_display()}"
    if rollout.state in UNDER_WAY:
        (finish if answers == rollout.candidate else abort)(rollout, reason=f"{reason}.", by=by)
    elif answers == rollout.stable:
        abort(rollout, reason=f"{reason}.", by=by)
    elif answers != rollout.candidate or rollout.stable not in release.versions:
        finish(rollout, reason=f"{reason}; {rollout.stable_words} is not held any more.", by=by)


def _end(rollout: Rollout, event: str, reason: str, by: str) -> None:
    _move(rollout, event, {"reason": reason, "ended_at": timezone.now(), "ended_by_name": by, "trouble": ""})


def _move(rollout: Rollout, event: str, changes: Mapping[str, object], *, where: Q | None = None) -> None:
    transition = TRANSITIONS[event]
    if not move(rollout, transition, changes, where=where):
        raise WrongState(f"rollout {rollout.name} of '{rollout.model.name}' {transition.refusal}")
    rollout.refresh_from_db()
