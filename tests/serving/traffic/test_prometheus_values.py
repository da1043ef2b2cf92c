"""Guardrails read metrics of this server's own page, and ask a Prometheus server."""

import asyncio
import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from repository.config.traffic import Guardrail, TrafficPolicy
from serving.frontends.metrics.routes import MetricsSource
from serving.frontends.shared.authorisation import Authoriser
from serving.traffic.figures import ArmFigures
from serving.traffic.prometheus_values import (
    MIN_READINGS,
    PageReader,
    PrometheusValues,
    QueryReader,
    Readings,
    query_value,
    read_page,
)
from tests.serving.in_process import core
from tests.serving.traffic.rollouts_in_process import count_answers, policy, scale
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S

PAGE = """\
# HELP unsafe_answers Answers that a filter took back
# TYPE unsafe_answers counter
unsafe_answers{model="chat",version="1"} 10
unsafe_answers{model="chat",version="2",why="a \\"quote\\", and a comma"} 4
unsafe_answers{model="chat",version="2"} 3
unsafe_answers_more{model="chat",version="2"} 99
# TYPE depth gauge
depth{model="chat",version="1"} 2.5
depth{model="chat",version="2"} NaN
depth{model="a \\"quote\\"",version="1"} 7
"""


@pytest.mark.parametrize(
    ("name", "version", "found"),
    [
        ("unsafe_answers", "1", (True, 10.0)),
        ("unsafe_answers", "2", (True, 7.0)),
        ("unsafe_answers", "3", (True, None)),
        ("depth", "1", (False, 2.5)),
        ("nothing", "1", (False, None)),
        ("latency_sum", "1", (True, None)),
    ],
)
def test_a_metric_is_found_by_its_name_and_labels(name: str, version: str, found: tuple[bool, float | None]) -> None:
    assert read_page(PAGE, name, {"model": "chat", "version": version}) == found


def test_a_model_of_an_odd_name_is_found() -> None:
    assert read_page(PAGE, "depth", {"model": 'a "quote"', "version": "1"}) == (False, 7.0)


def arms() -> dict[str, tuple[dict[str, str], ArmFigures]]:
    return {
        name: ({"model": "chat", "version": version}, ArmFigures(60))
        for name, version in (("stable", "1"), ("candidate", "2"))
    }


def page(stable: float, candidate: float) -> str:
    return (
        "# TYPE unsafe counter\n"
        f'unsafe{{model="chat",version="1"}} {stable}\nunsafe{{model="chat",version="2"}} {candidate}\n'
    )


def test_a_counter_is_read_for_each_request_of_its_arm() -> None:
    both = arms()
    reader = PageReader(Guardrail(metric="prometheus", name="unsafe", ratio=2.0), both, Readings(60))
    reader.read(page(100, 5))
    both["stable"][1].requests, both["candidate"][1].requests = 50, 10
    reader.read(page(110, 7))
    assert reader.readings.counted
    assert list(reader.readings.stable) == [(10, 50)]
    assert list(reader.readings.candidate) == [(2, 10)]
    reader.read(page(110, 7))
    assert len(reader.readings.stable) == 1, "without requests there is nothing to tell"


def test_a_counter_that_begins_anew_is_read_from_there() -> None:
    both = arms()
    reader = PageReader(Guardrail(metric="prometheus", name="unsafe", ratio=2.0), both, Readings(60))
    for requests, value in ((0, 100), (10, 103), (20, 1), (30, 4)):
        both["stable"][1].requests = requests
        reader.read(page(value, 0))
    assert list(reader.readings.stable) == [(3, 10), (3, 10)]


def test_a_missing_metric_is_a_problem_that_is_shown() -> None:
    reader = PageReader(Guardrail(metric="prometheus", name="unsafe", ratio=2.0), arms(), Readings(60))
    reader.read('unsafe{model="chat",version="1"} 3\n')
    assert (
        reader.readings.problem == "the server's metrics have no number 'unsafe' with the labels of the candidate arm"
    )


VECTOR = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "0.25"]}]}}
SCALAR = {"status": "success", "data": {"resultType": "scalar", "result": [1, "3"]}}
NOTHING = {"status": "success", "data": {"resultType": "vector", "result": []}}
HUGE = {"status": "success", "data": {"resultType": "scalar", "result": [1, "1e300"]}}
TWO = {"status": "success", "data": {"resultType": "vector", "result": [{"value": [1, "1"]}, {"value": [1, "2"]}]}}


@pytest.mark.parametrize(("answer", "value"), [(VECTOR, 0.25), (SCALAR, 3.0)])
def test_an_instant_query_gives_one_number(answer: object, value: float) -> None:
    assert query_value(json.dumps(answer).encode()) == value


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html>", "gets an answer that is not in Prometheus' format"),
        (b"[]", "gets an answer that is not in Prometheus' format"),
        (b'{"data": {}}', "gets an answer that is not in Prometheus' format"),
        (json.dumps(TWO).encode(), "finds 2 series; sum them up"),
        (json.dumps(NOTHING).encode(), "finds nothing"),
        (json.dumps(HUGE).encode(), "gives 1e300, which cannot be compared"),
        (json.dumps(SCALAR).replace('"3"', '"NaN"').encode(), "gives NaN, which cannot be compared"),
        (json.dumps(SCALAR).replace('"3"', "[]").encode(), r"gives \[\], which cannot be compared"),
        (b'{"data": {"resultType": "string", "result": [1, "3"]}}', "gives a string; ask for one number"),
        (b" " * (1 << 20) + b"{}", "finds more than"),
    ],
)
def test_an_answer_without_one_number_is_refused_in_words(answer: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        query_value(answer)


def test_a_prometheus_server_is_asked_for_both_arms() -> None:
    asked: list[str] = []

    async def fetch(url: str) -> bytes:
        asked.append(parse_qs(urlsplit(url).query)["query"][0])
        return json.dumps(VECTOR if len(asked) < 3 else NOTHING).encode()

    guardrail = Guardrail(
        metric="prometheus", url="http://prometheus:9090/", stable='sum(x{v="1"})', candidate='sum(x{v="2"})', ratio=2.0
    )
    reader = QueryReader(guardrail, fetch, Readings(60))
    asyncio.run(reader.read())
    assert asked == ['sum(x{v="1"})', 'sum(x{v="2"})']
    assert (list(reader.readings.stable), list(reader.readings.candidate)) == ([(0.25, 1)], [(0.25, 1)])
    asyncio.run(reader.read())
    assert reader.readings.problem == (
        "Prometheus at http://prometheus:9090/ gave no value: the query 'sum(x{v=\"1\"})' finds nothing"
    )
    assert len(reader.readings.stable) == 0, "what was read before grows old"


@pytest.mark.asyncio
async def test_a_metric_of_the_server_itself_is_read_from_its_page_of_the_model(tmp_path: Path) -> None:
    guardrail = {"metric": "prometheus", "name": "nv_inference_request_success"}
    scale(tmp_path, policy(50, guardrails=[guardrail]))
    model_factory.onnx_scale(tmp_path, "other")
    async with core(tmp_path, load_model=("scale", "other")) as server:
        source = MetricsSource(server, server.options, Authoriser.from_options(server.options, "http"))
        (rollout,) = server.rollouts
        page = "".join(source.pieces_of(rollout.identifier))
        assert 'slipway_rollout_requests_total{arm="stable",model="scale",version="1"} 0' in page
        assert "other" not in page
        async with asyncio.timeout(PATIENCE_S):
            while not (states := rollout.report()["guardrails"]) or states[0]["samples"][0] < 2:
                await count_answers(server, 20)
                await asyncio.sleep(0.05)
        assert states[0]["detail"].endswith("of 20 readings")


@pytest.mark.asyncio
async def test_readings_of_stable_are_remembered_once_it_gets_no_requests() -> None:
    """A rate of its requests is no number then."""
    asked: list[str] = []

    async def fetch(url: str) -> bytes:
        asked.append(parse_qs(urlsplit(url).query)["query"][0])
        return json.dumps(VECTOR).encode()

    guardrail = Guardrail(
        metric="prometheus", url="http://prometheus:9090", stable="of stable", candidate="of candidate"
    )
    values, both = PrometheusValues(list, fetch), arms()

    def begun(weight: float) -> Readings:
        return values.begin(TrafficPolicy("r", 2, weight=weight, guardrails=(guardrail,)), both)[0]

    readings = begun(50)
    for _ in range(MIN_READINGS):
        readings.add((0.25, 1.0), (0.25, 1.0))
    later = begun(100)
    async with asyncio.timeout(PATIENCE_S):
        while not later.candidate:
            await asyncio.sleep(0)
    assert asked == ["of candidate"]
    assert (later.remembered, len(later.stable), len(later.candidate)) == (True, MIN_READINGS, 1)
    assert not begun(50).stable, "it can be read anew"
    values.close()
