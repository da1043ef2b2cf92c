"""Pushes changes of tables to open pages, so that parts of a page reload after a change instead of polling.

A page has the mark that the tables had before the page was read. Each part that the page fetches later names the tables that it
was read from. The WebSocket /ws/changes/ first sends the current mark, and then the names of tables that change. While nothing
changes, it sends heartbeats, because a connection stays open even if the dashboard hangs. Everybody who may see pages gets the
same messages. A browser then fetches the parts with the rights of its user.
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
    """Set `request.mark` for a whole page. For a part of a page, name the tables that it was read from in a header."""

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
    """The changes that one WebSocket has not sent yet: tables that changed since it last took them."""

    def __init__(self) -> None:
        self._mark = ""
        self._tables: set[str] = set()
        self._news = asyncio.Event()

    def add(self, mark: str, tables: set[str]) -> None:
        self._mark = mark
        self._tables |= tables
        self._news.set()

    async def take(self) -> tuple[str, list[str]]:
        """Wait until tables have changed; return the mark, and all tables that changed up to that mark."""
        await self._news.wait()
        self._news.clear()
        tables, self._tables = self._tables, set()
        return self._mark, sorted(tables)


class Changes:
    """Polls the marks twice a second for all WebSockets of this process, while there are subscriptions."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Yield a subscription to every change that happens until the block ends."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        if self._task is None:
            # The marks are read now: a change before the task's first step must not be missed.
            work = self._watch(changes.mark(), changes.marks(), heartbeat.silent())
            self._task = asyncio.create_task(work, name="changes of tables")
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions:
                self._task.cancel()
                self._task = None

    async def _watch(self, newest: str, known: dict[str, str], silent: list[str]) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            tables = set()
            if (now := changes.mark()) != newest:
                # The mark is read first: a change between the two reads is sent twice rather than never.
                newest, before, known = now, known, changes.marks()
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
