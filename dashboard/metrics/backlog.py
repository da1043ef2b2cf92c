"""What waits in the dashboard, as text for Prometheus: jobs, messages of alerts, heartbeats.

Source: Prometheus, docs/instrumenting/exposition_formats.md, text format 0.0.4.
"""

from collections.abc import Mapping

from django.db.models import Count, Min
from django.utils import timezone

from dashboard.models import AlertDelivery, Job
from dashboard.shared import heartbeat
from dashboard.shared.choices import DeliveryState, JobState

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def backlog() -> str:
    queued = Job.objects.filter(state=JobState.QUEUED)
    active = Job.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING)).order_by()
    jobs = active.values_list("kind", "state").annotate(number=Count("pk")).order_by("kind", "state")
    oldest = queued.aggregate(at=Min("queued_at"))["at"]
    waits = max(0.0, (timezone.now() - oldest).total_seconds()) if oldest else 0.0
    messages = {state: AlertDelivery.objects.filter(state=state).count() for state in _MESSAGES}
    return "".join(
        (
            _gauge(
                "slipway_dashboard_jobs",
                "Jobs that wait (queued) or run, by kind.",
                {f'kind="{kind}",state="{state}"': number for kind, state, number in jobs},
            ),
            _gauge("slipway_dashboard_oldest_job_seconds", "Time that the oldest queued job has waited.", {"": waits}),
            _gauge(
                "slipway_dashboard_unsent_jobs",
                "Queued jobs that no queue has taken yet.",
                {"": queued.filter(to_send=True).count()},
            ),
            _gauge(
                "slipway_dashboard_alert_messages",
                "Messages of alerts that wait, are being sent, or were given up (dead).",
                {f'state="{state}"': number for state, number in messages.items()},
            ),
            _gauge(
                "slipway_dashboard_heartbeat_age_seconds",
                "Time since the last heartbeat of each process.",
                {f'process="{one.name}",host="{one.host}",pid="{one.pid}"': one.age for one in heartbeat.processes()},
            ),
        )
    )


_MESSAGES = (DeliveryState.WAITING, DeliveryState.SENDING, DeliveryState.DEAD)


def _gauge(name: str, about: str, values: Mapping[str, float]) -> str:
    """Return a gauge with its values by labels. Kinds and states are words of ours that need no escapes."""
    lines = (f"{name}{{{labels}}} {value:g}\n" if labels else f"{name} {value:g}\n" for labels, value in values.items())
    return f"# HELP {name} {about}\n# TYPE {name} gauge\n{''.join(lines)}"
