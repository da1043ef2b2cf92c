"""What happens from time to time: the kind of work -> how often, and the function (no arguments)."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib.sessions.models import Session
from django.db import close_old_connections
from django.utils import timezone

from dashboard.accounts.sign_in import sign_in_forget
from dashboard.accounts.tokens import auth_file_repair
from dashboard.configuration.drift import drift_check
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.metrics.services import metrics_prune
from dashboard.shared.exceptions import DashboardError
from dashboard.uploads.publication import publications_recover
from dashboard.uploads.services import uploads_expire

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Clock:
    name: str
    seconds: float
    work: Callable[[], Any]


def _prune_metrics() -> int:
    return metrics_prune(time.time())


def _clear_sessions() -> int:
    return Session.objects.filter(expire_date__lt=timezone.now()).delete()[0]


def clocks() -> tuple[Clock, ...]:
    """All of them, with what each remembers from one turn to the next."""
    return (
        Clock("keep auth.json as the tokens are", 1.0, auth_file_repair),
        Clock("queue lost jobs again", 10.0, jobs_requeue_lost),
        Clock("finish broken-off publications", 30.0, publications_recover),
        Clock("notice changes by hand", 20.0, partial(drift_check, {})),
        Clock("expire uploads", 60.0, uploads_expire),
        Clock("prune metrics", 60.0, _prune_metrics),
        Clock("forget failed sign-ins", 600.0, sign_in_forget),
        Clock("clear sessions", 3600.0, _clear_sessions),
    )


def _work(clock: Clock) -> Any:
    """In a thread of its own: hashing a large file must not hold up the reconcilers, which share one."""
    try:
        return clock.work()
    finally:
        close_old_connections()


async def run_clock(clock: Clock) -> None:
    """For ever; one failure is logged and the next turn comes all the same."""
    said: Any = None
    while True:
        try:
            done = await asyncio.to_thread(_work, clock)
        except DashboardError as error:
            if error.message != said:
                logger.error("could not %s: %s", clock.name, error.message)
            said = error.message
        except Exception:
            logger.exception("could not %s", clock.name)
        else:
            if done and done != said:
                logger.info("%s: %s", clock.name, done)
            said = done
        await asyncio.sleep(clock.seconds)
