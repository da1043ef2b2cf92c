"""GET /api/v1/backlog shows Prometheus what waits in the dashboard."""

import os
from datetime import timedelta

import pytest
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient

from dashboard.models import Job
from dashboard.shared import heartbeat


@pytest.mark.django_db
def test_prometheus_reads_what_waits(api: APIClient) -> None:
    heartbeat.beat("watch")
    long_ago = timezone.now() - timedelta(seconds=100)
    Job.objects.create(kind="inspect", queued_at=long_ago, to_send=True)
    Job.objects.create(kind="inspect")
    Job.objects.create(kind="inspect", state="running")
    Job.objects.create(kind="inspect", state="failed")
    answer = api.get("/api/v1/backlog", HTTP_ACCEPT="text/plain;version=0.0.4")
    assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [one for family in text_string_to_metric_families(answer.content.decode()) for one in family.samples]
    found = {(one.name.removeprefix("slipway_dashboard_"), *one.labels.values()): one.value for one in samples}
    assert 100 <= found.pop(("oldest_job_seconds",)) < 160
    assert 0 <= found.pop(("heartbeat_age_seconds", "watch", heartbeat.HOST, str(os.getpid()))) < 60
    assert found == {
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
