"""Metrics history: seconds become tens of seconds and minutes by merging, are pruned, and read back at every range."""

import time
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import apps
from django.db import connection

from dashboard import migrations
from dashboard.metrics.marks import metrics_markers
from dashboard.metrics.samples import RESOLUTIONS, Sample, decode, encode
from dashboard.metrics.selectors import (
    metrics_heatmap,
    metrics_history,
    metrics_instances,
    metrics_range,
    metrics_rows,
    metrics_versions,
)
from dashboard.metrics.services import metrics_prune, metrics_store_tick
from dashboard.metrics.usage import Usage, combine, combine_packed, figures, unpack
from dashboard.models import AuditEntry, MetricSample, Model, Release, ReleaseSpan, Server, ServerEvent
from dashboard.releases.selectors import releases_served
from dashboard.shared.choices import EventKind
from dashboard.watch.collector import next_second
from tests.dashboard.feeds import PROCESS, tick, usage
from tests.dashboard.metrics.conftest import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("clock")]


@pytest.fixture
def server() -> Server:
    return Server.objects.create(name="local", http_url="http://x", grpc_url="x", metrics_url="http://x", bundled=True)


def store(server: Server, start: int, seconds: int, skip: range = range(0), **models: int) -> None:
    """`models`: requests a second, each of 5 ms."""
    previous = 0
    for at in range(start, start + seconds):
        if at in skip:
            continue
        used = {name: usage(count, 5000) for name, count in models.items() if count}
        metrics_store_tick(server, tick(at, **used), at, previous)
        previous = at


def rows(server: Server, resolution: int, model: str = "") -> list[int]:
    found = MetricSample.objects.filter(server=server, resolution=resolution, model_name=model).order_by("at")
    return list(found.values_list("at", flat=True))


def test_seconds_merge_into_whole_coarser_spans(server: Server):
    store(server, NOW - 600, 611, digits=4)
    assert rows(server, 10, "digits") == list(range(NOW - 600, NOW + 10, 10))
    assert rows(server, 60, "digits") == list(range(NOW - 600, NOW, 60))
    assert rows(server, 600, "digits") == [NOW - 600]
    whole = metrics_range(servers=[server], start=NOW - 600, end=NOW, model_name="digits", max_points=1)
    assert whole["batches"] == {"1": 2400}
    parts = metrics_range(servers=[server], start=NOW - 600, end=NOW, model_name="digits", max_points=10)["series"][
        "batch"
    ]
    assert sum(part["1"] for part in parts if part) == 2400
    assert len([part for part in parts if part]) > 1
    assert whole["total"]["rps"] == 4


def test_percentiles_of_a_coarse_span_are_those_of_all_its_requests(server: Server):
    """99 quick requests in one second and a slow one in the next: an average of percentiles would say otherwise."""
    metrics_store_tick(server, tick(NOW - 20, digits=usage(99, 1000)), NOW - 20, 0)
    metrics_store_tick(server, tick(NOW - 19, digits=usage(1, 100_000)), NOW - 19, NOW - 20)
    metrics_store_tick(server, tick(NOW - 10), NOW - 10, NOW - 19)
    assert rows(server, 10, "digits") == [NOW - 20]
    total = metrics_range(servers=[server], start=NOW - 20, end=NOW - 10, model_name="digits")["total"]
    assert total["p50"] == pytest.approx(1, rel=0.1)
    assert total["p95"] == pytest.approx(1, rel=0.1)
    assert metrics_range(servers=[server], start=NOW - 19, end=NOW - 18, model_name="digits")["total"]["p50"] > 90


def test_a_restart_of_the_watcher_makes_up_for_spans_that_were_not_merged(server: Server):
    store(server, NOW - 100, 15, digits=1)
    MetricSample.objects.filter(resolution=10).delete()
    metrics_store_tick(server, tick(NOW - 40), NOW - 40, 0)
    assert rows(server, 10, "digits") == [NOW - 100, NOW - 90]


def test_an_idle_second_is_zero_and_an_unwatched_one_is_a_gap(server: Server):
    store(server, NOW - 60, 60, skip=range(NOW - 30, NOW - 20))
    metrics_store_tick(server, tick(NOW, digits=usage(5, 2000)), NOW, NOW - 1)
    found = metrics_range(servers=[server], start=NOW - 60, end=NOW + 1, model_name="digits")
    series = dict(zip(found["times"], found["series"]["rps"], strict=True))
    assert found["step"] == 1
    assert series[NOW] == 5
    assert series[NOW - 40] == 0
    assert series[NOW - 25] is None
    assert found["process"]["rss"][0] == 100 << 20
    assert found["series"]["p99"][0] is None


def test_the_server_as_a_whole_is_all_models_together(server: Server):
    store(server, NOW - 5, 5, a=2, b=3)
    assert set(metrics_range(servers=[server], start=NOW - 5, end=NOW)["series"]["rps"]) == {5}


def test_versions_that_wait_at_the_same_time_add_up(server: Server):
    second = tick(NOW - 1, digits=usage(1, 1000, pending=3))
    second.models[("digits", 2)] = usage(1, 1000, pending=4)
    metrics_store_tick(server, second, NOW - 1, 0)

    def pending(**chosen: int) -> list[int]:
        found = metrics_range(servers=[server], start=NOW - 1, end=NOW, model_name="digits", **chosen)
        return found["series"]["pending"]

    assert pending() == [7]
    assert pending(version=2) == [4]


def test_a_long_range_is_read_coarsely_and_ends_with_what_is_not_merged_yet(server: Server):
    store(server, NOW - 600, 603, digits=2)
    found = metrics_range(servers=[server], start=NOW - 5 * 24 * 3600, end=NOW + 3, model_name="digits")
    assert found["step"] == 600
    assert len(found["times"]) <= 900
    known = {at: rps for at, rps in zip(found["times"], found["series"]["rps"], strict=True) if rps is not None}
    assert known == {NOW - 600: 2, NOW: 2}


def test_a_range_never_has_more_points_than_asked_for(server: Server):
    store(server, NOW - 300, 300, digits=2)
    found = metrics_range(servers=[server], start=NOW - 900, end=NOW, model_name="digits", max_points=100)
    assert len(found["times"]) <= 101
    assert {rps for rps in found["series"]["rps"] if rps is not None} == {2}


def test_rows_are_pruned_when_their_resolution_has_kept_them_long_enough(server: Server):
    now = time.time()
    for resolution, kept_s in RESOLUTIONS.items():
        for age in (kept_s // 2, 2 * kept_s):
            at = int(now - age) // resolution * resolution
            MetricSample.objects.create(server=server, resolution=resolution, at=at, data=b"")
    assert metrics_prune(now) == len(RESOLUTIONS)
    assert {row.resolution for row in MetricSample.objects.all()} == set(RESOLUTIONS)


def test_a_heat_map_counts_every_request_in_its_band(server: Server):
    store(server, NOW - 10, 10, digits=3)
    heat = metrics_heatmap(metrics_history(servers=[server], start=NOW - 10, end=NOW, model_name="digits"))
    assert sum(map(sum, heat["counts"])) == 30
    assert heat["bounds_ms"][0] <= 5 <= heat["bounds_ms"][-1]
    assert len(heat["bounds_ms"]) == len(heat["counts"]) + 1


def test_markers_are_what_changed_in_the_range_oldest_first(server: Server):
    began = time.time() - 1
    ServerEvent.objects.create(server=server, kind=EventKind.CRASHED, message="The inference server was killed.")
    ServerEvent.objects.create(server=server, kind=EventKind.MODEL_LOADED, model_name="digits", message="Loaded.")
    AuditEntry.objects.create(actor_name="ada", action="model.unload", model_name="digits", summary="Unloaded digits")
    AuditEntry.objects.create(actor_name="ada", action="version.publish", model_name="digits", summary="Published 2")
    AuditEntry.objects.create(actor_name="ada", action="token.create", summary="Made a token")
    found = metrics_markers(servers=[server], start=began, end=time.time() + 1, model_name="digits")
    assert [marker["text"] for marker in found] == ["The inference server was killed.", "Unloaded digits"]
    assert metrics_markers(servers=[server], start=began - 100, end=began) == []


def test_each_version_has_series_of_its_own(server: Server):
    for at in (NOW - 2, NOW - 1):
        second = tick(at, digits=usage(2, 1000))
        second.models[("digits", 2)] = usage(3, 90_000, fail=1)
        metrics_store_tick(server, second, at, at - 1)
    found = metrics_versions(metrics_history(servers=[server], start=NOW - 2, end=NOW, model_name="digits"))
    assert {version: series["rps"] for version, series in found.items()} == {"1": [2, 2], "2": [4, 4]}
    assert {version: series["errors"] for version, series in found.items()} == {"1": [0, 0], "2": [1, 1]}
    assert found["1"]["p99"][0] < 2
    assert found["2"]["p99"][0] > 80
    assert metrics_versions(metrics_history(servers=[server], start=NOW - 2, end=NOW, model_name="other")) == {}


def test_jitter_files_consecutive_ticks_under_consecutive_seconds():
    at = 0
    for moment in (100.95, 101.96, 102.94, 104.01, 104.99):
        last, at = at, next_second(at, tick(moment))
        assert last == 0 or at == last + 1
    assert next_second(at, tick(200.5)) == 200


def test_a_row_of_a_busy_second_is_small(server: Server):
    busy = usage(0, 1)
    busy.request = dict.fromkeys(range(150, 250), 7)
    busy.compute = dict(busy.request)
    metrics_store_tick(server, tick(NOW, digits=busy), NOW, NOW)
    assert len(MetricSample.objects.get(model_name="digits").data) < 1000


def test_a_release_that_begins_to_serve_is_marked_once_and_linked(server: Server):
    model = Model.objects.create(name="digits")
    first, second = (
        Release.objects.create(model=model, number=number, text="", sha256="", summary=f"Published version {number}")
        for number in (1, 2)
    )
    began = datetime.fromtimestamp(NOW, UTC)

    def served(release: Release, start: int, end: int | None) -> None:
        ReleaseSpan.objects.create(
            release=release, model=model, server=server,
            started_at=began + timedelta(seconds=start), ended_at=began + timedelta(seconds=end) if end else None,
        )  # fmt: skip

    served(first, 0, 100)
    served(first, 110, 200)  # its server came back
    served(second, 200, 300)
    served(first, 300, None)  # in place of the second, which failed
    found = metrics_markers(servers=[server], start=NOW, end=NOW + 400, model_name="digits")
    assert [(marker["at"] - NOW, marker["text"]) for marker in found] == [
        (0, "Release 1 of digits serves: Published version 1"),
        (200, "Release 2 of digits serves: Published version 2"),
        (300, "Release 1 of digits serves: Published version 1"),
    ]
    assert found[1]["address"] == "/models/digits/releases/2/"
    assert metrics_markers(servers=[server], start=NOW + 105, end=NOW + 150, model_name="digits") == []
    assert metrics_markers(servers=[server], start=NOW, end=NOW + 400, model_name="other") == []
    assert [span.release.number for span in releases_served(model, 5)] == [1, 2]


def test_history_of_former_spans_stays_whole_after_an_upgrade(server: Server):
    for resolution, start in ((10, NOW - 120), (300, NOW - 1200)):
        for at in range(start, NOW, resolution):
            data = encode(Sample(usage(resolution, 5000).pack()))
            MetricSample.objects.create(
                server=server, model_name="digits", version=1, resolution=resolution, at=at, data=data
            )
    [path] = Path(migrations.__file__).parent.glob("*_metric_spans_and_noted.py")
    merge_spans = import_module(f"dashboard.migrations.{path.stem}").merge_spans
    merge_spans(apps, None)
    assert rows(server, 60, "digits") == [NOW - 120, NOW - 60]
    assert rows(server, 600, "digits") == [NOW - 1200, NOW - 600]
    assert {row.resolution for row in MetricSample.objects.all()} == {10, 60, 600}
    coarse = MetricSample.objects.filter(resolution=600).values_list("data", flat=True)
    assert [decode(data).requests for data in coarse] == [600, 600]


def test_the_histograms_that_only_the_advice_reads_are_kept_in_seconds_only(server: Server):
    one = usage(4, 5000)
    one.queue, one.gaps, one.batch_ns = {3: 4}, {9: 4}, {1: 20_000_000}
    metrics_store_tick(server, tick(NOW - 10, digits=one), NOW - 10, 0)
    metrics_store_tick(server, tick(NOW), NOW, NOW - 10)
    fine, coarse = (
        decode(MetricSample.objects.get(model_name="digits", resolution=resolution).data).usage
        for resolution in (1, 10)
    )
    assert (fine.queue, fine.gaps, fine.batch_ns) == (one.queue, one.gaps, one.batch_ns)
    assert (coarse.queue, coarse.compute, coarse.gaps, coarse.batch_ns) == ({}, {}, {}, {})
    assert coarse.request == fine.request


def test_the_phases_of_a_request_add_up_to_its_computation():
    one = usage(2, 5000)
    one.input_ns, one.output_ns = 1_000_000, 3_000_000
    shown = figures(one, 1.0)
    assert (shown["input_ms"], shown["infer_ms"], shown["output_ms"]) == (0.5, 3, 1.5)
    assert shown["compute_ms"] == 5


def test_rows_add_up_as_they_are_stored_to_what_they_add_up_to_unpacked():
    some = usage(98, 1000, fail=2, pending=3), usage(2, 100_000, pending=7), Usage(), usage(1, 1000, fail=1, pending=4)
    packed = [one.pack() for one in some]
    assert unpack(combine_packed(packed)) == combine(some)
    assert combine_packed(packed)["pending"] == 7, "the highest"
    assert combine_packed(packed)["failures"] == ["BACKEND", 3]
    assert packed == [one.pack() for one in some], "what is added stays"
    whole = combine_packed(packed)
    without = {name: value for name, value in whole.items() if name not in ("request", "success")}
    assert combine_packed(packed, without=("request", "success")) == without
    assert combine_packed([]) == {}


def test_hours_that_an_upgrade_lacks_are_made_a_few_at_a_time_and_charts_stay_whole(server: Server):
    hours, hour, ten_minutes = 14, 3600, 600
    start = NOW - hours * hour
    for at in range(start, NOW, ten_minutes):
        for name, process in (("", PROCESS), ("digits", None)):
            data = encode(Sample(usage(ten_minutes, 5000).pack(), process))
            MetricSample.objects.create(server=server, model_name=name, resolution=ten_minutes, at=at, data=data)
    for made in (6, 12, 14, 14):
        metrics_store_tick(server, tick(NOW), NOW, NOW - 1)
        assert rows(server, hour, "digits") == list(range(start, start + made * hour, hour))
        found = metrics_range(servers=[server], start=NOW - 29 * 24 * hour, end=NOW, model_name="digits")
        assert found["step"] == hour
        assert [rps for rps in found["series"]["rps"] if rps is not None] == [1] * hours


def test_instances_are_apart_for_hours_and_not_in_coarser_spans(server: Server):
    previous = 0
    for at in range(NOW - 120, NOW + 1):
        second = tick(at, digits=usage(5, 5000))
        second.instances["digits", 1] = {"digits_0": usage(4, 2000), "digits_1": usage(1, 17000, fail=at % 2)}
        metrics_store_tick(server, second, at, previous)
        previous = at
    of = {"servers": [server], "model_name": "digits"}
    fine = metrics_instances(metrics_history(start=NOW - 60, end=NOW, **of))
    assert list(fine) == ["1 digits_0", "1 digits_1"]
    assert fine["1 digits_0"]["rps"][-10:] == [4.0] * 10
    assert sorted(fine["1 digits_1"]["errors"][-2:]) == [0.0, 1.0]
    assert fine["1 digits_1"]["p50"][-1] > 8 * fine["1 digits_0"]["p50"][-1]
    assert set(metrics_instances(metrics_history(start=NOW - 3600, end=NOW, **of))) == set(fine), "in spans of 10 s"
    kept = MetricSample.objects.filter(model_name="digits").values_list("resolution", "data")
    assert {resolution for resolution, data in kept if decode(data).instances} == {1, 10}


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the plan is SQLite's")
@pytest.mark.parametrize("name", ["", "digits"])
def test_a_chart_reads_the_rows_of_its_model_only(server: Server, name: str):
    store(server, NOW - 3, 3, digits=1, other=1)
    found = metrics_rows([server.pk], name, 1, NOW - 3, NOW)
    assert "model_name=? AND version=? AND at>? AND at<?" in found.explain()
    assert {(row.model_name, row.at) for row in found} == {(name, at) for at in range(NOW - 3, NOW)}
