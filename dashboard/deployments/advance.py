"""The automatic work of `watch` for deployments: the next group of servers, the end, and the stop at the first that fails.

Each act checks the state of the deployment under its lock, so that it can be killed at any point and repeated.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM
from dashboard.deployments.order import Move, StepFacts, next_move
from dashboard.deployments.services import step_begin
from dashboard.examples.runs import golden_failure
from dashboard.fleet.services import wish_settle
from dashboard.models import Deployment, DeploymentServer, ModelState, ModelSync, ReleaseCheck, Server
from dashboard.servers.holdings import holdings
from dashboard.servers.selectors import answers
from dashboard.shared.choices import CheckState, DeploymentState, ModelStatus, StepState
from dashboard.shared.exceptions import DashboardError
from repository.core.condition import Condition

logger = logging.getLogger(__name__)

SEEN = timedelta(seconds=15)  # `watch` records every 5 s that a server answers
_MOMENT_S = 0.001


def deployments_advance(since: datetime | None = None) -> None:
    """Take the next step of every running deployment. A fault of one does not hold the others.

    since: when this watcher began to look. What a server did not answer before, nobody asked.
    """
    rows = Deployment.objects.filter(state=DeploymentState.RUNNING)
    for deployment in rows.select_related("environment", "model", "release", "earlier").defer("model__fingerprint"):
        try:
            deployment_look(deployment, since)
        except DashboardError as error:
            logger.warning("deployment %d: %s", deployment.pk, error.message)


def deployment_look(deployment: Deployment, since: datetime | None = None) -> None:
    """Take the step of one deployment that is due."""
    _add_new(deployment)
    steps = list(deployment.steps.select_related("server__state", "server__environment", "deployment"))
    steps = [step for step in steps if not step.server.leaving]
    if deployment.environment.driven:
        move = next_move(list(_facts(deployment, steps, since)), deployment.at_once)
    else:
        move = Move(stop=f"somebody else drives {deployment.environment.name} now")
    found = {step.pk: step for step in steps}
    wrong = ""
    for pk in list(move.done):  # asked without a lock, because a server may be slow
        if wrong := _golden(deployment, found[pk].server):
            move.done.remove(pk)
            move = Move(done=move.done, stop=f"server {found[pk].server.name} failed: {wrong}", failed=pk)
            break
    if move != Move():
        _take(deployment, found, move)


def _add_new(deployment: Deployment) -> None:
    """Add the servers that came to the environment meanwhile, at the end of the order."""
    known = deployment.steps.values("server")
    rows = deployment.environment.servers.filter(leaving=False).exclude(pk__in=known).order_by("zone", "name")
    if not (new := list(rows)):
        return
    last = deployment.steps.values_list("position", flat=True).last()
    first = 0 if last is None else last + 1
    DeploymentServer.objects.bulk_create(
        DeploymentServer(deployment=deployment, server=one, position=place, generation=deployment.generation)
        for place, one in enumerate(new, first)
    )


def _facts(deployment: Deployment, steps: Sequence[DeploymentServer], since: datetime | None) -> Iterator[StepFacts]:
    """Yield what the servers reported."""
    now = timezone.now()
    ids = [step.server_id for step in steps]
    syncs = {row.server_id: row for row in ModelSync.objects.filter(server__in=ids, model=deployment.model)}
    ready: dict[int, set[int]] = {}
    states = ModelState.objects.filter(server__in=ids, model_name=deployment.model.name)
    for server, version, state, condition in states.values_list("server", "version", "state", "condition"):
        if state == ModelStatus.READY or condition == Condition.ASLEEP:
            ready.setdefault(server, set()).add(version)
    for step in steps:
        sync, away = syncs.get(step.server_id), _away_s(step.server, now, since)
        there = not away
        serves = (
            there
            and step.state != StepState.WAITING
            and sync is not None
            and sync.applied_generation == deployment.model.generation + step.generation  # as servers.wanted says
            and set(deployment.release.versions) <= ready.get(step.server_id, set())
        )
        yield StepFacts(
            id=step.pk,
            name=step.server.name,
            zone=step.server.zone,
            state=step.state,
            away_s=away,
            serves=serves,
            error=sync.error if sync is not None and sync.error else _lacks(step.server, deployment.model.name),
            since_s=(now - step.began_at).total_seconds() if step.began_at is not None else 0.0,
        )


def _away_s(server: Server, now: datetime, since: datetime | None) -> float:
    """Return for how many seconds a server has not answered, 0 if it answers."""
    state = getattr(server, "state", None)
    seen_at = (state.checked_at if state is not None else None) or server.created_at
    if answers(server):  # until `watch` asks again, which it may have failed to do itself
        return 0.0 if now - seen_at < SEEN else _MOMENT_S
    return max((now - max(seen_at, since or seen_at)).total_seconds(), _MOMENT_S)


def _lacks(server: Server, model: str) -> str:
    """Return that a server's repository does not hold a model that is wanted there; "" if it does, or nobody knows."""
    held = holdings(server)
    return f"its repository does not hold {model}" if held is not None and model in held["names_lacks"] else ""


def _golden(deployment: Deployment, server: Server) -> str:
    """Return why the golden requests do not pass on a server; "" if they do.

    A server of Slipway has run them before it switched. Others are asked now.
    """
    checks = ReleaseCheck.objects.filter(release=deployment.release.begun, server=server, state=CheckState.PASSED)
    steps = checks.values_list("steps", flat=True).first() or []
    if any(step.get("checks") for step in steps):
        return ""
    return golden_failure(model=deployment.model, server=server)


def _take(deployment: Deployment, steps: Mapping[int, DeploymentServer], move: Move) -> None:
    """Write a move, unless a person stopped the deployment or went back meanwhile."""
    now = timezone.now()
    with transaction.atomic():
        rows = Deployment.objects.select_for_update().filter(pk=deployment.pk, state=DeploymentState.RUNNING)
        if rows.first() is None:
            return
        states = dict(deployment.steps.values_list("pk", "state"))
        if any(states.get(pk) != step.state for pk, step in steps.items()):  # a person left one out meanwhile
            return
        deployment.steps.filter(pk__in=move.done).update(state=StepState.DONE, ended_at=now)
        deployment.steps.filter(pk__in=move.again).update(state=StepState.CHANGING, began_at=now, ended_at=None)
        for pk in move.begin:
            step_begin(steps[pk], deployment.generation)
            logger.info("deployment %d: server %s changes", deployment.pk, steps[pk].server.name)
        if move.stop:
            error = move.stop[:1000]
            if move.failed is not None:
                deployment.steps.filter(pk=move.failed).update(state=StepState.FAILED, error=error)
            rows.update(state=DeploymentState.STOPPED, error=error)
            _record(deployment, "fail", f"stopped, because {error.rstrip('.')}")
        if move.over:
            wish_settle(
                environment=deployment.environment,
                model=deployment.model,
                release=deployment.release,
                generation=deployment.generation,
            )
            rows.update(state=DeploymentState.DONE, ended_at=now)
            _record(deployment, "done", "is done")


def _record(deployment: Deployment, act: str, clause: str) -> None:
    what = f"release {deployment.release.number} of {deployment.model.name} to {deployment.environment.name}"
    audit_record(
        actor=SYSTEM,
        action=f"deployment.{act}",
        summary=f"The deployment of {what} {clause}",
        model=deployment.model,
        after={"deployment": deployment.pk, "release": deployment.release.number},
    )
