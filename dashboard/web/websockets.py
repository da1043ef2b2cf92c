"""The base of every WebSocket: it sends to people who are signed in, until they disconnect."""

import asyncio
import logging
from collections.abc import Awaitable
from urllib.parse import parse_qs, urlsplit

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from dashboard.access.authorisation import Right, actor_of_scope
from dashboard.access.sessions import actor_of_session
from dashboard.shared.exceptions import DashboardError

logger = logging.getLogger(__name__)

REVALIDATE_S = 60.0
# Close codes (RFC 6455, 7.4): an error of the dashboard, and two of the private range, after which a browser does not
# reconnect.
ERROR, FORBIDDEN, NOT_FOUND = 1011, 4403, 4404


class PushConsumer(AsyncJsonWebsocketConsumer):
    """Accepts a browser that has the right, then sends to it until it disconnects or loses the right."""

    right = Right.VIEW

    async def connect(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        if not self._same_origin() or not await sync_to_async(actor_of_scope(self.scope).may)(self.right):
            await self.close()  # closing before accepting answers with status 403
            return
        await self.accept()
        try:
            work = await self.prepare()
        except DashboardError as error:
            await self.send_json({"type": "error", "message": error.message})
            await self.close(NOT_FOUND)
            return
        self._tasks = [asyncio.create_task(self._run(work)), asyncio.create_task(self._run(self._revalidate()))]

    async def prepare(self) -> Awaitable[None]:
        """Return the work to run for as long as the browser is connected.

        Raises DashboardError if there is nothing at this address.
        """
        raise NotImplementedError

    async def disconnect(self, code: int) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, work: Awaitable[None]) -> None:
        """Run the work. If it fails, close with ERROR, so that the browser connects again."""
        try:
            await work
        except Exception:
            logger.exception("a WebSocket of %s failed", self.scope["path"])
            await self.close(ERROR)

    def _same_origin(self) -> bool:
        """Return whether the page's origin is this host and port; another port of the host is another origin."""
        headers = dict(self.scope["headers"])
        return urlsplit(headers.get(b"origin", b"").decode("latin-1")).netloc == headers.get(b"host", b"").decode(
            "latin-1"
        )

    async def _revalidate(self) -> None:
        """Close the WebSocket of a person who has signed out or lost the right."""
        while True:
            await asyncio.sleep(REVALIDATE_S)
            if not await sync_to_async(self._still_may)():
                await self.close(FORBIDDEN)

    def _still_may(self) -> bool:
        return actor_of_session(self.scope["session"].session_key).may(self.right)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: object) -> None:
        """Ignore messages of a browser."""

    def query(self, name: str) -> str:
        """Return a value of the address's query; "" if there is none."""
        return parse_qs(self.scope["query_string"].decode("latin-1")).get(name, [""])[0]
