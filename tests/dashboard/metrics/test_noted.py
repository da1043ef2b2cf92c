"""Requests that stood out: stored once, thinned out, found by span, and shown without what clients sent to viewers."""

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from rest_framework.test import APIClient

from dashboard.metrics.noted import (
    KEPT_S,
    MOST,
    Told,
    Wanted,
    failure_causes,
    noted_prune,
    noted_requests,
    noted_store_all,
)
from dashboard.models import FailureCount, Model, NotedRequest, Server
from dashboard.servers.messages import NotedAnswer, NotedSpan, ToldRequest

pytestmark = pytest.mark.django_db

NOW = 1_790_000_000 // 3600 * 3600
SECRET = "the client wrote this"


@pytest.fixture
def server() -> Server:
    return Server.objects.create(name="local", http_url="http://x", grpc_url="x", metrics_url="http://x", bundled=True)


def told(at: int, duration_us: int, **more: Any) -> ToldRequest:
    one: ToldRequest = {
        "at": at, "id": f"request {duration_us}", "duration_us": duration_us, "queue_us": duration_us // 2, "input_us": 10,
        "infer_us": duration_us // 4, "output_us": 10, "rows": 1, "batch_size": 2, "arm": "", "trace": "", "code": "",
        "reason": "", "cause": "", "message": "",
    }  # fmt: skip
    one.update(more)  # type: ignore[typeddict-item]
    return one


def span(number: int, at: int, slow: tuple[int, ...] = (), failures: int = 0) -> NotedSpan:
    failed = {"code": "INTERNAL", "reason": "BACKEND", "cause": "bad row #", "message": f"bad row 7 {SECRET}"}
    return {
        "model": "digits", "version": "1", "number": number, "start": at, "end": at + 10,
        "slow": [told(at, duration) for duration in slow],
        "failed": [told(at, 50, **failed)] if failures else [],
        "causes": [{
            "cause": "bad row #", "code": "INTERNAL", "reason": "BACKEND", "count": failures, "first": at, "last": at + 5,
        }] if failures else [],
    }  # fmt: skip


def answer(*spans: NotedSpan) -> NotedAnswer:
    return {"instance": "a", "spans": list(spans)}


def test_a_span_that_is_read_twice_is_stored_once(server: Server):
    for _ in range(2):
        noted_store_all([Told(server, answer(span(1, NOW, (900, 500), failures=3)))])
    assert [row.duration_us for row in noted_requests(Wanted("digits", NOW, NOW + 9), failed=False)] == [
        900,
        500,
    ]
    [cause] = failure_causes(Wanted("digits", NOW, NOW + 9))
    assert (cause.cause, cause.count, cause.first, cause.last) == ("bad row #", 3, NOW, NOW + 5)
    assert cause.example is not None
    assert cause.example.details["message"].endswith(SECRET)
    assert noted_requests(Wanted("digits", NOW + 60, NOW + 90), failed=False) == []
    assert failure_causes(Wanted("digits", NOW + 60, NOW + 90)) == []


def test_the_phases_of_a_request_are_parts_of_its_time(server: Server):
    noted_store_all([Told(server, answer(span(1, NOW, (1000,))))])
    [row] = noted_requests(Wanted("digits", NOW, NOW), failed=False)
    assert [(phase.name, phase.ms, phase.x, phase.width) for phase in row.phases] == [
        ("queue", 0.5, 0, 50), ("input", 0.01, 50, 1), ("compute", 0.25, 51, 25), ("output", 0.01, 76, 1),
    ]  # fmt: skip
    row.details["queue_us"] = None
    assert row.phases == []


def test_old_rows_are_thinned_out_and_counts_are_kept(server: Server):
    for number in range(30):
        noted_store_all([Told(server, answer(span(number + 1, NOW + 60 * number, (100 + number,), failures=2)))])
    noted_prune(NOW + 4 * 3600)
    kept = noted_requests(Wanted("digits", NOW, NOW + 3600), failed=False)
    assert [row.duration_us for row in kept] == [129, 128, 127, 126, 125]
    assert NotedRequest.objects.filter(failed=True).count() == MOST
    [counted] = FailureCount.objects.all()
    assert (counted.count, counted.first, counted.last) == (60, NOW, NOW + 29 * 60 + 5)
    assert noted_prune(NOW + 4 * 3600) == 0
    noted_prune(NOW + KEPT_S + 3600)
    assert not NotedRequest.objects.exists()
    assert not FailureCount.objects.exists()


def test_what_a_strange_server_tells_is_kept_within_bounds(server: Server):
    odd = span(1, NOW, (5,), failures=1)
    odd["version"] = "one"
    late = span(2, NOW, (), failures=1)
    late["start"], late["causes"][0]["first"], late["causes"][0]["last"] = 1e300, -5.0, 1e300
    noted_store_all([Told(server, answer(odd, late))])
    [cause] = failure_causes(Wanted("digits", NOW, NOW + 9))
    assert cause.last_at.year > 2026
    assert NotedRequest.objects.count() == 1


@pytest.mark.parametrize(("superuser", "sees"), [(True, True), (False, False)])
def test_messages_are_shown_to_people_who_may_see_what_clients_sent(
    client: Client, server: Server, superuser: bool, sees: bool
):
    Model.objects.create(name="digits")
    noted_store_all([Told(server, answer(span(1, NOW, (1000,), failures=3)))])
    client.force_login(get_user_model().objects.create_user("ada", is_superuser=superuser))
    page = client.get(f"/models/digits/requests?from={NOW - 60}&to={NOW + 60}").content.decode()
    assert ("bad row #" in page, SECRET in page) == (sees, sees)
    assert "INTERNAL" in page
    assert "request 1000" in page
    assert client.get("/models/digits/requests?from=9&to=1").status_code == 200
    [cause] = client.get(f"/api/v1/models/digits/requests?start={NOW - 60}&end={NOW + 60}").json()["causes"]
    assert (cause["cause"], cause["example"]["message"]) == (
        ("bad row #", f"bad row 7 {SECRET}") if sees else (None, None)
    )
    assert (cause["count"], cause["code"]) == (3, "INTERNAL")


@pytest.fixture
def many(server: Server) -> None:
    """Version 1 fails by two causes; version 2 answers, and also on a second server."""
    other = Server.objects.create(name="other", http_url="http://y", grpc_url="y", metrics_url="http://y")
    second = span(2, NOW, (700,), failures=2)
    second["causes"][0]["cause"] = second["failed"][0]["cause"] = "no memory"
    answered = span(3, NOW, (800,))
    answered["version"] = "2"
    noted_store_all([Told(server, answer(span(1, NOW, (900,), failures=3), second, answered))])
    noted_store_all([Told(other, answer(answered))])
    Model.objects.create(name="digits")


@pytest.mark.usefixtures("many")
def test_the_address_chooses_version_server_and_cause(client: Client, admin_user: Any):
    client.force_login(admin_user)
    until = {"from": NOW - 60, "to": NOW + 60}

    def shown(**chosen: Any) -> tuple[list[int], list[str]]:
        found = client.get("/models/digits/requests", until | chosen)
        assert found.status_code == 200
        return [row.duration_us for row in found.context["slow"]], [
            row.details["cause"] for row in found.context["failed"]
        ]

    assert shown() == ([900, 800, 800, 700], ["no memory", "bad row #"])
    assert shown(version=2) == ([800, 800], [])
    assert shown(version=2, server="other") == ([800], [])
    assert shown(version="x", server="nowhere") == ([], [])
    keys = [cause.key for cause in failure_causes(Wanted("digits", NOW, NOW + 9))]
    assert shown(cause=keys[1])[1] == ["no memory"]
    assert shown(cause="gone")[1] == []
    page = client.get("/models/digits/requests", {"from": NOW - 60, "cause": keys[0]}).content.decode()
    assert "until now" in page
    assert f"cause={keys[0]}&amp;version=2" in page, "links keep what is chosen"


@pytest.mark.usefixtures("many")
def test_requests_and_their_causes_over_rest(api: APIClient):
    def got(**asked: Any) -> Any:
        return api.get("/api/v1/models/digits/requests", {"start": NOW - 60, "end": NOW + 60, **asked})

    slow = got(kind="slow", limit=2).data["requests"]
    assert [(row["duration_ms"], row["version"]) for row in slow] == [(0.9, 1), (0.8, 2)]
    assert slow[0]["phases_ms"] == {"queue": 0.45, "input": 0.01, "compute": 0.225, "output": 0.01}
    assert [row["server"] for row in got(kind="slow", version=2, server="other").data["requests"]] == ["other"]
    causes = got().data["causes"]
    assert [(cause["cause"], cause["count"], cause["versions"]) for cause in causes] == [
        ("bad row #", 3, 1),
        ("no memory", 2, 1),
    ]
    [failed] = got(cause=causes[1]["key"]).data["requests"]
    assert failed["failed"]
    assert api.get("/api/v1/models/digits/requests").data == {"requests": [], "causes": []}
    for wrong in (
        {"kind": "odd"},
        {"limit": 0},
        {"limit": 101},
        {"start": "x"},
        {"start": NOW + 60},
        {"cause": "gone"},
        {"start": 1},
    ):
        assert got(**wrong).status_code == 400, wrong
    assert got(server="nowhere").status_code == 404
    assert api.get("/api/v1/models/none/requests").status_code == 404
