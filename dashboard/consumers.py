"""WebSockets: live points, a job's progress, a log that follows. Every one is for people who are signed in.

/ws/live/[?model=NAME][&server=NAME]   one message a second (dashboard/metrics/live.py)
/ws/jobs/<id>/                         the job whenever it changes, until it has ended
/ws/servers/<name>/log/[?process=NAME] the last lines of a process's log, then those that come
"""

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings

from dashboard.access.activity import job_get
from dashboard.access.authorisation import Right, actor_of_scope
from dashboard.accounts.authentication import actor_of_session
from dashboard.metrics import live
from dashboard.models import Job, Server
from dashboard.servers.selectors import server_get, servers
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import DashboardError, NotFound
from dashboard.shared.log_files import Follower, tail

logger = logging.getLogger(__name__)

POLL_S = 0.5
TAIL_LINES = 200
PROCESSES = ("server", "dashboard", "watch", "worker")

REVALIDATE_S = 60.0

# Closing codes (RFC 6455, 7.4): an error of ours, and, of our own range, what the browser need not try again.
ERROR, FORBIDDEN, NOT_FOUND = 1011, 4403, 4404


class Pushing(AsyncJsonWebsocketConsumer):
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


class LiveConsumer(Pushing):
    async def prepare(self) -> Coroutine[Any, Any, None]:
        name = self.asked("server")
        chosen = [await sync_to_async(server_get)(name)] if name else await sync_to_async(list)(servers())
        return self._push(chosen, self.asked("model"))

    async def _push(self, chosen: list[Server], model: str) -> None:
        async with asyncio.TaskGroup() as group:
            for server in chosen:
                group.create_task(self._pass_on(server, model))

    async def _pass_on(self, server: Server, model: str) -> None:
        async with live.subscribe(server) as messages:
            while True:
                message = await messages.get()
                await self.send(message.text(model))


class JobConsumer(Pushing):
    async def prepare(self) -> Coroutine[Any, Any, None]:
        pk = int(self.scope["url_route"]["kwargs"]["pk"])
        return self._push(await sync_to_async(job_get)(pk))

    async def _push(self, job: Job) -> None:
        """The log goes out in pieces: `log` is what came since the last message."""
        sent, told = 0, None
        while True:
            values = (job.state, job.progress, job.step, job.error, job.cancel_requested, len(job.log))
            if values != told:
                await self.send_json({"type": "job", **_describe(job), "log": job.log[sent:]})
                sent, told = len(job.log), values
            if job.state not in (JobState.QUEUED, JobState.RUNNING):
                await self.close()
                return
            await asyncio.sleep(POLL_S)
            job = await sync_to_async(job_get)(job.pk)


def _describe(job: Job) -> dict[str, Any]:
    return {
        "id": job.pk,
        "state": job.state,
        "progress": job.progress,
        "step": job.step,
        "error": job.error,
        "result": job.result,
        "cancel_requested": job.cancel_requested,
    }


class LogConsumer(Pushing):
    async def prepare(self) -> Coroutine[Any, Any, None]:
        server = await sync_to_async(server_get)(self.scope["url_route"]["kwargs"]["name"])
        process = self.asked("process") or "server"
        if not server.bundled:
            raise NotFound(f"server {server.name} is not run by this dashboard, so its log is not here")
        if process not in PROCESSES:
            raise NotFound(f"expected a process of {', '.join(PROCESSES)}")
        return self._push(Path(settings.LOG_DIR) / f"{process}.log")

    async def _push(self, path: Path) -> None:
        follower = Follower(path)
        lines = await asyncio.to_thread(tail, path, TAIL_LINES)
        await self.send_json({"type": "log", "lines": lines, "reset": True})
        while True:
            await asyncio.sleep(POLL_S)
            if lines := await asyncio.to_thread(follower.read):
                await self.send_json({"type": "log", "lines": lines, "reset": False})
