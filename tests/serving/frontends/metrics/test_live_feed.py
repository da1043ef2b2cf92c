"""GET /v2/slipway/live: hello, then once a second the changed values, for all subscribers, at no cost without any."""

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from serving.frontends.metrics.live_feed import MAX_OF_ADDRESS
from serving.frontends.metrics_server import MetricsServer
from serving.frontends.shared.authorisation import Authoriser
from tests.serving.frontends.metrics.live_subscriber import PATH, Refused, Subscriber
from tests.serving.frontends.raw_http import RawClient, infer_body, tensor
from tests.serving.in_process import core
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until


@pytest.fixture
def subscriber(http_server: ServerProcess) -> Iterator[Subscriber]:
    with closing(Subscriber(http_server.metrics)) as one:
        yield one


def ask(raw: RawClient) -> None:
    assert raw.request("POST", "/v2/models/identity_int8/infer", infer_body(tensor([1], datatype="INT8"))).status == 200


def test_the_first_events_name_the_server_and_describe_every_model(subscriber: Subscriber) -> None:
    kind, hello = subscriber.next()
    assert kind == "hello"
    assert set(hello) == {"server_id", "instance", "started", "bounds_us"}
    assert hello["bounds_us"] == sorted(hello["bounds_us"])
    kind, stats = subscriber.next()
    assert kind == "stats"
    assert set(stats) == {"time", "server", "unserved", "traffic", "models"}
    assert {"rss_bytes", "cpu_seconds", "threads", "gpus", "repositories"} == set(stats["server"])
    assert stats["server"]["repositories"] == {"problems": {}, "held": []}
    names = {model["name"] for model in stats["models"]}
    assert {"add_sub", "slow", "identity_fp32"} <= names
    assert next(model for model in stats["models"] if model["name"] == "add_sub")["state"] == "READY"


def test_later_events_hold_only_changed_models_and_come_once_a_second(subscriber: Subscriber, raw: RawClient) -> None:
    subscriber.next()
    first = subscriber.next()[1]
    before = next(model for model in first["models"] if model["name"] == "identity_int8")
    subscriber.quiet()  # the last requests of the tests before this one are counted
    ask(raw)
    after = before  # while the request is under way, an event may tell that alone
    while after["success"]["count"] == before["success"]["count"]:
        [after] = subscriber.changes()
        assert after["name"] == "identity_int8"
    assert after["success"]["count"] == before["success"]["count"] + 1
    assert after["request_latency"]["total"] == before["request_latency"]["total"] + 1
    assert sum(after["request_latency"]["counts"].values()) == after["request_latency"]["total"]
    assert after["batches"]["1"] >= 1
    assert after["batch_times"]["1"] > before["batch_times"].get("1", 0)
    assert sum(after["arrival_gaps"]["counts"].values()) == after["arrival_gaps"]["total"]
    quiet = subscriber.quiet()
    for _ in range(2):  # one alone may come soon, because the one before it was late
        later = subscriber.next()[1]
        assert later["models"] == []
    assert later["time"] - quiet["time"] > 0.5, "no event for each change"


def test_each_subscriber_gets_the_values_changed_since_its_last_event(
    http_server: ServerProcess, subscriber: Subscriber
) -> None:
    subscriber.next()
    subscriber.next()
    with closing(Subscriber(http_server.metrics)) as late:
        assert late.next()[0] == "hello"
        assert len(late.next()[1]["models"]) > 5
        assert len(subscriber.next()[1]["models"]) < 5


def test_a_change_of_state_is_an_event(http_server: ServerProcess, subscriber: Subscriber) -> None:
    subscriber.next()
    subscriber.next()
    http_server.post("/v2/repository/models/identity_uint16/unload")

    def reported() -> bool:
        return any(
            (model["name"], model["state"]) == ("identity_uint16", "UNAVAILABLE")
            for model in subscriber.next()[1]["models"]
        )

    wait_until(reported, what="the state in the feed")
    assert http_server.post("/v2/repository/models/identity_uint16/load")[0] == 200


def test_subscribers_that_do_not_read_or_leave_disturb_nobody(http_server: ServerProcess, raw: RawClient) -> None:
    silent = [Subscriber(http_server.metrics) for _ in range(3)]
    for one in silent[:2]:
        one.close()
    ask(raw)
    with closing(Subscriber(http_server.metrics)) as reader:
        assert [reader.next()[0] for _ in range(3)] == ["hello", "stats", "stats"]
    silent[2].close()


def test_the_feed_answers_head_and_refuses_too_many_subscribers(http_server: ServerProcess) -> None:
    with RawClient(http_server.metrics) as client:
        assert client.request("HEAD", PATH).status == 200
        assert client.request("GET", "/nowhere").status == 404
    with ExitStack() as many:
        taken = 0
        while subscriber := taken_subscriber(http_server):
            many.enter_context(closing(subscriber))
            taken += 1
        assert 1 <= taken <= 64
    again = wait_until(lambda: taken_subscriber(http_server), what="room for a new subscriber")
    with closing(again):
        assert again.next()[0] == "hello"


def test_a_client_with_a_key_has_a_place_however_many_others_come(http_models: Any) -> None:
    flags = ("--model-control-mode=explicit", "--http-restricted-api=logging:admin-key=secret")
    with ServerProcess(http_models, *flags) as server, ExitStack() as many:
        taken = 0
        while subscriber := taken_subscriber(server):
            many.enter_context(closing(subscriber))
            taken += 1
        assert taken == MAX_OF_ADDRESS
        with pytest.raises(Refused):
            Subscriber(server.metrics, Admin_Key="wrong")
        with closing(Subscriber(server.metrics, Admin_Key="secret")) as known:
            assert known.next()[0] == "hello"


def taken_subscriber(server: ServerProcess) -> Subscriber | None:
    """A new one, or None where the server refuses it."""
    try:
        return Subscriber(server.metrics)
    except Refused:
        return None


def test_a_shutdown_ends_the_streams(http_models: Any) -> None:
    with (
        ServerProcess(http_models, "--model-control-mode=explicit") as server,
        closing(Subscriber(server.metrics)) as one,
    ):
        one.next()
        assert server.terminate() == 0
        while one.client.chunk():
            pass
        assert one.client.closed()


@pytest.mark.asyncio
async def test_an_event_that_cannot_be_made_does_not_end_the_feed(tmp_path: Path) -> None:
    async with core(tmp_path) as server:
        options = dataclasses.replace(server.options, http_address="127.0.0.1", metrics_port=0)
        listener = MetricsServer(server, options, Authoriser.from_options(options, "http"))
        await listener.start()
        asks = server.all_statistics
        server.all_statistics = Mock(side_effect=[RuntimeError("of a test"), RuntimeError("of a test"), asks()])
        reader, writer = await asyncio.open_connection(*listener.address)
        try:
            writer.write(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            async with asyncio.timeout(PATIENCE_S):
                await reader.readuntil(b"event: stats")
        finally:
            writer.close()
            await listener.close()
