"""Moves a model's requests from one version to another: start, next step, pause, promote, abort, unload the old version.

Each act makes the next release. Only the text of the release decides which versions serve. The rollout's row has the reason and
the next step.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import NamedTuple, NoReturn, cast

from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.text import capfirst

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor, Right, require
from dashboard.configuration.drift import drift_give_way
from dashboard.configuration.services import document_check
from dashboard.models import Model, Release, Rollout, RolloutMismatch
from dashboard.releases import rollout_states as states
from dashboard.releases.bucket import bucket_transaction
from dashboard.releases.gates import refuse_at_gates
from dashboard.releases.going_back import document_to_return
from dashboard.releases.selectors import lives_of, newest_release
from dashboard.releases.services import refuse_drift, release_make
from dashboard.releases.signatures import refused_requests
from dashboard.releases.storage import files_missing
from dashboard.rollouts.baking import least, served_by
from dashboard.rollouts.figures import breached
from dashboard.rollouts.plan import (
    MAX_HOLD_DAYS,
    plan_of,
    policy_at,
    policy_checked,
    policy_of_plan,
    stopped_policy,
    weight_in_words,
)
from dashboard.rollouts.remotes import refuse_unlisted
from dashboard.servers.wanted import with_production
from dashboard.shared.choices import DesiredState, ReleaseKind, ReleaseState, RolloutKind, RolloutState
from dashboard.shared.exceptions import Conflict, Invalid, WrongState
from dashboard.shared.repository_errors import repository_errors
from repository.config.document import Document
from repository.config.release import DEFAULT_ALIAS
from repository.core.json_types import JsonObject

Arm = int | JsonObject


class _Open(NamedTuple):
    """A rollout that will change, with its model's row locked. newest: the wanted release."""

    rollout: Rollout
    model: Model
    newest: Release


@repository_errors()
def rollout_start(
    *,
    model: Model,
    actor: Actor,
    candidate: Arm,
    kind: str = RolloutKind.CANARY,
    plan: object = None,
    stable: JsonObject | None = None,
    override: str = "",
) -> Rollout:
    """Begin to move requests to a candidate, by a plan whose missing fields have their defaults (rollouts.plan).

    candidate: the number of a published version, or a model on another server as in the policy. stable: the model on another
    server that answers now, or None for the version that answers. A version that an earlier rollout still holds is unloaded
    first. override: why a candidate that does not keep the model's budget may get requests of clients; not for a shadow.
    Raises Invalid if the plan is wrong, or if the server would refuse the candidate or may not call an address in the plan.
    Raises Conflict if a rollout is under way, the model is not loaded, its wanted release has failed, or the file was changed
    by hand.
    """
    require(actor, Right.OPERATE)
    if not isinstance(plan, Mapping | None):
        raise Invalid.at(
            "plan", f"expected 'plan' to be an object such as {{\"hold_days\": 7}}, not {json.dumps(plan)[:80]}"
        )
    whole = plan_of(kind, plan or {})
    refuse_unlisted(policy_checked(policy_of_plan("r", whole, candidate, stable, 0)))
    _startable(model, candidate, stable)
    # This is a separate transaction: a kill during a transaction with two releases would leave a text two numbers ahead.
    if (held := states.unfinished(model)) is not None:
        rollout_unload_old(rollout=held, actor=actor, last_request="another rollout began")
    with bucket_transaction():
        model = Model.locked(model.pk)
        newest = _startable(model, candidate, stable)
        if (quicker := states.unfinished(model)) is not None:
            _refuse_elsewhere(quicker)
        if kind != RolloutKind.SHADOW and isinstance(candidate, int):
            version = model.versions.get(number=candidate)
            refuse_at_gates(version=version, document=newest.document, actor=actor, override=override)
        answers = newest.answers
        rollout = states.start(
            model=model,
            name=f"r-{secrets.token_hex(4)}",
            kind=kind,
            stable=stable or answers,
            candidate=candidate,
            plan=whole,
            base=newest,
            created_by=actor.user,
            created_by_name=actor.name,
        )
        served = {*newest.versions, *([candidate] if isinstance(candidate, int) else [])}
        document = newest.document.answered(served, answers, model.published_numbers())
        document = document.with_traffic(policy_at(rollout, rollout.weight))
        summary = f"Rollout {rollout.name}: {_share_in_words(rollout)}"
        at = _Open(rollout, model, newest)
        states.record_first_release(rollout, _release(at, actor, document, summary, "rollout.start"))
    return rollout


@repository_errors()
def rollout_advance(*, rollout: Rollout, actor: Actor, step: int | None = None) -> Rollout:
    """Take the next step now, even before its time.

    step: the step that the caller has seen, so that two callers take only one step.
    Raises WrongState if the rollout is at another step by now. Raises Conflict if the rollout is at its last step and can only
    be promoted, or the file was changed by hand.
    """
    with _opened(rollout, actor) as at:
        rollout = at.rollout
        if step not in (None, rollout.step) or rollout.state != RolloutState.RUNNING:
            _refuse_elsewhere(rollout)
        _refuse_taken_out(rollout)
        weight = rollout.next_weight
        if weight is None:
            raise Conflict(f"rollout {rollout.name} is at its last step: promote it, or abort it")
        document = at.newest.document.with_traffic(policy_at(rollout, weight))
        summary = f"Rollout {rollout.name}: {weight_in_words(weight)} to {rollout.candidate_words}"
        release = _release(at, actor, document, summary, "rollout.advance", with_files=False)  # the same versions serve
        states.advance(rollout, release)
    return rollout


@repository_errors()
def rollout_pause(*, rollout: Rollout, actor: Actor) -> Rollout:
    """Pause a rollout at its weight: no step begins automatically, and its step's time stops. Guardrails stay active."""
    with _opened(rollout, actor, transaction.atomic) as at:
        states.pause(at.rollout, baked_s=least(served_by(at.rollout)))
        _record(at, actor, "rollout.pause", f"Paused rollout {at.rollout.name} at {_at_weight(at.rollout)}")
    return at.rollout


@repository_errors()
def rollout_resume(*, rollout: Rollout, actor: Actor) -> Rollout:
    """Resume a rollout: steps begin automatically again, after the rest of the present step's time."""
    with _opened(rollout, actor, transaction.atomic) as at:
        states.resume(at.rollout)
        _record(at, actor, "rollout.resume", f"Resumed rollout {at.rollout.name} at {_at_weight(at.rollout)}")
    return at.rollout


@repository_errors()
def rollout_promote(*, rollout: Rollout, actor: Actor, step: int | None = None) -> Rollout:
    """Give all requests to the candidate. The old version stays loaded for the plan's hold time, then it is unloaded.

    step: as in rollout_advance.
    Raises Conflict if the candidate is on another server.
    """
    with _opened(rollout, actor) as at:
        rollout, candidate = at.rollout, at.rollout.candidate
        if rollout.state not in states.UNDER_WAY or step not in (None, rollout.step):
            _refuse_elsewhere(rollout)
        _refuse_taken_out(rollout)
        if not isinstance(candidate, int):
            raise Conflict(
                f"{rollout.candidate_words} is on another server: publish it here first, or leave the rollout at its weight"
            )
        days = rollout.plan["hold_days"]
        held = isinstance(rollout.stable, int) and days > 0
        leaving = set() if held or not _may_leave(at) else {rollout.stable}
        document = at.newest.document.with_traffic(None)
        document = document.answered({*at.newest.versions} - leaving, candidate, at.model.published_numbers())
        stays = f"; {rollout.stable_words} stays loaded for {_days(days)}" if held else ""
        _release(at, actor, document, f"Promoted {rollout.candidate_words}{stays}", "rollout.promote")
        states.promote(rollout, by=actor.name, days=days if held else 0)
        if not held:
            states.finish(rollout, reason=f"{capfirst(rollout.candidate_words)} was promoted.", by=actor.name)
    return rollout


@repository_errors()
def rollout_abort(*, rollout: Rollout, actor: Actor) -> Rollout:
    """Give all requests back to stable. This is also possible after the promotion, while the old version is held.

    For a shadow, this is the regular end. Changes of the file by hand are overwritten, and the audit trail keeps them.
    """
    _drift_gives_way(rollout, actor)
    with _opened(rollout, actor) as at:
        rollout = at.rollout
        if rollout.state not in states.UNFINISHED:
            _refuse_elsewhere(rollout)
        shadow = rollout.kind == RolloutKind.SHADOW and rollout.state in states.UNDER_WAY
        verb = "Stopped" if shadow else "Aborted"
        summary = f"{verb} rollout {rollout.name}: {rollout.stable_words} answers everything"
        _go_back(at, actor, summary, "rollout.abort")
        end = states.finish if shadow else states.abort
        end(rollout, reason=f"{verb} by {actor.name}.", by=actor.name)
    return rollout


@repository_errors()
def rollout_roll_back(*, rollout: Rollout, reason: str, actor: Actor = SYSTEM) -> Rollout:
    """End a rollout after a breach, or because its candidate does not load: stable answers everything.

    reason: a sentence without a full stop.
    """
    _drift_gives_way(rollout, actor)
    with _opened(rollout, actor) as at:
        rollout = at.rollout
        if rollout.state not in states.UNDER_WAY:
            _refuse_elsewhere(rollout)
        summary = f"Rolled back to {rollout.stable_words}: {reason}"
        _go_back(at, actor, summary, "rollout.roll_back")
        states.roll_back(rollout, reason=f"{reason[:1].upper()}{reason[1:].rstrip('.')}.")
    return rollout


@repository_errors()
def rollout_keep_old(*, rollout: Rollout, actor: Actor, days: float) -> Rollout:
    """Keep the old version loaded for this many days from now. Raises Invalid if the number is out of range."""
    require(actor, Right.OPERATE)
    if not 0 < days <= MAX_HOLD_DAYS:
        raise Invalid.at("days", f"expected a number of days above 0 and at most {MAX_HOLD_DAYS}, not {days:g}")
    with _opened(rollout, actor, transaction.atomic) as at:
        until = timezone.now() + timedelta(days=days)
        states.keep(at.rollout, until=until)
        summary = f"{capfirst(at.rollout.stable_words)} stays loaded for {_days(days)} more"
        _record(at, actor, "rollout.keep_old", summary)
    return at.rollout


@repository_errors()
def rollout_unload_old(*, rollout: Rollout, actor: Actor, last_request: str = "") -> Rollout:
    """Unload the old version of a promoted rollout, unless an alias names it.

    last_request: a clause for the record: when the old version was last used, or another reason for the unload.
    """
    with _opened(rollout, actor) as at:
        rollout = at.rollout
        if rollout.state != RolloutState.HOLDING:
            _refuse_elsewhere(rollout)
        old = capfirst(rollout.stable_words)
        if not _may_leave(at):
            name = next(name for name, number in at.newest.aliases.items() if number == rollout.stable)
            states.finish(rollout, reason=f"{old} stays loaded, for it is called '{name}'.", by=actor.name)
            _record(at, actor, "rollout.unload_old", f"{old} stays loaded, for it is called '{name}'")
        else:
            use = f"; {last_request}" if last_request else ""
            served = {*at.newest.versions} - {rollout.stable}
            there = at.model.published_numbers()
            document = at.newest.document.answered(served, at.newest.answers, there)
            _release(at, actor, document, f"Unloaded {rollout.stable_words}, which was held{use}", "rollout.unload_old")
            states.finish(rollout, reason=f"{old} was unloaded{use}.", by=actor.name)
    return rollout


def mismatches_forget(*, rollout: Rollout, actor: Actor) -> None:
    """Delete the mismatches, with the clients' inputs."""
    with _opened(rollout, actor, transaction.atomic) as at:
        Rollout.objects.filter(pk=rollout.pk).update(forgotten_at=timezone.now())
        count, _ = RolloutMismatch.objects.filter(rollout=rollout).delete()
        _record(at, actor, "rollout.forget", f"Forgot {count} requests that rollout {rollout.name} had kept")


# -- common parts ------------------------------------------------------------------------------------------------------
@contextmanager
def _opened(
    rollout: Rollout, actor: Actor, begin: Callable[[], AbstractContextManager[object]] = bucket_transaction
) -> Iterator[_Open]:
    """Open the transaction of a change, with the model's row locked. begin: begins one that may make a release."""
    require(actor, Right.OPERATE)
    with begin():
        model = Model.locked(rollout.model_id)
        rollout = Rollout.objects.select_related("base").get(pk=rollout.pk)
        rollout.model = model
        newest = newest_release(model)
        if newest is None:
            raise Conflict(f"model '{model.name}' has no release")
        yield _Open(rollout, model, newest)


def _release(
    at: _Open, actor: Actor, document: Document, summary: str, action: str, *, with_files: bool = True
) -> Release:
    """Make the release of a step. Raises Conflict if the file was changed by hand, or files of the candidate are missing.

    with_files: whether to check the files of the versions. It can be False if the release before served the same versions.
    """
    refuse_drift(at.model)
    candidate = at.rollout.candidate
    if isinstance(candidate, int) and (missing := files_missing(at.model, candidate)):
        raise Conflict(
            f"{at.rollout.candidate_words} of '{at.model.name}' lacks {missing[0]} on disk: put it back, or abort the rollout"
        )
    document_check(model=at.model, document=document, with_files=with_files)
    return _make(at, actor, document, summary, action)


def _drift_gives_way(rollout: Rollout, actor: Actor) -> None:
    """Overwrite changes by hand, which must not prevent the end of a rollout."""
    require(actor, Right.OPERATE)
    if states.unfinished(rollout.model) == rollout:
        drift_give_way(model=rollout.model, actor=actor)


def _go_back(at: _Open, actor: Actor, summary: str, action: str) -> Release:
    """Make the release with which stable answers everything again."""
    document = _document_before(at)
    document_check(model=at.model, document=document, with_files=False)
    return _make(at, actor, document, summary, action)


def _make(at: _Open, actor: Actor, document: Document, summary: str, action: str) -> Release:
    return release_make(
        model=at.model,
        actor=actor,
        kind=ReleaseKind.ROLLOUT,
        document=document,
        summary=summary,
        action=action,
        rollout=at.rollout,
    )


def _share_in_words(rollout: Rollout) -> str:
    """Return, in words, which requests the candidate gets in the present step."""
    shadow = rollout.plan.get("shadow")
    if rollout.kind == RolloutKind.SHADOW and shadow is not None:
        return f"{weight_in_words(cast(float, shadow['share']))} also asked of {rollout.candidate_words}"
    return f"{weight_in_words(rollout.weight)} to {rollout.candidate_words}"


def _record(at: _Open, actor: Actor, action: str, summary: str) -> None:
    rollout = at.rollout
    audit_record(
        actor=actor,
        action=action,
        model=at.model,
        summary=f"{at.model.name}: {summary}",
        after={"rollout": rollout.name, "state": rollout.state},
    )


def _days(days: float) -> str:
    return f"{days:g} day{'' if days == 1 else 's'}"


def _at_weight(rollout: Rollout) -> str:
    return weight_in_words(rollout.weight)


def _startable(model: Model, candidate: Arm, stable: JsonObject | None) -> Release:
    """Return the release that a rollout may begin from.

    Raises Conflict if there is no such release.
    Raises Invalid if the candidate is unfit.
    """
    newest = newest_release(model)
    if newest is None or not newest.versions or model.desired_state != DesiredState.LOADED:
        raise Conflict(f"model '{model.name}' serves nothing yet: load it, so that there is a stable version")
    if (running := states.under_way(model)) is not None:
        raise Conflict(f"rollout {running.name} of '{model.name}' is under way: promote or abort it first")
    if lives_of([newest])[0].state == ReleaseState.FAILED:
        raise Conflict(
            f"release {newest.begun.number} of '{model.name}' has failed: go back, or mend it, before a rollout"
        )
    elsewhere = Q(pinned__isnull=False) | Q(everything=False, wished=False)
    if with_production(Model.objects.filter(pk=model.pk)).filter(elsewhere).exists():
        raise Conflict(f"production takes releases of '{model.name}' by deployments only, and a rollout makes others")
    policy = newest.document.traffic
    if policy is not None and not Rollout.objects.filter(name=str(policy["rollout"]), model=model).exists():
        raise Conflict(
            f"the configuration of '{model.name}' has a traffic policy of its own, '{policy['rollout']}': take "
            "slipway.traffic out of it first"
        )
    if isinstance(candidate, int):
        _refuse_candidate(model, candidate, None if stable else newest.answers)
    return newest


def _refuse_candidate(model: Model, candidate: int, stable: int | None) -> None:
    if candidate == stable:
        raise Invalid.at("candidate", f"version {candidate} answers already: choose another version as the candidate")
    if candidate not in model.published_numbers():
        raise Invalid.at(
            "candidate", f"there is no published version {candidate} of '{model.name}': publish or restore it first"
        )
    if missing := files_missing(model, candidate):
        raise Invalid.at(
            "candidate",
            f"version {candidate} of '{model.name}' lacks {missing[0]} on disk: put it back, or choose another one",
        )
    found = {row.number: row.signature for row in model.versions.filter(number__in=[candidate, stable or 0])}
    if stable in found and (refused := refused_requests(found[stable], found[candidate])):
        raise Invalid.at(
            "candidate",
            f"version {candidate} would refuse requests that version {stable} answers: {'; '.join(refused)}. Make it live when "
            "clients ask by its tensors",
        )


def _may_leave(at: _Open) -> bool:
    """Return whether the stable version may be unloaded: no alias except `default` names it."""
    names = (number for name, number in at.newest.aliases.items() if name != DEFAULT_ALIAS)
    return isinstance(at.rollout.stable, int) and at.rollout.stable not in names


def _document_before(at: _Open) -> Document:
    """Return the configuration with which stable answers everything again.

    It is the configuration from before the rollout, unless other releases were made since. Then it is the present one without
    the candidate.
    """
    rollout, base = at.rollout, at.rollout.base
    stopped, published = stopped_policy(rollout), at.model.published_numbers()
    since = (
        at.model.releases.filter(number__gt=base.number).exclude(rollout=rollout, kind=ReleaseKind.ROLLOUT)
        if base
        else None
    )
    if base is not None and since is not None and not since.exists():
        document = document_to_return(at.model, base)
    else:
        named = {number for name, number in at.newest.aliases.items() if name != DEFAULT_ALIAS}
        served = {*(base.versions if base else at.newest.versions)} | named
        answers = rollout.stable if isinstance(rollout.stable, int) else (base or at.newest).answers
        document = at.newest.document.with_traffic(None).answered(served & {*published}, answers, published)
    if stopped is None:
        return document
    # Another server answers, by a policy that names the candidate, so the candidate has to be served.
    candidate = [rollout.candidate] if isinstance(rollout.candidate, int) else []
    served = {*document.versions(published), *candidate}
    return document.answered(served, document.answers(published), published).with_traffic(stopped)


def _refuse_taken_out(rollout: Rollout) -> None:
    """Raise WrongState if guardrails have ended the rollout, even if that is not recorded yet."""
    if (breach := breached(rollout)) is not None:
        _, reason = breach
        raise WrongState(f"guardrails have taken {rollout.candidate_words} out of rollout {rollout.name}: {reason}")


def _refuse_elsewhere(rollout: Rollout) -> NoReturn:
    word = rollout.get_state_display().lower()
    if rollout.state in states.UNDER_WAY:
        word = f"{word} at {weight_in_words(rollout.weight)}"
    raise WrongState(f"rollout {rollout.name} is {word} by now: look at it again")
