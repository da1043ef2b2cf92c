"""The counts of an objective are those of the history, whatever restarts, gaps and second processes there were."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.metrics.feed import NO_VERSION, Tick
from dashboard.metrics.services import metrics_store_tick
from dashboard.metrics.usage import Usage
from dashboard.models import (
    MetricSample,
    Model,
    Objective,
    ObjectiveCount,
    Server,
    ServerEnvironment,
    ServerEvent,
    Version,
)
from dashboard.objectives.burn import HOUR, MINUTE
from dashboard.objectives.counts import ObjectiveCounter, counts_prune, objectives_count, parts_of
from dashboard.objectives.selectors import series_of, standing_of
from dashboard.objectives.services import objective_set
from dashboard.shared.exceptions import Forbidden, Invalid
from tests.dashboard.conftest import text_of
from tests.dashboard.feeds import PROCESS, tick, usage

pytestmark = pytest.mark.django_db
NOW = int(time.time()) // HOUR * HOUR


@pytest.fixture
def model(db: None) -> Model:
    model = Model.objects.create(name="digits")
    Model.objects.update(created_at="2020-01-01T00:00:00Z")
    model.refresh_from_db()
    return model


@pytest.fixture
def objective(model: Model) -> Objective:
    return Objective.objects.create(model=model, percent=99.9, latency_ms=50.0, counted=True)


def store(server: Server, start: int, seconds: int, **each: Any) -> None:
    previous = 0
    for at in range(start, start + seconds):
        metrics_store_tick(server, tick(at, digits=usage(**each)), at, previous)
        previous = at


def total(objective: Objective, start: int, end: int) -> tuple[int, int]:
    return tuple(series_of([objective], NOW)[objective.pk].between(start, end))


def test_a_request_is_bad_if_it_failed_or_was_slow_and_a_cancelled_one_does_not_count() -> None:
    one = usage(10, 60_000, fail=4)
    one.cancel = 3
    assert parts_of(one, 50) == (11, 1, 10)
    assert parts_of(one, 60) == (11, 1, 0), "the bucket of the limit itself is quick enough"
    assert parts_of(one, None) == (11, 1, 0)


def test_counting_again_or_in_two_processes_counts_nothing_twice(server: Server, objective: Objective) -> None:
    store(server, NOW - 300, 301, requests=2, each_us=5000, fail=1)
    for _ in range(3):
        objectives_count(NOW, 1200)
    assert total(objective, NOW - 300, NOW) == (900, 300)
    assert set(ObjectiveCount.objects.values_list("resolution", flat=True)) == {MINUTE, HOUR}


def test_all_servers_of_production_count_and_those_of_other_environments_do_not(
    server: Server, objective: Objective
) -> None:
    staging = ServerEnvironment.objects.create(name="staging")
    addresses = {"http_url": "http://x", "grpc_url": "x", "metrics_url": "http://x"}
    second = Server.objects.create(name="second", **addresses)
    for one in (server, second, Server.objects.create(name="stage", environment=staging, **addresses)):
        store(one, NOW - 60, 65, requests=1, each_us=5000)
    objectives_count(NOW + 5, 1200)
    assert total(objective, NOW - 60, NOW + 60) == (130, 0)


def test_the_newest_seconds_count_before_their_span_is_whole_and_then_no_second_time(
    server: Server, objective: Objective
) -> None:
    store(server, NOW - 60, 65, requests=1, each_us=5000)
    objectives_count(NOW + 5, 1200)
    assert total(objective, NOW - 60, NOW + 60) == (65, 0)
    store(server, NOW + 5, 20, requests=1, each_us=5000)
    objectives_count(NOW + 25, 1200)
    assert total(objective, NOW - 60, NOW + 60) == (85, 0)


def test_a_gap_of_watch_leaves_what_was_stored(server: Server, objective: Objective) -> None:
    store(server, NOW - 600, 61, requests=1, each_us=5000)
    objectives_count(NOW - 540, 1200)
    store(server, NOW - 120, 121, requests=1, each_us=80_000)
    objectives_count(NOW, 1200)
    assert total(objective, NOW - 600, NOW) == (181, 120), "and the second whose span was not whole yet"


def test_spans_that_are_made_late_are_counted_after_a_restart(server: Server, objective: Objective) -> None:
    store(server, NOW - 600, 601, requests=1, each_us=5000)
    late = MetricSample.objects.filter(resolution=10, at__lt=NOW - 300)
    rows = list(late)
    late.delete()
    objectives_count(NOW, 1200)
    assert total(objective, NOW - 600, NOW) == (300, 0)
    MetricSample.objects.bulk_create(rows)
    objectives_count(NOW, 1200)
    assert total(objective, NOW - 600, NOW) == (600, 0)


def test_a_new_objective_counts_the_history_before_it(server: Server, model: Model, actor: Actor) -> None:
    store(server, NOW - 4000, 401, requests=3, each_us=80_000)  # so long ago that only the history's spans are read
    MetricSample.objects.create(
        server=server, model_name="digits", version=1, resolution=600, at=NOW - 240 * HOUR,
        data=MetricSample.objects.filter(model_name="digits").earliest("pk").data,
    )  # fmt: skip
    objective = objective_set(model=model, actor=actor, percent=99.0, latency_ms=50.0)
    assert objective is not None
    assert ObjectiveCounter()() == 1
    found = standing_of(Objective.objects.get(), NOW)
    assert (found.budget.requests, found.budget.bad, found.slow) == (1203, 1203, 1203)
    objective_set(model=model, actor=actor, percent=99.0, latency_ms=100.0)
    ObjectiveCounter()()
    assert standing_of(Objective.objects.get(), NOW).budget.bad == 0, "another latency counts the history again"


def test_requests_that_no_version_was_ready_for_are_bad(server: Server, objective: Objective) -> None:
    second = tick(NOW - 20)
    second.models[("digits", 0)] = usage(0, 1, fail=7)
    metrics_store_tick(server, second, NOW - 20, 0)
    metrics_store_tick(server, tick(NOW), NOW, NOW - 20)
    objectives_count(NOW, 1200)
    assert total(objective, NOW - 60, NOW) == (7, 7)


def test_counts_that_no_window_reaches_are_removed(objective: Objective) -> None:
    for resolution, age in ((MINUTE, 9 * HOUR), (MINUTE, 6 * HOUR), (HOUR, 31 * 24 * HOUR), (HOUR, 29 * 24 * HOUR)):
        ObjectiveCount.objects.create(
            objective=objective, resolution=resolution, at=NOW - age, requests=1, failed=0, slow=0
        )
    assert counts_prune(NOW) == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"percent": 100.0}, "expected 50 to 99.999 per cent"),
        ({"percent": float("nan")}, "expected 50"),
        ({"percent": None, "latency_ms": 5.0}, "a latency alone"),
        ({"percent": 99.0, "latency_ms": 0.0}, "expected milliseconds"),
    ],
)
def test_a_wrong_objective_is_refused_with_a_sentence(model: Model, actor: Actor, given: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        objective_set(model=model, actor=actor, **given)


def test_a_viewer_may_not_set_it(model: Model, person: Callable[..., Any]) -> None:
    with pytest.raises(Forbidden):
        objective_set(model=model, actor=Actor(user=person()), percent=99.0)


def test_the_objective_over_rest_and_on_the_pages(relu: Version, api: APIClient, as_person: Any) -> None:
    assert api.get("/api/v1/models/relu/objective").data["percent"] is None
    answer = api.put("/api/v1/models/relu/objective", {"percent": 99.9, "latency_ms": 50})
    assert (answer.status_code, answer.data["percent"], answer.data["budget"]["left"]) == (200, 99.9, None)
    assert [row["model"] for row in api.get("/api/v1/objectives").data["results"]] == ["relu"]
    client = as_person("operate")
    assert "99.9 % of requests answered, under 50 ms" in client.get("/models/relu/objective").content.decode()
    overview = client.get("/?part=busy", headers={"HX-Request": "true"}).content.decode()
    assert "Error budgets" in overview
    client.post("/models/relu/objective/set", {"percent": "", "latency_ms": ""})
    assert not Objective.objects.exists()
    page = client.post("/models/relu/objective/set", {"percent": "many"}, follow=True).content.decode()
    assert "is not a number" in page


def test_the_time_in_which_a_server_did_not_answer_stands_beside_the_budget(
    server: Server, model: Model, api: APIClient, as_person: Callable[..., Client]
) -> None:
    now = timezone.now()
    Model.objects.update(created_at=now - timedelta(days=40))
    Objective.objects.create(model=model, percent=99.9, counted=True)
    assert api.get("/api/v1/models/digits/objective").data["down"] == []
    for ago, kind in ((timedelta(days=33), "crashed"), (timedelta(days=32), "ready"), (timedelta(days=2), "crashed")):
        ServerEvent.objects.create(server=server, at=now - ago, kind=kind)
    ServerEvent.objects.create(server=server, at=now - timedelta(days=2) + timedelta(seconds=1296), kind="ready")
    [down] = api.get("/api/v1/models/digits/objective").data["down"]
    assert (down["server"], down["seconds"], round(down["share"], 6)) == ("local", 1296, 0.5)
    page = text_of(as_person(), "/models/digits/objective")
    assert "Server local did not answer for 21 min 36 s of these 30 days." in page
    assert "By time, that is 50 % of what the objective allows." in page


def test_requests_to_a_model_that_is_not_ready_are_bad(server: Server, model: Model) -> None:
    Objective.objects.create(model=model, percent=99.9, counted=True)
    refused = Usage(fail=5, failures={"REJECTED": 5})
    for at in range(NOW - 20, NOW + 1):
        metrics_store_tick(server, Tick(at, 1.0, {("digits", NO_VERSION): refused}, PROCESS), at, at - 1)
    objectives_count(NOW + 1, 60)
    assert standing_of(Objective.objects.get(), NOW).failed == 105
