"""What waits in the dashboard and what its worker and watcher do, as text for Prometheus.

`watch` and the worker have no port. All that is here is in the database or the heartbeats, so that any web process answers for
all machines.
"""

from datetime import UTC, datetime, timedelta

from django.db.models import Count, DateTimeField, Min, OuterRef, QuerySet, Subquery
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.metrics.exposition import family
from dashboard.models import AlertDelivery, Job, MetricSample, Server, WatchLease
from dashboard.shared import heartbeat
from dashboard.shared.choices import DeliveryState, JobState

_MESSAGES = (DeliveryState.WAITING, DeliveryState.SENDING, DeliveryState.DEAD)
_ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
_HOUR = timedelta(hours=1)
_Metric = tuple[str, str, dict[str, float]]  # its name, its help, its values by labels


def backlog() -> str:
    queued = Job.objects.filter(state=JobState.QUEUED)
    active = Job.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING)).order_by()
    ended = Job.objects.filter(state__in=_ENDED, finished_at__gt=timezone.now() - _HOUR).order_by()
    oldest = queued.aggregate(at=Min("queued_at"))["at"]
    messages = {state: AlertDelivery.objects.filter(state=state).count() for state in _MESSAGES}
    processes = heartbeat.processes()
    metrics: list[_Metric] = [
        ("jobs", "Jobs that wait (queued) or run, by kind.", _by_kind(active)),
        (
            "jobs_ended_last_hour",
            "Jobs that ended in the last hour, by kind and state: no counter, because old jobs are forgotten.",
            _by_kind(ended),
        ),
        (
            "oldest_job_seconds",
            "Time that the oldest queued job has waited.",
            {"": _since(oldest) if oldest else 0.0},
        ),
        ("unsent_jobs", "Queued jobs that no queue has taken yet.", {"": queued.filter(to_send=True).count()}),
        (
            "alert_messages",
            "Messages of alerts that wait, are being sent, or were given up (dead).",
            {f'state="{state}"': number for state, number in messages.items()},
        ),
        (
            "heartbeat_age_seconds",
            "Time since the last heartbeat of each process.",
            {f'process="{one.name}",host="{one.host}",pid="{one.pid}"': round(one.age, 3) for one in processes},
        ),
        *_watch(),
    ]
    return "".join(family(f"slipway_dashboard_{name}", "gauge", about, values) for name, about, values in metrics)


def _by_kind(jobs: QuerySet[Job]) -> dict[str, float]:
    rows = jobs.values_list("kind", "state").annotate(number=Count("pk")).order_by("kind", "state")
    return {f'kind="{kind}",state="{state}"': number for kind, state, number in rows}


def _watch() -> list[_Metric]:
    """Return what the watcher that leads has done."""
    newest = MetricSample.objects.filter(server=OuterRef("pk"), resolution=1, model_name="", version=0).order_by("-at")
    rows = list(
        Server.objects.annotate(stored=Subquery(newest.values("at")[:1])).values_list(
            "name", "state__checked_at", "stored"
        )
    )
    lease = (
        WatchLease.objects.annotate(now=Now(output_field=DateTimeField())).values_list("number", "until", "now").first()
    )
    return [
        (
            "watch_number",
            "Number of the watcher that leads; it rises when another one leads.",
            {"": lease[0]} if lease else {},
        ),
        (
            "watch_leads",
            "Whether a watcher leads.",
            {"": int(lease is not None and lease[1] > lease[2])},
        ),
        (
            "server_seen_age_seconds",
            "Time since the watcher last heard of each server.",
            {f'server="{name}"': _since(at) for name, at, _ in rows if at is not None},
        ),
        (
            "feed_lag_seconds",
            "Time since the newest second of metrics that the watcher stored, by server.",
            {f'server="{name}"': _since(datetime.fromtimestamp(at, UTC)) for name, _, at in rows if at is not None},
        ),
    ]


def _since(at: datetime) -> float:
    return round(max(0.0, (timezone.now() - at).total_seconds()), 3)
