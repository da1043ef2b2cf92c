"""The slowest and the failed requests of a version: which are kept, what is said of them, and how they are read."""

import time
from pathlib import Path
from typing import Any

from serving.core.batch import Batch
from serving.core.errors import internal
from serving.core.response import InferenceResponse
from serving.telemetry.noted_requests import (
    KEPT_SPANS,
    MOST,
    MOST_CAUSES,
    OTHER_CAUSES,
    SPAN_NS,
    NotedRequests,
    cause_of,
)
from tests.serving.requests import in_flight
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import ServerProcess, wait_until

MS = 1_000_000
LATER = time.monotonic_ns() + 10**15  # moments that `spans` does not reach, so that only a later request ends a span


def ran(noted: NotedRequests, *took_ms: int, at_ns: int) -> None:
    """Note a batch that ended at a moment; its requests took so long, half of it in the queue."""
    requests = []
    for took in took_ms:
        request = in_flight("m", {}, id=f"took {took}")
        request.arrival_ns = request.queued_ns = at_ns - took * MS
        requests.append(request)
    batch = Batch(requests, len(requests))
    batch.responses = [InferenceResponse("m", 1, request.asked.id, {}) for request in requests]
    batch.started_ns = at_ns - max(took_ms) * MS // 2
    batch.input_done_ns = batch.started_ns + MS // 4
    batch.infer_done_ns, batch.ended_ns = at_ns - MS // 4, at_ns
    if at_ns >= noted.until_ns or max(took_ms) * MS > noted.floor_ns:
        noted.batch_done(batch)


def test_the_slowest_of_a_span_are_kept_slowest_first() -> None:
    noted = NotedRequests()
    for took in (3, 9, 4, 8, 5, 7, 6, 2):
        ran(noted, took, at_ns=LATER)
    assert noted.floor_ns == 5 * MS
    ran(noted, 1, at_ns=LATER + SPAN_NS)  # which begins the next span
    [span] = noted.spans(0)
    assert [one["id"] for one in span["slow"]] == [f"took {took}" for took in (9, 8, 7, 6, 5)]
    slowest = span["slow"][0]
    assert (slowest["duration_us"], slowest["queue_us"], slowest["input_us"]) == (9000, 4500, 250)
    assert (slowest["infer_us"], slowest["output_us"], slowest["batch_size"]) == (4000, 250, 1)
    assert noted.spans(span["number"]) == []


def test_a_batch_is_searched_for_all_its_slow_requests() -> None:
    noted = NotedRequests()
    ran(noted, 4, 20, 6, 30, at_ns=LATER)
    ran(noted, 1, at_ns=LATER + SPAN_NS)
    [span] = noted.spans(0)
    assert [one["duration_us"] for one in span["slow"]] == [30_000, 20_000, 6000, 4000]


def test_failures_are_counted_by_cause_and_the_first_are_kept() -> None:
    noted = NotedRequests()
    for number in range(20):
        noted.failed(in_flight("m", {}), "BACKEND", internal(f"row {number} of 'secret {number}' is wrong"), None)
    noted.until_ns = 1  # the span is over
    ran(noted, 1, at_ns=LATER)
    [span] = noted.spans(0)
    [cause] = span["causes"]
    assert (cause["cause"], cause["count"], cause["code"]) == ("row # of '...' is wrong", 20, "INTERNAL")
    assert cause["first"] <= cause["last"]
    assert [one["message"] for one in span["failed"]] == [f"row {n} of 'secret {n}' is wrong" for n in range(MOST)]


def test_a_flood_of_different_causes_stays_bounded() -> None:
    noted = NotedRequests()
    for number in range(100):
        noted.failed(in_flight("m", {}), "BACKEND", internal("bad " + "x" * number), None)
    noted.until_ns = 1
    ran(noted, 1, at_ns=LATER)
    causes = noted.spans(0)[0]["causes"]
    assert len(causes) == MOST_CAUSES + 1
    assert (causes[-1]["cause"], causes[-1]["count"]) == (OTHER_CAUSES, 80)


def test_only_the_last_spans_are_kept_without_a_reader() -> None:
    noted = NotedRequests()
    for number in range(1, 10):
        ran(noted, number, at_ns=LATER + number * SPAN_NS)
    spans = noted.spans(0)
    assert [span["slow"][0]["id"] for span in spans] == ["took 6", "took 7", "took 8"]
    assert len(spans) == KEPT_SPANS


def test_a_cause_has_no_numbers_and_no_quoted_parts() -> None:
    assert cause_of("unexpected shape for input 'x', expected [-1,4], got [1, 5]") == (
        "unexpected shape for input '...', expected [-#], got [#]"
    )


def test_a_server_tells_its_slow_and_failed_requests(tmp_path: Path) -> None:
    onnx_identity(tmp_path / "models")
    good = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [12345678.0]}]}
    bad = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [12345678]}]}
    with ServerProcess(tmp_path / "models") as server:
        assert server.post("/v2/models/identity/infer", {**good, "id": "the good one"})[0] == 200
        assert server.post("/v2/models/identity/infer", {**bad, "id": "the bad one"})[0] == 400
        found: list[Any] = []

        def told() -> bool:
            status, answer = server.get("/v2/slipway/requests?after=0")
            assert status == 200
            found[:] = answer["spans"]
            return bool(found)

        wait_until(told, what="the span")
        [span] = found
        assert (span["model"], span["version"]) == ("identity", "1")
        assert [one["id"] for one in span["slow"]] == ["the good one"]
        assert [(one["id"], one["code"]) for one in span["failed"]] == [("the bad one", "INVALID_ARG")]
        assert [cause["count"] for cause in span["causes"]] == [1]
        assert "12345678" not in str(found)
        assert server.get(f"/v2/slipway/requests?after={span['number']}")[1]["spans"] == []
        assert server.get("/v2/slipway/requests?after=x")[0] == 400
