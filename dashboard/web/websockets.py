"""What every WebSocket does: it is for people who are signed in, and pushes to them until they go."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any
from urllib.parse import parse_qs, urlsplit

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from dashboard.access.authorisation import Right, actor_of_scope
from dashboard.access.sessions import actor_of_session
from dashboard.shared.exceptions import DashboardError

logger = logging.getLogger(__name__)

REVALIDATE_S = 60.0
# Closing codes (RFC 6455, 7.4): an error of ours, and, of our own range, what the browser need not try again.
ERROR, FORBIDDEN, NOT_FOUND = 1011, 4403, 4404


class PushConsumer(AsyncJsonWebsocketConsumer):
    """Accepts those who may, then runs `push` until the browser goes, or may no longer."""

    right = Right.VIEW

    async def connect(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        if not self._same_origin() or not await sync_to_async(actor_of_scope(self.scope).may)(self.right):
            await self.close()  # before it is accepted: status 403
            return
        await self.accept()
        try:
            work = await self.prepare()
        except DashboardError as error:
            await self.send_json({"type": "error", "message": error.message})
            await self.close(NOT_FOUND)
            return
        self._tasks = [asyncio.create_task(self._run(work)), asyncio.create_task(self._run(self._revalidate()))]

    async def prepare(self) -> Coroutine[Any, Any, None]:
        """What to do for as long as the browser listens; DashboardError where there is nothing of that name."""
        raise NotImplementedError

    async def disconnect(self, code: int) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """A browser whose stream ends for an error of ours is told, so that it connects again."""
        try:
            await work
        except Exception:
            logger.exception("a WebSocket of %s failed", self.scope["path"])
            await self.close(ERROR)

    def _same_origin(self) -> bool:
        """The page was served by this very host and port: a page elsewhere on the host has no business here."""
        headers = dict(self.scope["headers"])
        return urlsplit(headers.get(b"origin", b"").decode("latin-1")).netloc == headers.get(b"host", b"").decode(
            "latin-1"
        )

    async def _revalidate(self) -> None:
        """Who signed out, or lost the right, is shown no more."""
        while True:
            await asyncio.sleep(REVALIDATE_S)
            if not await sync_to_async(self._still_may)():
                await self.close(FORBIDDEN)

    def _still_may(self) -> bool:
        return actor_of_session(self.scope["session"].session_key).may(self.right)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:
        """Browsers have nothing to say here."""

    def asked(self, name: str) -> str:
        """A value of the address's query."""
        return parse_qs(self.scope["query_string"].decode("latin-1")).get(name, [""])[0]
