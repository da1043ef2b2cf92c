"""Charts of an environment: the histories of its servers add up to one."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from dashboard.metrics import selectors as metrics
from dashboard.metrics.marks import metrics_markers
from dashboard.metrics.recent import recent_numbers
from dashboard.metrics.samples import ProcessGauges
from dashboard.metrics.selectors import (
    metrics_heatmap,
    metrics_history,
    metrics_instances,
    metrics_outages,
    metrics_range,
    metrics_totals,
)
from dashboard.metrics.server_loads import server_loads
from dashboard.metrics.services import metrics_store_tick
from dashboard.metrics.usage import Usage
from dashboard.models import (
    MetricSample,
    Model,
    Release,
    ReleaseSpan,
    Server,
    ServerEnvironment,
    ServerEvent,
    ServerState,
)
from dashboard.servers.messages import Gpu
from dashboard.servers.selectors import production_servers
from dashboard.shared.choices import EventKind
from tests.dashboard.conftest import text_of
from tests.dashboard.feeds import PROCESS, tick, usage
from tests.dashboard.metrics.conftest import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("clock")]


@pytest.fixture
def servers() -> list[Server]:
    """Two servers of production, and one of staging."""
    staging = ServerEnvironment.objects.create(name="staging")
    rows = [("local", None), ("local-2", None), ("stage", staging)]
    at = {"http_url": "http://x", "grpc_url": "x", "metrics_url": "http://x"}
    return [Server.objects.create(name=name, environment=where, **at) for name, where in rows]


def store(server: Server, seconds: range, process: ProcessGauges = PROCESS, **models: Usage) -> None:
    previous = 0
    for at in seconds:
        second = tick(at, **models)
        second = type(second)(at, 1.0, second.models, process)
        metrics_store_tick(server, second, at, previous)
        previous = at


def test_percentiles_are_those_of_all_requests_of_all_servers(servers: list[Server]):
    """98 quick requests on one server and 2 slow ones on the other: a mean of percentiles would say 50 ms everywhere."""
    store(servers[0], range(NOW - 60, NOW), digits=usage(98, 1000))
    store(servers[1], range(NOW - 60, NOW), digits=usage(2, 100_000))
    found = metrics_range(servers=servers[:2], start=NOW - 60, end=NOW, model_name="digits")
    assert set(found["series"]["rps"]) == {100}
    assert found["series"]["p50"][0] == pytest.approx(1, rel=0.1)
    assert found["series"]["p95"][0] == pytest.approx(1, rel=0.1)
    assert found["series"]["p99"][0] > 90
    assert (found["total"]["rps"], found["total"]["p50"]) == (100, found["series"]["p50"][0])
    coarse = metrics_range(servers=servers[:2], start=NOW - 60, end=NOW, model_name="digits", max_points=1)
    assert coarse["series"]["p99"] == [found["total"]["p99"]]
    (totals,) = metrics_totals(servers=servers[:2], model_name="digits", wanted=[([1], [(NOW - 60, NOW)])])
    assert (totals.requests, totals.p99) == (6000, found["total"]["p99"])
    heat = metrics_heatmap(metrics_history(servers=servers[:2], start=NOW - 60, end=NOW, model_name="digits"))
    assert sum(map(sum, heat["counts"])) == 6000


def test_what_waits_and_the_processes_add_up(servers: list[Server]):
    small: ProcessGauges = {"rss": 50 << 20, "cpu": 1.5, "threads": 8, "gpus": []}
    store(servers[0], range(NOW - 9, NOW), digits=usage(1, 1000, pending=3))
    store(servers[1], range(NOW - 9, NOW), small, digits=usage(1, 1000, pending=4))
    found = metrics_range(servers=servers[:2], start=NOW - 9, end=NOW, model_name="digits")
    assert set(found["series"]["pending"]) == {7}
    assert found["process"] == {"rss": [150 << 20] * 9, "cpu": [2.0] * 9}


def test_the_gpus_of_each_server_have_series_of_their_own(servers: list[Server]):
    gpu: Gpu = {"uuid": "GPU-1", "utilization": 0.5, "memory_used": 2, "memory_total": 8, "power_w": None}
    unknown: Gpu = {**gpu, "utilization": None, "memory_total": None}
    store(servers[0], range(NOW - 3, NOW), {**PROCESS, "gpus": [gpu, {**gpu, "utilization": 1.0}]})
    store(servers[1], range(NOW - 3, NOW), {**PROCESS, "gpus": [unknown]})
    alone = metrics_range(servers=servers[:1], start=NOW - 3, end=NOW)["process"]
    assert (alone["gpu@0"], alone["gpu@1"], alone["gpu_memory@1"]) == ([0.5] * 3, [1.0] * 3, [0.25] * 3)
    both = metrics_range(servers=servers[:2], start=NOW - 3, end=NOW)["process"]
    assert (both["gpu@1 on local"], both["gpu@0 on local-2"]) == ([1.0] * 3, [None] * 3)
    assert both["gpu_memory@0 on local-2"] == [None] * 3


def test_a_server_that_came_later_adds_its_rate_from_then_on(servers: list[Server]):
    store(servers[0], range(NOW - 60, NOW + 1), digits=usage(4, 1000))
    store(servers[1], range(NOW - 30, NOW + 1), digits=usage(2, 1000))
    fine = metrics_range(servers=servers[:2], start=NOW - 60, end=NOW, model_name="digits")["series"]["rps"]
    assert fine == [4] * 30 + [6] * 30
    coarse = metrics_range(servers=servers[:2], start=NOW - 60, end=NOW, model_name="digits", max_points=1)
    assert coarse["series"]["rps"] == [5]
    MetricSample.objects.filter(server=servers[0], resolution=1).delete()  # one is read in tens of seconds
    mixed = metrics_range(servers=servers[:2], start=NOW - 3600, end=NOW, model_name="digits")
    assert mixed["step"] == 10
    assert mixed["series"]["rps"][-6:] == [4, 4, 4, 6, 6, 6]


def test_watched_times_that_do_not_overlap_are_both_counted(servers: list[Server]):
    store(servers[0], range(NOW - 60, NOW - 30), digits=usage(4, 1000))
    store(servers[1], range(NOW - 30, NOW), digits=usage(2, 1000))
    found = metrics_range(servers=servers[:2], start=NOW - 60, end=NOW, model_name="digits")
    assert found["series"]["rps"] == [4] * 30 + [2] * 30
    assert found["total"]["rps"] == 3


def test_a_second_that_one_server_has_not_stored_yet_is_not_a_decrease(servers: list[Server]):
    store(servers[0], range(NOW - 20, NOW), digits=usage(4, 1000))
    store(servers[1], range(NOW - 20, NOW - 2), digits=usage(4, 1000))
    shown = metrics_range(servers=servers[:2], start=NOW - 20, end=NOW, model_name="digits")["series"]["rps"]
    assert shown == [8] * 18 + [None] * 2
    store(servers[0], range(NOW, NOW + 20), digits=usage(4, 1000))
    shown = metrics_range(servers=servers[:2], start=NOW - 20, end=NOW + 20, model_name="digits")["series"]["rps"]
    assert shown == [8] * 18 + [4] * 22, "a server that does not answer any more holds up nothing"


def test_instances_of_several_servers_are_told_apart(servers: list[Server]):
    for server in servers[:2]:
        second = tick(NOW - 1, digits=usage(5, 5000))
        second.instances["digits", 1] = {"digits_0": usage(5, 5000)}
        metrics_store_tick(server, second, NOW - 1, 0)
    found = metrics_instances(metrics_history(servers=servers[:2], start=NOW - 2, end=NOW, model_name="digits"))
    assert list(found) == ["1 digits_0 on local", "1 digits_0 on local-2"]
    found = metrics_instances(metrics_history(servers=servers[:1], start=NOW - 2, end=NOW, model_name="digits"))
    assert list(found) == ["1 digits_0"]


def test_each_server_has_series_of_its_own_with_gaps_of_its_own(
    servers: list[Server], as_person: Callable[..., Client]
):
    store(servers[0], range(NOW - 4, NOW), digits=usage(1, 1000))
    store(servers[1], range(NOW - 2, NOW), digits=usage(5, 90_000))
    span = {"start": NOW - 4, "end": NOW, "model": "digits"}
    drawn = as_person().get("/metrics", {**span, "version": "servers"}).json()["range"]["versions"]
    assert {name: series["rps"] for name, series in drawn.items()} == {
        "on local": [1, 1, 1, 1], "on local-2": [None, None, 5, 5],
    }  # fmt: skip
    assert drawn["on local-2"]["p99"][-1] > 80
    assert as_person().get("/api/v1/metrics", {**span, "servers": "true"}).json()["servers"] == drawn


def test_outages_of_all_servers_are_read_in_one_query(servers: list[Server], django_assert_num_queries: Any):
    with django_assert_num_queries(1):
        metrics_outages(servers=servers, start=NOW, end=NOW + 60)


def test_charts_of_very_many_servers_read_coarser_rows():
    assert metrics._resolution(NOW - 900, NOW, NOW, 8) == 1
    assert metrics._resolution(NOW - 900, NOW, NOW, 200) == 10
    assert metrics._resolution(NOW - 6 * 3600, NOW, NOW, 200) == 600


def test_an_outage_is_a_time_in_which_no_server_answered(servers: list[Server]):
    began = datetime.fromtimestamp(NOW, UTC)

    def event(server: Server, kind: EventKind, second: int) -> None:
        at = began + timedelta(seconds=second)
        ServerEvent.objects.create(server=server, kind=kind, at=at, message=f"{server.name} {kind}")

    event(servers[0], EventKind.CRASHED, 10)
    event(servers[0], EventKind.RESTARTED, 30)
    event(servers[1], EventKind.UNREACHABLE, 20)
    event(servers[1], EventKind.READY, 50)
    event(servers[2], EventKind.CRASHED, 15)
    assert metrics_outages(servers=servers[:2], start=NOW, end=NOW + 60) == [{"start": NOW + 20, "end": NOW + 30}]
    assert metrics_outages(servers=servers[:1], start=NOW, end=NOW + 60) == [{"start": NOW + 10, "end": NOW + 30}]
    assert metrics_outages(servers=[], start=NOW, end=NOW + 60) == []
    marked = [mark["text"] for mark in metrics_markers(servers=servers[:2], start=NOW, end=NOW + 60)]
    assert marked == ["local crashed", "local-2 unreachable", "local restarted"]


def test_a_release_is_marked_where_the_first_server_began_it(servers: list[Server]):
    model = Model.objects.create(name="digits")
    began = datetime.fromtimestamp(NOW, UTC)
    for number, seconds in ((1, (0, 5)), (2, (60, 70)), (1, (120, 121))):
        release, _ = Release.objects.get_or_create(model=model, number=number, text="", sha256="")
        for server, second in zip(servers, seconds, strict=False):
            at = began + timedelta(seconds=second)
            ReleaseSpan.objects.create(release=release, model=model, server=server, started_at=at, ended_at=at)
    marks = metrics_markers(servers=servers[:2], start=NOW, end=NOW + 200, model_name="digits")
    assert [mark["at"] - NOW for mark in marks] == [0, 60, 120]


def test_pages_and_rest_choose_an_environment_or_a_server(
    servers: list[Server], as_person: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
):
    for rate, server in enumerate(servers, start=1):
        store(server, range(NOW - 30, NOW), digits=usage(rate, 1000))
    client, span = as_person(), {"start": NOW - 30, "end": NOW}

    def rates(address: str, **chosen: str) -> Any:
        answer = client.get(address, {"model": "digits", **span, **chosen})
        return answer.json() if answer.status_code == 200 else answer.status_code

    for chosen, rate in (
        ({}, 3), ({"environment": "production"}, 3), ({"environment": "staging"}, 3), ({"server": "local-2"}, 2),
    ):  # fmt: skip
        assert rates("/metrics", **chosen)["range"]["total"]["rps"] == rate, chosen
        assert rates("/api/v1/metrics", **chosen)["total"]["rps"] == rate, chosen
    before = client.get("/metrics", {"model": "digits", "start": NOW + 86370, "end": NOW + 86400, "compare": "day"})
    assert set(before.json()["before"]["series"]["rps"]) == {3}
    for address in ("/metrics", "/api/v1/metrics"):
        assert rates(address, environment="none") == 404
        assert rates(address, server="none") == 404
        assert rates(address, environment="staging", server="stage") == 400
    ServerEnvironment.objects.create(name="empty")
    assert rates("/metrics", environment="empty")["range"] is None
    assert set(rates("/api/v1/metrics", environment="empty")["series"]["rps"]) == {None}


def test_each_server_stands_beside_the_others_with_its_share_of_the_load(
    servers: list[Server], as_person: Callable[..., Client]
):
    now = int(time.time()) // 60 * 60 + 30
    for server, rate in zip(servers, (30, 10, 99), strict=True):
        store(server, range(now - 120, now), digits=usage(rate, 1000 * rate, fail=rate // 10))
        ServerState.objects.create(server=server, state="ready", info={"version": "2.7"}, restarts=4)
    one, two = server_loads(servers[:2], now).values()
    assert (one.rps, one.skew, two.rps, two.skew) == (33, 1.5, 11, 0.5)
    assert (one.error_share, one.memory, one.cpu) == (pytest.approx(1 / 11), 100 << 20, 0.5)
    assert one.p99 == pytest.approx(30, rel=0.1)
    assert one.spark[-2:] == [pytest.approx(33 / 2), 33], "the first minute is half watched"
    assert set(one.spark[:-2]) == {None}
    assert server_loads(servers[2:], now)[servers[2].pk].skew is None
    client = as_person()
    page = text_of(client, "/environments/production/")
    assert all(f">{shown}</td>" in page for shown in ("1.50 ×", "0.50 ×", "2.7", "4"))
    listed = client.get("/api/v1/environments/production/servers").json()["results"]
    assert {row["server"]["name"]: row["load"]["skew"] for row in listed} == {"local": 1.5, "local-2": 0.5}
    ServerState.objects.filter(server=servers[1]).update(state="down")
    one, two = server_loads(production_servers(), now).values()
    assert (one.skew, two.rps, two.memory, two.spark[-1]) == (None, None, None, 11)


def test_lists_of_models_have_the_numbers_of_production(servers: list[Server]):
    now = int(time.time())
    for server in servers:
        store(server, range(now - 15, now), digits=usage(2, 1000, pending=3))
    numbers = recent_numbers(["digits"], now)
    assert {name: (one.rps, one.pending) for name, one in numbers.items()} == {"digits": (4, 6), "": (4, 6)}


def test_the_page_of_a_model_offers_what_its_charts_can_show(servers: list[Server], as_person: Callable[..., Client]):
    Model.objects.create(name="digits")
    client = as_person()

    def chosen(query: str) -> tuple[str, str, str]:
        page = client.get(f"/models/digits/?{query}").content.decode()
        config = json.loads(page.split('id="charts-config" type="application/json">')[1].split("</script>")[0])
        assert '<option value="environment=staging"' in page
        return config["server"], config["environment"], config["version"]

    assert chosen("") == ("", "production", "")
    assert chosen("server=local-2&version=servers") == ("local-2", "", "")
    assert chosen("environment=staging&version=servers") == ("", "staging", ""), "it has one server"
    assert chosen("environment=none&version=servers") == ("", "production", "servers")
    Server.objects.exclude(name="local").delete()
    assert "chart-server" not in client.get("/models/digits/").content.decode(), "there is no choice"
