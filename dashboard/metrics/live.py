"""Live charts: each web process has one subscription to a server's feed, which all WebSockets share.

The first subscriber starts the subscription and the last one stops it, because Daphne has no start-up hook. A slow subscriber
misses points and never delays the others.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypedDict

import orjson

from dashboard.metrics.feed import FeedReader, Tick, follow_feed
from dashboard.metrics.samples import ProcessGauges
from dashboard.metrics.usage import Figures, Usage, combine_side_by_side, figures, instance_key
from dashboard.models import Server
from dashboard.servers.client import AsyncServerClient

KEPT_MESSAGES = 3  # messages that a slow subscriber can fall behind; older ones are dropped


class PointBody(TypedDict, total=False):
    """The fields of a message of type "point", except type, server and time."""

    models: dict[str, Figures]
    process: ProcessGauges
    memory: dict[str, int]  # "<model>/<version>" -> bytes
    floors: list[str]  # the keys of `memory` whose bytes are a lower bound
    total: Figures  # only in a message about all models
    versions: dict[str, Figures]  # only in a message about one model, by version number, with feed.NO_VERSION
    instances: dict[str, Figures]  # only in a message about one model, by usage.instance_key
    states: dict[str, str]


class Message:
    """A message to WebSockets; its text is made once for all WebSockets of the same model."""

    def text(self, model: str = "") -> str:
        """Return the message as JSON: about all models, or about one model with its versions."""
        raise NotImplementedError


class Point(Message):
    """The figures of one tick."""

    def __init__(self, server: str, tick: Tick, states: dict[tuple[str, int], str]) -> None:
        self._tick = tick
        self._states = states
        self._head = {"type": "point", "server": server, "at": tick.time}
        self._versions: dict[str, dict[int, Usage]] = defaultdict(dict)
        for (name, version), usage in tick.models.items():
            self._versions[name][version] = usage
        self._texts: dict[str, str] = {}

    def text(self, model: str = "") -> str:
        if model not in self._texts:
            self._texts[model] = orjson.dumps({**self._head, **self._body(model)}).decode()
        return self._texts[model]

    def _body(self, model: str) -> PointBody:
        """Return the figures of one model, or of all models that have requests, finished or pending."""
        names = [model] if model else list(self._versions)
        body: PointBody = {
            "models": {name: self._figures(list(self._versions[name].values())) for name in names},
            "process": self._tick.process,
        }
        if model:
            body["versions"] = {str(one): self._figures([usage]) for one, usage in self._versions[model].items()}
            body["instances"] = {
                instance_key(version, label): self._figures([usage])
                for (name, version), usages in self._tick.instances.items()
                if name == model
                for label, usage in usages.items()
            }
            body["states"] = {str(version): state for (name, version), state in self._states.items() if name == model}
        else:
            body["total"] = self._figures(list(self._tick.models.values()))
        held = {key: size for key, size in self._tick.memory.items() if model in ("", key[0])}
        body["memory"] = {f"{name}/{version}": size for (name, version), size in held.items()}
        body["floors"] = [f"{name}/{version}" for name, version in self._tick.floors if (name, version) in held]
        return body

    def _figures(self, usages: list[Usage]) -> Figures:
        return figures(combine_side_by_side(usages), self._tick.seconds)


class Lost(Message):
    """Says that the feed is interrupted. Points follow when the connection is restored."""

    def __init__(self, server: str, reason: str) -> None:
        body = {"type": "lost", "server": server, "message": f"{reason[:1].upper()}{reason[1:]}."}
        self._json = orjson.dumps(body).decode()

    def text(self, model: str = "") -> str:
        return self._json


class LiveFeed:
    """This process's one subscription to the feed of a server, and the queues of its subscribers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.name = server.name
        self._queues: set[asyncio.Queue[Message]] = set()
        self._task: asyncio.Task[None] | None = None
        self._newest: Message | None = None
        self._heard_at = time.monotonic()  # the last second of metrics; at first the start

    @property
    def idle(self) -> bool:
        return not self._queues

    @property
    def age_s(self) -> float:
        """Seconds since the server's last second of metrics, or since the start."""
        return time.monotonic() - self._heard_at

    def join(self) -> "asyncio.Queue[Message]":
        """Return a queue that holds the newest message, and gets every later one."""
        queue: asyncio.Queue[Message] = asyncio.Queue(KEPT_MESSAGES)
        self._queues.add(queue)
        if self._newest is not None:
            queue.put_nowait(self._newest)
        if self._task is None or self._task.done():  # done: the reading failed
            self._task = asyncio.create_task(self._read(), name=f"live feed of {self._server.name}")
        return queue

    async def leave(self, queue: "asyncio.Queue[Message]") -> None:
        self._queues.discard(queue)
        if self._queues or self._task is None:
            return
        task, self._task, self._newest = self._task, None, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _read(self) -> None:
        reader = FeedReader()
        async with AsyncServerClient(self._server) as client, aclosing(follow_feed(client, reader)) as news:
            async for tick in news:
                if isinstance(tick, Tick):
                    self._heard_at = time.monotonic()
                    self._hand_out(Point(self._server.name, tick, dict(reader.states)))
                elif not isinstance(self._newest, Lost):
                    self._hand_out(Lost(self._server.name, tick.message))

    def _hand_out(self, message: Message) -> None:
        self._newest = message
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(message)


class LiveFeeds:
    """The feeds that this process reads: one for each server with subscribers."""

    def __init__(self) -> None:
        self._feeds: dict[int, LiveFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def ages(self) -> dict[str, float]:
        """Return the age of each feed in seconds, by the server's name."""
        return {feed.name: feed.age_s for feed in list(self._feeds.values())}

    @asynccontextmanager
    async def subscribe(self, server: Server) -> AsyncIterator["asyncio.Queue[Message]"]:
        """Yield a queue that receives the messages of a server's feed until the block ends."""
        assert server.pk is not None
        feed = self._feeds.setdefault(server.pk, LiveFeed(server))
        queue = feed.join()
        try:
            yield queue
        finally:
            await feed.leave(queue)
            if feed.idle:
                self._feeds.pop(server.pk, None)


FEEDS = LiveFeeds()  # those of this web process
