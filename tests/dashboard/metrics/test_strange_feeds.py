"""A server whose live feed is not understood, being of another release say, is in trouble alone."""

import asyncio
import json
from contextlib import aclosing
from typing import Any, cast

from dashboard.metrics.feed import FeedReader, follow_feed
from dashboard.models import Server
from dashboard.models.rollout import TrafficReport
from dashboard.servers.client import AsyncServerClient
from dashboard.servers.messages import HelloEvent
from dashboard.shared.exceptions import DashboardError
from tests.support.serving_process import PATIENCE_S

HELLO: Any = {"server_id": "s", "instance": "i", "started": 1.0, "bounds_us": [1, 2]}
STRANGE = ({"time": 1.0}, {"time": "now", "server": {}, "models": []}, [], {"time": 1.0, "server": {}, "models": [1]})


def test_what_is_not_understood_is_an_error_and_the_feed_is_asked_again() -> None:
    answers = iter(STRANGE)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        events = [("hello", HELLO), ("stats", next(answers))]
        body = "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events)
        writer.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()
        await writer.wait_closed()

    async def errors() -> list[str]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as service:
            address = "http://{}:{}".format(*service.sockets[0].getsockname())
            found: list[str] = []
            async with (
                asyncio.timeout(PATIENCE_S),
                AsyncServerClient(Server(name="s", metrics_url=address)) as client,
                aclosing(follow_feed(client, FeedReader())) as feed,
            ):
                while len(found) < len(STRANGE):
                    error = await anext(feed)
                    assert isinstance(error, DashboardError)
                    found.append(error.message)
        return found

    assert all("is not understood" in message for message in asyncio.run(errors()))


def test_a_rollout_of_which_a_server_tells_otherwise_waits_and_the_others_go_on(caplog: Any) -> None:
    latency = {"total": 1, "sum_ns": 1, "counts": {"0": 1}}
    arm = {"version": "1", "remote": "", "requests": 1, "errors": 0, "latency": latency}
    word: Any = {"model": "a", "rollout": "r-a", "release": 1, "weight": 5, "asked_weight": 5, "breach": None}
    word |= {"arms": {"stable": arm, "candidate": arm}, "shadow": None, "guardrails": []}
    reader = FeedReader()
    reader.read(HelloEvent(HELLO))
    for strange in (
        word | {"weight": None},
        word | {"weight": True},
        word | {"arms": {"stable": {**arm, "latency": {}}}},
        {**word, "breach": 1},
    ):
        reader.keep_report(strange)
    assert reader.traffic == {}
    assert [record.getMessage() for record in caplog.records] == [
        "the server's report of rollout r-a is not understood, at .weight: the rollout waits"
    ]
    reader.keep_report(word)
    reader.keep_report(word | {"model": "b", "rollout": "r-b"})
    assert set(reader.traffic) == {"r-a", "r-b"}
    reader.keep_report(cast(TrafficReport, {"model": "a", "rollout": None}))
    reader.keep_report(word | {"model": "b", "rollout": "r-c"})
    assert set(reader.traffic) == {"r-c"}, "what is over is forgotten"
