"""Checks of the processes of all machines, and of the queue between them."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from dashboard.doctor.check import NotMade
from dashboard.jobs.outbox import WAITS
from dashboard.models import Job, WatchLease
from dashboard.shared import heartbeat
from dashboard.shared.choices import JobState
from dashboard.supervisor.commands import reachable_host
from dashboard.supervisor.probes import probe_http
from dashboard.web.health import LIVENESS

WAITED = timedelta(minutes=2)
_PATIENCE_S = 2.0
_PROBE = "slipway.doctor"


def _running() -> set[str]:
    """Return the names of the processes that run on any machine. Raises NotMade if there are none."""
    found = {one.name for one in heartbeat.processes()}
    if not found:
        raise NotMade("no process of Slipway runs")
    return found


def all_run() -> Iterator[str]:
    names = _running()
    for name in ("watch", "worker"):
        if name not in names:
            title, consequence = heartbeat.PROCESSES[name]
            yield f"No {title} runs on any machine, so {consequence}: start manage.py up --only {name}"


def leader() -> Iterator[str]:
    if "watch" not in _running():
        raise NotMade("no watcher runs")
    if WatchLease.held() is None:
        yield (
            "No watcher leads, so models are neither loaded nor unloaded: read why in logs/watch.log of a machine that runs "
            "one, and start it again"
        )


def pages() -> Iterator[str]:
    if not any(one.name == "web" and heartbeat.lives(one) for one in heartbeat.processes_here()):
        raise NotMade("no dashboard runs on this data folder")
    if not asyncio.run(probe_http(reachable_host(), settings.DASHBOARD_PORT, LIVENESS, any_status=True)):
        yield (
            f"The dashboard does not answer on port {settings.DASHBOARD_PORT}: read logs/dashboard.log, and start Slipway again"
        )


def queue() -> Iterator[str]:
    if not settings.REDIS_URL:
        raise NotMade("it is a folder, because REDIS_URL is not set")
    import redis  # not above: every process of the dashboard would spend 130 ms of its start on it

    client = redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S, retry=None
    )
    try:
        client.set(_PROBE, "1", ex=1)  # one that is full, or only a replica, refuses to write
    except redis.AuthenticationError:
        yield "Redis refuses the user or password: correct REDIS_URL"
    except (redis.ConnectionError, redis.TimeoutError):
        yield "Redis does not answer, and jobs wait: start it, or correct REDIS_URL"
    except redis.RedisError as error:
        yield f"Redis takes no jobs ({error}): free its memory, or set REDIS_URL to one that accepts writes"
    finally:
        client.close()


def jobs() -> Iterator[str]:
    if Job.objects.filter(state=JobState.RUNNING).exists():
        return  # others may wait for their turn
    waiting = Job.objects.filter(state=JobState.QUEUED, queued_at__lt=timezone.now() - WAITED)
    steps = list(waiting.values_list("step", flat=True))
    if steps:
        what = "the queue did not take them; look at the check of the queue" if WAITS in steps else "start a worker"
        yield (
            f"{len(steps)} jobs have waited for more than {WAITED.seconds // 60} minutes, and none runs: {what}, or read "
            "logs/worker.log and start it again"
        )
