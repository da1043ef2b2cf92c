"""GET /api/v1/backlog shows Prometheus what waits in the dashboard."""

import os
from datetime import timedelta

import pytest
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient

from dashboard.models import Job, MetricSample, ServerState
from dashboard.servers.services import server_ensure_local
from dashboard.shared import heartbeat
from dashboard.watch.lease import Lease


@pytest.mark.django_db
def test_prometheus_reads_what_waits(api: APIClient) -> None:
    heartbeat.beat("watch")
    long_ago = timezone.now() - timedelta(seconds=100)
    Job.objects.create(kind="inspect", queued_at=long_ago, to_send=True)
    Job.objects.create(kind="inspect")
    Job.objects.create(kind="inspect", state="running")
    Job.objects.create(kind="inspect", state="failed", finished_at=timezone.now())
    Job.objects.create(kind="inspect", state="failed", finished_at=timezone.now() - timedelta(hours=2))
    server = server_ensure_local()
    ServerState.objects.filter(server=server).update(checked_at=long_ago)
    MetricSample.objects.create(server=server, resolution=1, at=int(long_ago.timestamp()), data=b"")
    MetricSample.objects.create(server=server, resolution=1, at=int(long_ago.timestamp()) - 9, data=b"")
    assert Lease().take()
    answer = api.get("/api/v1/backlog", HTTP_ACCEPT="text/plain;version=0.0.4")
    assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [one for family in text_string_to_metric_families(answer.content.decode()) for one in family.samples]
    found = {(one.name.removeprefix("slipway_dashboard_"), *one.labels.values()): one.value for one in samples}
    assert 100 <= found.pop(("oldest_job_seconds",)) < 160
    assert 0 <= found.pop(("heartbeat_age_seconds", "watch", heartbeat.HOST, str(os.getpid()))) < 60
    assert 100 <= found.pop(("server_seen_age_seconds", "local")) < 160
    assert 99 <= found.pop(("feed_lag_seconds", "local")) < 160
    assert found == {
        ("watch_number",): 1,
        ("watch_leads",): 1,
        ("jobs_ended_last_hour", "inspect", "failed"): 1,
        ("jobs", "inspect", "queued"): 2,
        ("jobs", "inspect", "running"): 1,
        ("unsent_jobs",): 1,
        ("alert_messages", "waiting"): 0,
        ("alert_messages", "sending"): 0,
        ("alert_messages", "dead"): 0,
    }


@pytest.mark.django_db
def test_nobody_reads_it_without_a_token() -> None:
    assert APIClient().get("/api/v1/backlog", HTTP_ACCEPT="text/plain").status_code == 401
