"""Writes of people: start, stop, continue, go back, leave out. Each checks the state it starts from, under the row's lock."""

from collections.abc import Mapping, Sequence

from django.db import IntegrityError, transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.deployments.order import in_order
from dashboard.deployments.policies import refuse_missing
from dashboard.fleet.services import loadable_release, next_generation, wish_settle
from dashboard.models import Deployment, DeploymentServer, Model, Release, Server, ServerEnvironment, WantedRelease
from dashboard.models.deployment import UNREACHED
from dashboard.releases.selectors import newest_release
from dashboard.servers.selectors import answers
from dashboard.servers.server_state import model_sync_again
from dashboard.shared.choices import DeploymentState, DesiredState, StepState
from dashboard.shared.exceptions import Conflict, Invalid, NotFound, WrongState

MOST_AT_ONCE = 1000


def deployment_start(
    *,
    environment: ServerEnvironment,
    model: Model,
    release: int,
    actor: Actor,
    at_once: int = 1,
    order: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    reason: str = "",
) -> Deployment:
    """Begin to bring a release to the servers of an environment, one group after another. `watch` does the rest.

    at_once: the most servers of a group. order: names of servers that come first; the others follow by zone and name.
    leave_out: names of servers that keep what they serve until the deployment is over. Raises Invalid for a release or server
    that is not there. Raises Conflict if the release cannot be deployed there now, with what the policy of the environment
    misses, or if a server that is not left out does not answer.
    """
    require(actor, Right.OPERATE)
    if not 1 <= at_once <= MOST_AT_ONCE:
        raise Invalid.at("at_once", f"at least one server changes at a time, and at most {MOST_AT_ONCE}")
    with transaction.atomic():
        environment = ServerEnvironment.objects.select_for_update().get(pk=environment.pk)
        if not environment.driven:
            raise Conflict(f"somebody else drives {environment.name}: the dashboard only observes its servers")
        target = loadable_release(model, release)
        earlier = _hold(environment, model)
        if earlier is not None and earlier.begun.pk == target.begun.pk:
            raise Conflict(f"environment {environment.name} wants release {release} of '{model.name}' already")
        refuse_missing(environment=environment, release=target, actor=actor)
        servers = _ordered(environment, order, leave_out)
        generation = next_generation(environment, model)
        try:
            with transaction.atomic():
                made = Deployment.objects.create(
                    environment=environment,
                    model=model,
                    release=target,
                    earlier=earlier,
                    at_once=at_once,
                    generation=generation,
                    reason=reason.strip()[:300],
                    started_by=actor.user,
                    started_by_name=actor.name,
                )
        except IntegrityError:
            raise Conflict(
                f"another deployment of '{model.name}' in {environment.name} is not over: go back, or let it end"
            ) from None
        DeploymentServer.objects.bulk_create(
            DeploymentServer(
                deployment=made,
                server=server,
                position=place,
                generation=generation,
                state=StepState.LEFT_OUT if server.name in leave_out else StepState.WAITING,
            )
            for place, server in enumerate(servers)
        )
        why = f": {made.reason}" if made.reason else ""
        more: dict[str, object] = {
            "servers": [one.name for one in servers if one.name not in leave_out],
            "left_out": sorted(leave_out),
        }
        _record(actor, made, "start", f"Started to deploy {_what(made)}{why}", more)
    return made


def deployment_stop(*, deployment: Deployment, actor: Actor) -> Deployment:
    """Reach no further server. Raises WrongState if it does not run."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        found = _locked(deployment, DeploymentState.RUNNING)
        found.state, found.error = DeploymentState.STOPPED, f"{actor.name} stopped it"
        found.save(update_fields=["state", "error"])
        _record(actor, found, "stop", f"Stopped to deploy {_what(found)}")
    return found


def deployment_leave_out(*, deployment: Deployment, server: str, actor: Actor) -> Deployment:
    """Go on without a server: it serves the earlier release until the deployment is over, and the new one afterwards.

    Raises NotFound if it has no such server, Conflict if that one has changed already, WrongState if the deployment is over.
    """
    require(actor, Right.OPERATE)
    with transaction.atomic():
        found = _locked(deployment, DeploymentState.RUNNING, DeploymentState.STOPPED)
        step = found.steps.select_related("server").filter(server__name=server).first()
        if step is None:
            raise NotFound(f"the deployment of {_what(found)} has no server named '{server[:64]}'")
        if step.state in (StepState.DONE, StepState.LEFT_OUT):
            raise Conflict(f"server {server} is {step.get_state_display().lower()} already")
        reached = step.state not in UNREACHED
        step.state, step.ended_at = StepState.LEFT_OUT, timezone.now()
        step.save(update_fields=["state", "ended_at"])
        if reached:
            model_sync_again(servers=[step.server], model_id=found.model_id)
        _record(actor, found, "leave_out", f"Left out server {server} from {_what(found)}", {"server": server})
    return found


def deployment_continue(*, deployment: Deployment, actor: Actor) -> Deployment:
    """Go on with a stopped deployment; the server that failed is tried again. The policy counts again, as for a start.

    Raises WrongState if it has not stopped.
    """
    require(actor, Right.OPERATE)
    with transaction.atomic():
        found = _locked(deployment, DeploymentState.STOPPED)
        refuse_missing(environment=found.environment, release=found.release, actor=actor)
        found.state, found.error = DeploymentState.RUNNING, ""
        found.save(update_fields=["state", "error"])
        for step in found.steps.filter(state__in=(StepState.FAILED, StepState.CHANGING)):
            step_begin(step, next_generation(found.environment, found.model))
        _record(actor, found, "continue", f"Continued to deploy {_what(found)}")
    return found


def deployment_return(*, deployment: Deployment, actor: Actor) -> Deployment:
    """Go back: every server that was reached serves the earlier release again, all at once. Raises WrongState if it is over."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        found = _locked(deployment, DeploymentState.RUNNING, DeploymentState.STOPPED)
        found.state, found.ended_at = DeploymentState.RETURNED, timezone.now()
        found.save(update_fields=["state", "ended_at"])
        reached = found.steps.exclude(state__in=UNREACHED).select_related("server")
        model_sync_again(servers=[step.server for step in reached], model_id=found.model_id)
        to = f"release {found.earlier.number}" if found.earlier is not None else "no release"
        summary = f"Went back from deploying {_what(found)} to {to}"
        _record(actor, found, "return", summary, {"servers": [step.server.name for step in reached]})
    return found


def step_begin(step: DeploymentServer, generation: int) -> None:
    """Let a server change: from now on it should serve the release. Call this under the lock of the deployment."""
    DeploymentServer.objects.filter(pk=step.pk).update(
        state=StepState.CHANGING, generation=generation, began_at=timezone.now(), ended_at=None, error=""
    )
    # A failure of an earlier release is none of this one.
    model_sync_again(servers=[step.server], model_id=step.deployment.model_id)


def _hold(environment: ServerEnvironment, model: Model) -> Release | None:
    """Pin what an environment wants of a model now, and return that release; None if the model is not wanted there.

    A newer release that is made meanwhile then reaches nobody. The generation stays, so that no server loads anything.
    """
    wish = WantedRelease.objects.select_for_update().filter(environment=environment, model=model).first()
    if wish is None and not environment.everything:
        return None
    if environment.everything and model.desired_state != DesiredState.LOADED:
        raise Conflict(f"'{model.name}' is not loaded, and {environment.name} wants what is loaded: load it first")
    pinned = wish.release if wish is not None else None
    earlier = pinned or newest_release(model)
    if earlier is None:
        raise Conflict(f"'{model.name}' has no release to go back to")
    wish_settle(environment=environment, model=model, release=earlier, generation=wish.generation if wish else 0)
    return earlier


def _ordered(environment: ServerEnvironment, first: Sequence[str], out: Sequence[str]) -> list[Server]:
    """Return the servers in order: those of `first`, then the others by zone and name. out: those that may be away."""
    servers = {one.name: one for one in environment.servers.filter(leaving=False).select_related("state")}
    if not servers:
        raise Conflict(f"environment {environment.name} has no server")
    for field, names in (("order", first), ("leave_out", out)):
        if unknown := [name for name in names if name not in servers]:
            raise Invalid.at(field, f"environment {environment.name} has no server named '{unknown[0][:64]}'")
    if not set(servers) - set(out):
        raise Invalid.at("leave_out", "at least one server must not be left out")
    if away := [name for name, one in servers.items() if name not in out and not answers(one)]:
        others = f", nor {'does' if len(away) == 2 else 'do'} {len(away) - 1} more" if len(away) > 1 else ""
        raise Conflict(f"server {away[0]} does not answer{others}: leave it out, or deploy when it answers")
    rest = [one for one in servers.values() if one.name not in first]
    placed = in_order([(one.zone, one.name) for one in rest])
    return [servers[name] for name in dict.fromkeys(first)] + [rest[place] for place in placed]


def _locked(deployment: Deployment, *states: DeploymentState) -> Deployment:
    rows = Deployment.objects.select_for_update(of=("self",)).select_related(
        "environment", "model", "release", "earlier"
    )
    found = rows.filter(pk=deployment.pk).first()
    if found is None:
        raise Conflict("the deployment was removed with its environment or model")
    if found.state not in states:
        raise WrongState(f"the deployment of {_what(found)} is {found.get_state_display().lower()}")
    return found


def _what(deployment: Deployment) -> str:
    return f"release {deployment.release.number} of {deployment.model.name} to {deployment.environment.name}"


def _record(
    actor: Actor, deployment: Deployment, act: str, summary: str, more: Mapping[str, object] | None = None
) -> None:
    after = {"deployment": deployment.pk, "release": deployment.release.number, **(more or {})}
    audit_record(actor=actor, action=f"deployment.{act}", summary=summary, model=deployment.model, after=after)
