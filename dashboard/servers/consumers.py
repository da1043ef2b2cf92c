"""/ws/servers/<name>/log/[?process=NAME] and /ws/models/<name>/log/: the newest lines of a log, then each new line."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from asgiref.sync import sync_to_async
from django.conf import settings

from dashboard.models import Model
from dashboard.servers.selectors import server_get
from dashboard.servers.server_state import MACHINE
from dashboard.shared.exceptions import NotFound
from dashboard.shared.log_files import LogFollower, tail
from dashboard.shared.machine import machine_identity
from dashboard.shared.model_logs import model_log_path, model_log_tail, shorten_line
from dashboard.web.websockets import PushConsumer
from repository.core.log_line import as_text

POLL_S = 0.5
TAIL_LINES = 200
MODEL_LINES = 500
PROCESSES = ("server", "dashboard", "watch", "worker")


class _FollowingConsumer(PushConsumer):
    async def follow(self, path: Path, newest: Callable[[], list[str]], write: Callable[[str], str] = as_text) -> None:
        """Send the newest lines, then the lines that are appended to the file, each through `write`."""
        reader = LogFollower(path)
        lines = await asyncio.to_thread(newest)
        await self.send_json({"type": "log", "lines": lines, "reset": True})
        while True:
            await asyncio.sleep(POLL_S)
            if lines := await asyncio.to_thread(reader.read):
                await self.send_json({"type": "log", "lines": _parts(lines, write), "reset": False})


class LogConsumer(_FollowingConsumer):
    """The log of one of the processes that `up` runs."""

    async def prepare(self) -> Awaitable[None]:
        server = await sync_to_async(server_get)(self.scope["url_route"]["kwargs"]["name"])
        process = self.query("process") or "server"
        if not server.bundled:
            raise NotFound(f"this dashboard does not run server {server.name}, so its log is not here")
        if process not in PROCESSES:
            raise NotFound(f"expected one of these processes: {', '.join(PROCESSES)}")
        path = _log_here(process)
        ran_on = server.state.info.get(MACHINE) if process == "server" and hasattr(server, "state") else None
        if ran_on not in (None, machine_identity()):
            raise NotFound(f"server {server.name} runs on another machine, and its log is there")
        return self.follow(path, lambda: _parts(tail(path, TAIL_LINES), as_text))


def _parts(lines: list[str], write: Callable[[str], str]) -> list[str]:
    return [part for line in lines for part in write(line).split("\n")]


def _log_here(process: str) -> Path:
    """Return the log of a process. Raises NotFound if another machine runs the process, because the log is there."""
    path = Path(settings.LOG_DIR) / f"{process}.log"
    if settings.SHARED_DIR != settings.DATA_DIR and not path.exists():
        raise NotFound(f"the {process} runs on another machine, and its log is there")
    return path


class ModelLogConsumer(_FollowingConsumer):
    """The bundled server's log of one model, with the output of the model itself."""

    async def prepare(self) -> Awaitable[None]:
        name = self.scope["url_route"]["kwargs"]["name"]
        if not await Model.objects.filter(name=name).aexists():
            raise NotFound(f"there is no model named '{name}'")
        _log_here("server")
        return self.follow(model_log_path(name), lambda: model_log_tail(name, MODEL_LINES), shorten_line)
