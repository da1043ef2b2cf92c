"""The work that `watch` does periodically: expiry, lost jobs, pruning, repairs."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import Error, connection
from django.utils import timezone

from dashboard.access.audit import audit_forget
from dashboard.accounts.sign_in import sign_in_forget
from dashboard.accounts.tokens import auth_file_repair
from dashboard.alerts.services import alerts_forget
from dashboard.alerts.tasks import alerts_watch, messages_watch
from dashboard.batches.services import batches_expire
from dashboard.captures.services import captures_expire
from dashboard.configuration.drift import drift_check
from dashboard.conversions.conversion import LOCKS
from dashboard.deployments.advance import deployments_advance
from dashboard.drift.services import monitors_check
from dashboard.environments.locks import read_lock
from dashboard.environments.removal import remove_unused
from dashboard.jobs.outbox import Outbox
from dashboard.jobs.services import LostJobs, jobs_forget
from dashboard.jobs.tasks import run_job
from dashboard.metrics.noted import noted_prune
from dashboard.metrics.services import metrics_prune
from dashboard.objectives.counts import ObjectiveCounter
from dashboard.releases.bucket import bucket_collect, bucket_reconcile, managed_bucket
from dashboard.rollouts.figures import rollouts_prune
from dashboard.shared import heartbeat
from dashboard.shared.exceptions import DashboardError
from dashboard.shared.repository_errors import repository_errors
from dashboard.shared.space import give_space_back
from dashboard.truth.guardrail import rollouts_check
from dashboard.truth.services import labels_forget, labels_match
from dashboard.truth.trouble import truths_check
from dashboard.uploads.publication import publications_recover
from dashboard.uploads.services import uploads_expire
from dashboard.usage.log import UsageReader
from dashboard.usage.services import usage_forget
from dashboard.versions.moves import moves_recover
from dashboard.versions.retention import retention_run

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """One task. name: completes the phrase "could not". seconds: the pause between two runs. work: returns a result to log."""

    name: str
    seconds: float
    work: Callable[[], object]


def _prune_metrics() -> int:
    return metrics_prune(time.time())


def _prune_noted() -> int:
    return noted_prune(time.time())


def _clear_sessions() -> int:
    return Session.objects.filter(expire_date__lt=timezone.now()).delete()[0]


def _remove_environments() -> list[str]:
    return remove_unused(Path(settings.ENVIRONMENTS_DIR), [read_lock(path) for path in LOCKS.glob("*.txt")])


@repository_errors()
def _ask_bucket() -> None:
    if (bucket := managed_bucket()) is not None:
        bucket.owner()
        heartbeat.beat("bucket")


def periodic_tasks() -> tuple[PeriodicTask, ...]:
    """Return new tasks; a task may keep state from one run to the next."""
    return (
        PeriodicTask("keep auth.json as the tokens are", 1.0, auth_file_repair),
        PeriodicTask("take deployments on", 0.5, partial(deployments_advance, timezone.now())),
        PeriodicTask("read the usage log", 2.0, UsageReader().read),
        PeriodicTask("forget old usage", 3600.0, usage_forget),
        PeriodicTask("send jobs to the queue", 2.0, Outbox(run_job.app, run_job.delay)),
        PeriodicTask("queue lost jobs again", 3.0, LostJobs()),
        PeriodicTask("finish broken-off publications", 30.0, publications_recover),
        PeriodicTask("set the state of versions that a job left moving", 30.0, moves_recover),
        PeriodicTask("ask the bucket", 5.0, _ask_bucket),
        PeriodicTask("bring the bucket up to date", 10.0, bucket_reconcile),
        PeriodicTask("remove what nothing names from the bucket", 6 * 3600.0, bucket_collect),
        PeriodicTask("notice changes by hand", 20.0, partial(drift_check, {})),
        PeriodicTask("archive versions by retention", 300.0, retention_run),
        PeriodicTask("expire uploads", 60.0, uploads_expire),
        PeriodicTask("remove old batch jobs", 300.0, batches_expire),
        PeriodicTask("look for data drift", 30.0, monitors_check),
        PeriodicTask("join labels with captured answers", 30.0, labels_match),
        PeriodicTask("compare the truth of a rollout's versions", 10.0, rollouts_check),
        PeriodicTask("look for versions whose truth is worse", 30.0, truths_check),
        PeriodicTask("forget old labels", 600.0, labels_forget),
        PeriodicTask("delete old captures", 60.0, captures_expire),
        PeriodicTask("remove environments of other locks", 3600.0, _remove_environments),
        PeriodicTask("forget ended jobs", 3600.0, jobs_forget),
        PeriodicTask("count the requests of objectives", 3.0, ObjectiveCounter()),
        PeriodicTask("evaluate alerts", 3.0, partial(alerts_watch, spans=False)),
        PeriodicTask("evaluate alerts about history", 10.0, partial(alerts_watch, spans=True)),
        PeriodicTask("send messages of alerts", 3.0, messages_watch),
        PeriodicTask("forget old audit entries", 3600.0, audit_forget),
        PeriodicTask("forget old alerts", 3600.0, alerts_forget),
        PeriodicTask("prune metrics", 60.0, _prune_metrics),
        PeriodicTask("thin out slow and failed requests", 300.0, _prune_noted),
        PeriodicTask("forget what rollouts kept", 600.0, rollouts_prune),
        PeriodicTask("forget failed sign-ins", 600.0, sign_in_forget),
        PeriodicTask("clear sessions", 3600.0, _clear_sessions),
        PeriodicTask("give the space of what was deleted back", 300.0, give_space_back),
    )


async def on_own_thread(work: Callable[[], Result]) -> Result:
    """Run work on a separate thread, because hashing a large file must not block the reconcilers' thread."""

    def run() -> Result:
        try:
            return work()
        finally:
            connection.close()  # gives the session back

    return await asyncio.to_thread(run)


async def run_periodically(task: PeriodicTask) -> None:
    """Run a task until cancelled. A failure is logged and does not affect the next run. Repeated messages are logged once."""
    said: object = None
    while True:
        try:
            done = await on_own_thread(task.work)
        except (DashboardError, Error) as error:
            if str(error) != said:
                logger.error("could not %s: %s", task.name, error)
            said = str(error)
        except Exception:
            logger.exception("could not %s", task.name)
        else:
            if done and done != said:
                logger.info("%s: %s", task.name, done)
            said = done
        await asyncio.sleep(task.seconds)
