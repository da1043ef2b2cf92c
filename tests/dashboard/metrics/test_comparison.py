"""Charts beside an earlier span: its figures, at the times of the present one, and what the page's request answers."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from dashboard.metrics.marks import metrics_markers
from dashboard.metrics.samples import Sample, encode
from dashboard.metrics.selectors import metrics_before
from dashboard.models import Alert, MetricSample, Model, Rollout, Server
from tests.dashboard.feeds import PROCESS, usage

pytestmark = pytest.mark.django_db

DAY = 24 * 3600


@pytest.fixture
def server() -> Server:
    return Server.objects.create(name="local", http_url="http://x", grpc_url="x", metrics_url="http://x", bundled=True)


def minute(server: Server, at: int, requests: int) -> None:
    """Store a minute of the server and of the model `digits`."""
    packed = usage(requests, 5000).pack()
    for name, version, process in (("", 0, PROCESS), ("digits", 1, None)):
        data = encode(Sample(packed, process))
        MetricSample.objects.create(server=server, model_name=name, version=version, resolution=60, at=at, data=data)


def test_the_day_before_stands_at_the_times_of_today(server: Server):
    now = int(time.time()) // 60 * 60
    minute(server, now - DAY - 600, 120)
    found = metrics_before(servers=[server], start=now - 900, end=now, ago=DAY, model_name="digits")
    rates = {at: rps for at, rps in zip(found["times"], found["series"]["rps"], strict=True) if rps is not None}
    assert rates == {now - 600: 2}
    assert now - 900 - 60 <= found["times"][0] <= now - 900


def test_a_chart_asks_for_the_week_before_and_for_a_heat_map(client: Client, admin_user, server: Server):
    client.force_login(admin_user)
    now = int(time.time()) // 60 * 60
    minute(server, now - 7 * DAY - 600, 60)
    asked = {"model": "digits", "start": now - 900, "end": now}
    plain = client.get("/metrics", asked).json()
    assert "before" not in plain
    assert "heatmap" not in plain
    compared = client.get("/metrics", {**asked, "compare": "week", "heat": "yes"}).json()
    assert 1 in compared["before"]["series"]["rps"]
    assert compared["heatmap"]["counts"] == []
    assert "before" not in client.get("/metrics", {**asked, "compare": "year"}).json()
    long = {**asked, "start": now - 2 * DAY}
    assert "heatmap" in client.get("/metrics", long).json()
    assert "heatmap" not in client.get("/metrics", {**long, "heat": "no"}).json()


def test_a_rollout_is_marked_where_it_begins_and_where_it_ends(server: Server):
    model = Model.objects.create(name="digits")
    began = time.time() - 600

    def moment(seconds: float) -> datetime:
        return datetime.fromtimestamp(began + seconds, UTC)

    Rollout.objects.create(
        model=model, name="r-1", kind="canary", state="rolled_back", stable=1, candidate=2, plan={},
        started_at=moment(0), ended_at=moment(100),
    )  # fmt: skip
    found = metrics_markers(servers=[server], start=began - 10, end=began + 200, model_name="digits")
    assert [(mark["kind"], mark["text"], mark["bad"]) for mark in found] == [
        ("rollout", "Canary r-1 of digits begins", False),
        ("rollout", "Canary r-1 of digits ends: Rolled back", True),
    ]
    assert found[0]["address"] == "/models/digits/rollouts/r-1/"
    assert len(metrics_markers(servers=[server], start=began + 50, end=began + 200)) == 1
    assert metrics_markers(servers=[server], start=began - 10, end=began + 200, model_name="other") == []


def test_an_alert_is_marked_where_it_fired(server: Server):
    fired = datetime.now(UTC) - timedelta(seconds=60)
    Alert.objects.create(
        kind="burn", subject="digits", model_name="digits", severity="critical", state="firing", title="digits burns",
        fired_at=fired,
    )  # fmt: skip
    Alert.objects.create(kind="not_ready", subject="digits", model_name="digits", severity="critical", title="pending")
    now = time.time()
    (mark,) = metrics_markers(servers=[server], start=now - 100, end=now + 100, model_name="digits")
    assert (mark["kind"], mark["text"], mark["bad"]) == ("alert", "digits burns", True)
    assert metrics_markers(servers=[server], start=now - 100, end=now + 100, model_name="other") == []
    assert len(metrics_markers(servers=[server], start=now - 100, end=now + 100)) == 1


@pytest.mark.parametrize("address", ["/servers/other/?at=9", "/models/digits/?at=9&server=other#charts"])
def test_an_alert_about_one_server_is_marked_on_its_charts_only(server: Server, address: str):
    other = Server.objects.create(name="other", http_url="http://y", grpc_url="y", metrics_url="http://y")
    Alert.objects.create(
        kind="rule-1", subject="other", severity="warning", state="firing", title="slow", address=address,
        fired_at=datetime.now(UTC),
    )  # fmt: skip
    now = time.time()
    marks = {one.name: len(metrics_markers(servers=[one], start=now - 100, end=now + 100)) for one in (server, other)}
    assert marks == {"local": 0, "other": 1}
