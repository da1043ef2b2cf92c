"""The automatic work of `watch` for rollouts: it stores servers' reports, takes steps that are due, rolls back after a breach,
and unloads old versions after their hold time.

A server decides only about a breach: when it reports one, it has already taken the candidate out. A breach on any watched
server ends the rollout on all of them. Each act is a service that checks the state of the rollout in one transaction, so that
it can be killed at any point and repeated.
"""

import logging
from datetime import datetime
from operator import itemgetter

from django.db.models import Subquery
from django.utils import timezone
from django.utils.text import capfirst

from dashboard.access.authorisation import SYSTEM
from dashboard.configuration.drift import drift_give_way
from dashboard.metrics.selectors import last_requested
from dashboard.models import Model, ReleaseCheck, ReleaseSpan, Rollout, Server
from dashboard.models.rollout import TrafficReport
from dashboard.releases import rollout_states as states
from dashboard.releases.bucket import bucket_transaction
from dashboard.rollouts.baking import bake_left, served_by
from dashboard.rollouts.figures import breached, figures_store
from dashboard.rollouts.services import (
    rollout_abort,
    rollout_advance,
    rollout_promote,
    rollout_roll_back,
    rollout_unload_old,
)
from dashboard.servers.selectors import production_servers, servers
from dashboard.servers.services import LOCAL, server_event_record
from dashboard.shared.choices import CheckState, EventKind, RolloutKind, RolloutState
from dashboard.shared.exceptions import DashboardError, WrongState
from dashboard.shared.repository_errors import repository_errors

logger = logging.getLogger(__name__)

# The failed loads of a candidate before the rollback: the first failure may have been the server's fault.
LOADS_TRIED = 2


def rollouts_open() -> list[Rollout]:
    """Return the rollouts that are not over, of all models, in one query."""
    rows = Rollout.objects.filter(state__in=states.UNFINISHED).select_related("model", "step_release")
    return list(rows.defer("model__fingerprint", "step_release__text"))


def rollout_look(*, rollout: Rollout, server: Server, report: TrafficReport | None, instance: str) -> None:
    """Store a server's report of a rollout, and take the step that is due. report: the report, or None if it is not new.

    If the step cannot be taken, the reason is recorded on the rollout, and the next call tries again.
    """
    try:
        if report is not None:
            figures_store(rollout=rollout, server=server, report=report, instance=instance)
        _move(rollout, server)
    except WrongState as error:  # a person changed the rollout first
        logger.info("%s", error.message)
    except DashboardError as error:
        if states.troubled(rollout, error.message):
            logger.warning("rollout %s of %s: %s", rollout.name, rollout.model.name, error.message)


def _move(rollout: Rollout, server: Server) -> None:
    if rollout.state in states.UNDER_WAY and (breach := breached(rollout)) is not None:
        _roll_back(rollout, *breach)
    elif not server.bundled and server != production_servers().first():
        return
    elif rollout.state in states.UNDER_WAY and (failed := _not_loaded(rollout, server)):
        _end_or_wait(rollout, server, failed)
        return
    elif _due(rollout):
        with repository_errors(), bucket_transaction():
            Model.locked(rollout.model_id)
            rollout.refresh_from_db()
            if _due(rollout):  # since it was read, a person may have paused or promoted it, or extended its hold
                _next(rollout)
    if rollout.trouble:
        states.troubled(rollout, "")


def _due(rollout: Rollout) -> bool:
    """Return whether the next step, or the end of the hold, is due."""
    if rollout.state == RolloutState.HOLDING:
        return rollout.hold_until is not None and rollout.hold_until <= timezone.now()
    return rollout.state == RolloutState.RUNNING and bake_left(rollout, served_by(rollout)) == 0


def _next(rollout: Rollout) -> None:
    """Take the step after the present one, or unload the version that was held."""
    if rollout.state == RolloutState.HOLDING:
        rollout_unload_old(rollout=rollout, actor=SYSTEM, last_request=last_request_in_words(rollout))
    elif rollout.next_weight is not None:
        rollout_advance(rollout=rollout, actor=SYSTEM, step=rollout.step)
    elif rollout.kind == RolloutKind.SHADOW:
        rollout_abort(rollout=rollout, actor=SYSTEM)
    else:
        rollout_promote(rollout=rollout, actor=SYSTEM, step=rollout.step)


def last_request_in_words(rollout: Rollout) -> str:
    """Return a clause about the last request of the old version on any server; "" if stable is a model on another server."""
    if not isinstance(rollout.stable, int):
        return ""
    name, version = rollout.model.name, rollout.stable
    found = [(last_requested(server=server, model_name=name, version=version), server) for server in servers()]
    at, server = max(((at, server) for at, server in found if at is not None), key=itemgetter(0), default=(None, None))
    if at is None or server is None:
        return "no request of it is known"
    local = datetime.fromtimestamp(at, timezone.get_default_timezone())
    where = "" if server.name == LOCAL else f" on server {server.name}"
    return f"its last request was at {local:%Y-%m-%d %H:%M:%S %Z}{where}"


def _roll_back(rollout: Rollout, server: Server, reason: str) -> None:
    """Record a breach; the server has already taken the candidate out."""
    drift_give_way(model=rollout.model, actor=SYSTEM)
    with repository_errors(), bucket_transaction():
        reason = f"{'' if server.name == LOCAL else f'on server {server.name}: '}{reason.rstrip('.')}"
        message = f"{capfirst(rollout.candidate_words)} of {rollout.model.name} was taken out: {reason}."
        server_event_record(server=server, kind=EventKind.BREACHED, model_name=rollout.model.name, message=message)
        rollout_roll_back(rollout=rollout, reason=reason)


def _not_loaded(rollout: Rollout, server: Server) -> ReleaseCheck | None:
    """Return the failed check of the newest release of a rollout on a server, or None if it serves or has not failed."""
    newest = rollout.releases.filter(continues=None).order_by("-number").values("pk")[:1]
    failed = ReleaseCheck.objects.filter(release=Subquery(newest), server=server, state=CheckState.FAILED)
    check = failed.select_related("release").defer("release__text").first()
    return (
        check if check is not None and not check.release.spans.filter(server=server, ended_at=None).exists() else None
    )


def _end_or_wait(rollout: Rollout, server: Server, failed: ReleaseCheck) -> None:
    """Roll back if the candidate never served. Else record the failure; the server continues to serve the previous step."""
    release, error = failed.release, failed.error.rstrip(".")
    begun = rollout.step > 0 or ReleaseSpan.objects.filter(release__rollout=rollout, server=server).exists()
    if begun:
        states.troubled(rollout, f"release {release.number} could not be loaded: {error}")
    elif failed.attempts >= LOADS_TRIED:
        rollout_roll_back(rollout=rollout, reason=f"{rollout.candidate_words} could not be loaded: {error}")
