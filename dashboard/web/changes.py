"""What tells open pages that something changed, so that their parts ask again then and not all the time.

A page carries the mark of all tables from before it was read; each part that is fetched later names the tables it was made
from. /ws/changes/ sends first the present mark, then which tables change, and signs of life while none does: a connection
stays open though the dashboard hangs. What it tells is the same for everybody who may see pages: the parts themselves are
fetched by each person's own browser, with their own rights.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from django.http import HttpRequest, HttpResponse

from dashboard.shared import changes, heartbeat
from dashboard.web.websockets import PushConsumer

LOOK_S = 0.5
ALIVE_S = 1.0
READS_HEADER = "Slipway-Reads"

Handler = Callable[[HttpRequest], HttpResponse]


def mark_pages(get_response: Handler) -> Handler:
    """Give templates `request.mark` of a page, and name in the answer the tables that a part of one was made from."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if "HX-Request" not in request.headers:
            request.mark = changes.mark()  # type: ignore[attr-defined]  # before anything is read
            return get_response(request)
        with changes.tables_read() as tables:
            response = get_response(request)
        response[READS_HEADER] = " ".join(sorted(tables))
        return response

    return middleware


class Subscription:
    """The changes that one WebSocket has not been sent yet: tables that changed since it last took them."""

    def __init__(self) -> None:
        self._mark = ""
        self._tables: set[str] = set()
        self._news = asyncio.Event()

    def add(self, mark: str, tables: set[str]) -> None:
        self._mark = mark
        self._tables |= tables
        self._news.set()

    async def take(self) -> tuple[str, list[str]]:
        """Wait until tables have changed; return them, and the mark up to which they are all."""
        await self._news.wait()
        self._news.clear()
        tables, self._tables = self._tables, set()
        return self._mark, sorted(tables)


class Changes:
    """This process's look at the marks, twice a second while anybody subscribes, shared by all WebSockets."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Yield a subscription to every change from now on, which ends with the block."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        if self._task is None:
            self._task = asyncio.create_task(self._look(), name="changes of tables")
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions:
                self._task.cancel()
                self._task = None

    async def _look(self) -> None:
        newest, known, silent = changes.mark(), changes.marks(), heartbeat.silent()
        while True:
            await asyncio.sleep(LOOK_S)
            tables = set()
            if (now := changes.mark()) != newest:
                newest, before, known = now, known, changes.marks()  # the mark first: what comes between is told twice
                tables = {table for table, mark in known.items() if before.get(table) != mark}
            if (sentences := heartbeat.silent()) != silent:
                silent = sentences
                tables.add(changes.HEARTBEATS)
            for subscription in self._subscriptions if tables else ():
                subscription.add(newest, tables)


class ChangesConsumer(PushConsumer):
    def __init__(self, changes: Changes) -> None:
        super().__init__()
        self._changes = changes

    async def prepare(self) -> Awaitable[None]:
        return self._push()

    async def _push(self) -> None:
        with self._changes.subscribe() as subscription:
            await self.send_json({"type": "mark", "mark": changes.mark()})
            while True:
                try:
                    async with asyncio.timeout(ALIVE_S):
                        mark, tables = await subscription.take()
                except TimeoutError:
                    await self.send_json({"type": "alive"})
                else:
                    await self.send_json({"type": "changed", "mark": mark, "tables": tables})
