"""What an environment asks of a release before it is deployed there. Pages, REST and the service ask the same function."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo, available_timezones

from django.db import IntegrityError, transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.examples.selectors import golden_examples
from dashboard.models import (
    DeploymentApproval,
    DeploymentPolicy,
    Release,
    ReleaseCheck,
    ReleaseSpan,
    ServerEnvironment,
    Version,
)
from dashboard.models.deployment import Freeze
from dashboard.releases.budgets import verdict
from dashboard.shared.choices import CheckState
from dashboard.shared.exceptions import Conflict, Invalid, NotFound

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MOST_FREEZES = 20
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d|24:00")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that an environment asks: source, golden, budget, approval or freeze. said: how it is met, or what to do."""

    name: str
    met: bool
    said: str


def policy_of(environment: ServerEnvironment) -> DeploymentPolicy | None:
    return DeploymentPolicy.objects.select_related("source").filter(environment=environment).first()


def requirements(
    *, environment: ServerEnvironment, release: Release, actor: Actor, at: datetime | None = None
) -> list[Requirement]:
    """Return what the environment asks of a release that this actor would deploy now, met or not; [] if it asks nothing."""
    policy = policy_of(environment)
    return [] if policy is None else list(_requirements(policy, release, actor, at or timezone.now()))


def refuse_missing(*, environment: ServerEnvironment, release: Release, actor: Actor) -> None:
    """Raise Conflict with everything that is still missing."""
    missing = [one.said for one in requirements(environment=environment, release=release, actor=actor) if not one.met]
    if missing:
        raise Conflict(
            f"release {release.number} of '{release.model.name}' cannot be deployed to {environment.name} yet: "
            f"{'; '.join(missing)}"
        )


def _requirements(policy: DeploymentPolicy, release: Release, actor: Actor, at: datetime) -> Iterator[Requirement]:
    if policy.source is not None:
        yield _source(policy.source, release)
    if policy.golden:
        yield _golden(policy.source, release)
    if policy.budget:
        yield _budget(release)
    if policy.approval:
        yield _approval(policy.environment, release, actor)
    if policy.freezes:
        yield _freeze(policy, at)


def _source(source: ServerEnvironment, release: Release) -> Requirement:
    servers = list(source.servers.values_list("pk", "name"))
    spans = ReleaseSpan.objects.filter(release=release.begun, ended_at=None, server__environment=source)
    serve = set(spans.values_list("server", flat=True))
    lacking = [name for pk, name in servers if pk not in serve]
    if not servers:
        return Requirement("source", False, f"environment {source.name} has no server on which it could serve first")
    if lacking:
        return Requirement("source", False, f"it does not serve on every server of {source.name}: not on {lacking[0]}")
    return Requirement("source", True, f"it serves on every server of {source.name}")


def _golden(source: ServerEnvironment | None, release: Release) -> Requirement:
    expected = set(golden_examples(release.model).values_list("name", flat=True))
    where = f" in {source.name}" if source is not None else ""
    if not expected:
        return Requirement("golden", False, f"'{release.model.name}' has no golden request")
    checks = ReleaseCheck.objects.filter(release=release.begun, state=CheckState.PASSED)
    if source is not None:
        checks = checks.filter(server__environment=source)
    for steps in checks.values_list("steps", flat=True):
        ran = [check for step in steps for check in step.get("checks", [])]
        if expected <= {check["name"] for check in ran if check["passed"]}:
            return Requirement("golden", True, f"its golden requests passed{where}")
    return Requirement("golden", False, f"not all of its golden requests have passed{where}: reload it there")


def _budget(release: Release) -> Requirement:
    model = release.model
    if not model.budget:
        return Requirement("budget", False, f"'{model.name}' has no budget: set one, and measure the version")
    for version in Version.objects.filter(model=model, number__in=release.versions).select_related("model"):
        found = verdict(version, release.document)
        if found is not None and not found.kept:
            return Requirement("budget", False, f"version {version.number} does not keep its budget: {found.why}")
    return Requirement("budget", True, "a measurement of it keeps the budget")


def _approval(environment: ServerEnvironment, release: Release, actor: Actor) -> Requirement:
    asking = {actor.user.pk if actor.user is not None else None, release.begun.created_by_id}
    for one in approvals(environment, release):
        if one.user_id not in asking and Actor(user=one.user).may(Right.OPERATE):
            return Requirement("approval", True, f"it was approved by {one.user.get_username()}")
    return Requirement(
        "approval", False, "somebody must approve it who neither made this release nor starts the deployment"
    )


def _freeze(policy: DeploymentPolicy, at: datetime) -> Requirement:
    frozen = frozen_by(policy.freezes, at.astimezone(ZoneInfo(policy.time_zone)))
    if frozen is not None:
        return Requirement("freeze", False, f"nothing is deployed there on {freeze_in_words(frozen, policy.time_zone)}")
    return Requirement("freeze", True, "this is no time of a freeze")


def frozen_by(freezes: Sequence[Freeze], local: datetime) -> Freeze | None:
    """Return the freeze in which a moment lies; None if it lies in none. local: in the time zone of the freezes."""
    now = f"{local:%H:%M}"
    return next((one for one in freezes if local.weekday() in one["days"] and one["start"] <= now < one["end"]), None)


def freeze_in_words(freeze: Freeze, time_zone: str) -> str:
    days = ", ".join(DAYS[day] for day in freeze["days"])
    return f"{days} from {freeze['start']} to {freeze['end']} ({time_zone})"


# -- approvals ---------------------------------------------------------------------------------------------------------
def approvals(environment: ServerEnvironment, release: Release) -> list[DeploymentApproval]:
    """Return who approved exactly this release, the first one first."""
    rows = DeploymentApproval.objects.filter(environment=environment, release=release.begun)
    return list(rows.filter(user__is_active=True).select_related("user"))


def approval_give(
    *, environment: ServerEnvironment, release: Release, actor: Actor, comment: str = ""
) -> DeploymentApproval:
    """Approve that a release is deployed in an environment. Raises Conflict for the person who made the release."""
    require(actor, Right.OPERATE)
    if actor.user is None:
        raise Conflict("only a person can approve a release")
    if release.begun.created_by_id == actor.user.pk:
        raise Conflict(f"you made release {release.number} of '{release.model.name}': another person must approve it")
    with transaction.atomic():
        try:
            with transaction.atomic():
                made = DeploymentApproval.objects.create(
                    environment=environment, release=release.begun, user=actor.user, comment=comment.strip()[:300]
                )
        except IntegrityError:
            raise Conflict(f"you have approved release {release.number} for {environment.name} already") from None
        _record(
            actor, "approve", f"Approved release {release.number} of {release.model.name} for", environment, release
        )
    return made


def approval_take_back(*, environment: ServerEnvironment, release: Release, actor: Actor) -> None:
    """Take back one's own approval. Raises NotFound if there is none. A deployment that runs goes on."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        rows = DeploymentApproval.objects.filter(environment=environment, release=release.begun, user=actor.user)
        if not rows.delete()[0]:
            raise NotFound(f"you have not approved release {release.number} for {environment.name}")
        said = f"Took back the approval of release {release.number} of {release.model.name} for"
        _record(actor, "disapprove", said, environment, release)


def _record(actor: Actor, act: str, said: str, environment: ServerEnvironment, release: Release) -> None:
    after = {"environment": environment.name, "release": release.number}
    summary = f"{said} {environment.name}"
    audit_record(actor=actor, action=f"deployment.{act}", summary=summary, model=release.model, after=after)


# -- the policy itself -------------------------------------------------------------------------------------------------
def policy_set(
    *,
    environment: ServerEnvironment,
    actor: Actor,
    source: ServerEnvironment | None = None,
    golden: bool = False,
    budget: bool = False,
    approval: bool = False,
    freezes: Sequence[Freeze] = (),
    time_zone: str = "UTC",
) -> DeploymentPolicy:
    """Say what an environment asks of a release. From then on only deployments change what is wanted there.

    Raises Conflict if the environment follows new releases by itself, because these would get past the policy.
    """
    require(actor, Right.ADMINISTER)
    asked = {
        "source": source,
        "golden": golden,
        "budget": budget,
        "approval": approval,
        "freezes": [_freeze_read(one) for one in freezes],
        "time_zone": time_zone,
    }
    if time_zone not in available_timezones():
        raise Invalid.at("time_zone", f"'{time_zone[:64]}' is no time zone, as Europe/Berlin")
    if len(freezes) > MOST_FREEZES:
        raise Invalid.at("freezes", f"a policy has at most {MOST_FREEZES} freezes")
    if source == environment:
        raise Invalid.at("source", f"environment {environment.name} cannot get its releases from itself")
    with transaction.atomic():
        found = ServerEnvironment.objects.select_for_update().get(pk=environment.pk)
        if found.everything:
            raise Conflict(
                f"environment {found.name} wants every loaded model at its newest release, which no policy can hold: let it "
                "want exactly the releases that it wants now"
            )
        if (loose := found.wanted.filter(release=None).select_related("model").first()) is not None:
            raise Conflict(
                f"environment {found.name} wants '{loose.model.name}' always at its newest release: choose a release first"
            )
        made, _ = DeploymentPolicy.objects.update_or_create(environment=found, defaults=asked)
        after = {**asked, "source": source.name if source is not None else ""}
        summary = f"Changed what {found.name} asks of releases"
        audit_record(actor=actor, action="environment.policy", summary=summary, after=after)
    return made


def policy_remove(*, environment: ServerEnvironment, actor: Actor) -> None:
    """Ask nothing any more. Raises NotFound if the environment asks nothing."""
    require(actor, Right.ADMINISTER)
    with transaction.atomic():
        if not DeploymentPolicy.objects.filter(environment=environment).delete()[0]:
            raise NotFound(f"environment {environment.name} has no policy")
        summary = f"{environment.name} asks nothing of releases any more"
        audit_record(actor=actor, action="environment.policy", summary=summary)


def _freeze_read(given: Freeze) -> Freeze:
    days, start, end = sorted(set(given["days"])), given["start"].strip(), given["end"].strip()
    if not days or not set(days) <= set(range(7)):
        raise Invalid.at("freezes", "a freeze has days, from 0 for Monday to 6 for Sunday")
    if not (_TIME.fullmatch(start) and _TIME.fullmatch(end)) or start >= end:
        raise Invalid.at("freezes", "a freeze has a start and a later end on the same day, as 16:00 and 24:00")
    return {"days": days, "start": start, "end": end}
