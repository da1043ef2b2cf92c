"""/ws/servers/<name>/log/[?process=NAME]: the last lines of a process's log, then each line as it is written."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from asgiref.sync import sync_to_async
from django.conf import settings

from dashboard.servers.selectors import server_get
from dashboard.shared.exceptions import NotFound
from dashboard.shared.log_files import Follower, tail
from dashboard.web.websockets import PushConsumer

POLL_S = 0.5
TAIL_LINES = 200
PROCESSES = ("server", "dashboard", "watch", "worker")


class LogConsumer(PushConsumer):
    async def prepare(self) -> Awaitable[None]:
        server = await sync_to_async(server_get)(self.scope["url_route"]["kwargs"]["name"])
        process = self.query("process") or "server"
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
