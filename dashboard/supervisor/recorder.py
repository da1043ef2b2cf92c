"""Records events of the processes as rows that pages read. Writing never delays a restart."""

import asyncio
import logging
from dataclasses import asdict

from asgiref.sync import sync_to_async
from django.db import Error, close_old_connections

from dashboard.models import Server
from dashboard.servers.server_state import PROCESSES, server_info_record, server_process_record, server_restart_take
from dashboard.servers.services import server_event_record
from dashboard.shared.choices import ServerStatus
from dashboard.supervisor.supervisor import Status, Supervisor

logger = logging.getLogger(__name__)

REQUEST_INTERVAL_S = 0.3
SERVER = "server"  # the process that is the inference server

_STATES = {
    "starting": ServerStatus.STARTING,
    "running": ServerStatus.RUNNING,
    "down": ServerStatus.DOWN,
    "stopped": ServerStatus.STOPPED,
}

# The recorded events of the other processes. Their normal starts and stops are not recorded.
_TROUBLE = ("crashed", "restarted")

Change = tuple[Status, str, str]


def is_trouble(status: Status, kind: str) -> bool:
    """Return whether an event of a process is more than its normal start or stop."""
    return kind in _TROUBLE or (kind == "stopped" and status.state == "down")


class Recorder:
    """The supervisor calls `report`. The task `run` writes in the background, and `flush` writes the rest at the end.

    server: the bundled server, whose events these are; None if no machine runs one, and then nothing is recorded. own:
    whether this `up` runs it; the states of the processes of another machine are not written over its own.
    """

    def __init__(self, server: Server | None, own: bool = True) -> None:
        self._server, self._own = server, own
        self._changes: asyncio.Queue[Change] = asyncio.Queue()
        self._processes: dict[str, dict[str, object]] = {}

    def report(self, status: Status, kind: str, sentence: str) -> None:
        self._changes.put_nowait((status, kind, sentence))

    async def run(self) -> None:
        while True:
            change = await self._changes.get()
            await sync_to_async(self._write)(change)

    async def flush(self) -> None:
        while not self._changes.empty():
            await sync_to_async(self._write)(self._changes.get_nowait())

    def _write(self, change: Change) -> None:
        """Write one change. If the database does not answer, the change is only logged."""
        status, kind, sentence = change
        if (server := self._server) is None:
            return
        close_old_connections()
        try:
            if self._own:
                self._write_process(server, status)
            if status.name == SERVER:
                self._write_server(server, status, kind, sentence)
            elif is_trouble(status, kind):
                server_event_record(server=server, kind=kind, message=sentence, process=status.name)
        except Error as error:
            logger.error("not recorded: %s (%s)", sentence or status.state, error)

    def _write_process(self, server: Server, status: Status) -> None:
        values = asdict(status)
        values["started_at"] = status.started_at.isoformat() if status.started_at else None
        self._processes[status.name] = values
        server_info_record(server=server, key=PROCESSES, value=self._processes)

    def _write_server(self, server: Server, status: Status, kind: str, sentence: str) -> None:
        server_process_record(
            server=server,
            state=_STATES[status.state],
            pid=status.pid,
            started_at=status.started_at,
            restarts=status.restarts,
            reason=status.reason,
        )
        if kind:
            server_event_record(server=server, kind=kind, message=sentence)


async def follow_restart_requests(server: Server, supervisor: Supervisor) -> None:
    """Restart the inference server whenever somebody asks for a restart on its page. A repeated error is logged once."""
    said = ""
    while True:
        await asyncio.sleep(REQUEST_INTERVAL_S)
        try:
            requested = await sync_to_async(server_restart_take)(server=server)
        except Error as error:
            if str(error) != said:
                logger.error("could not look for restart requests (%s)", error)
            said = str(error)
            await sync_to_async(close_old_connections)()
            continue
        said = ""
        if requested:
            await supervisor.processes[SERVER].restart("somebody asked for it on its page")
