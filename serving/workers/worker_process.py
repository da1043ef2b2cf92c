"""Starts, watches and ends the process of one worker."""

import asyncio
import contextlib
import logging
import marshal
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.backends.channel.channel import close_all
from serving.cli.options import Options
from serving.resources.process_activity import NONE, not_waiting_s, read_activity
from serving.server.inference_server import InferenceServer
from serving.workers.internal_connections import InternalConnections
from serving.workers.link.setup import MAX_COMMAND, Setup
from serving.workers.link.shared_area import AreaReader, AreaWriter, create_area
from serving.workers.link.shared_page import SharedPage
from serving.workers.worker_link import WorkerLink

log = logging.getLogger(__name__)

_ROOT = str(Path(__file__).resolve().parents[2])
_SILENT_S = 1.0  # the core accepts connections for a worker without a heartbeat for this time
_HUNG_S = 10.0  # a worker that hangs for this time, or a shorter --process-heartbeat-timeout-secs, is killed
_END_S = 2.0  # how long a worker may take to end after the core has closed its link
_START_S = 60.0  # the shortest time limit for a worker's first heartbeat

Sockets = Mapping[str, Sequence[socket.socket]]  # "http", "grpc" -> listening sockets


class WorkerProcess:
    """One worker. Used on the main thread, because the kernel kills the process when the thread that started it ends."""

    def __init__(self, number: int, server: InferenceServer, page: SharedPage, internal: InternalConnections) -> None:
        self._number = number
        self._server = server
        self._page = page
        self._internal = internal
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._control: socket.socket | None = None
        self._link: WorkerLink | None = None
        self._reason = ""  # why the process had to be killed
        self._beats = page.beats[number]
        self._silent_s = 0.0  # since the last heartbeat
        self._hung_s = 0.0  # the same without the time that the worker waited for a CPU
        self._activity = NONE  # at the last call of `beat` without a heartbeat
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained: dict[str, asyncio.Future[None]] = {}
        self._over: asyncio.Future[None] = self._loop.create_future()
        self.ready: asyncio.Future[None] = self._loop.create_future()

    async def start(self, options: Options, page_descriptor: int, sockets: Sockets) -> None:
        """Start the process. Raises OSError if that fails."""
        mine, theirs = socket.socketpair()
        self._control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        size = self._server.request_memory.limit
        areas = create_area(size), create_area(size)
        try:
            self._link = WorkerLink(self._server, AreaReader(areas[0]), AreaWriter(areas[1]), self._on_link_closed)
            setup = Setup(
                options=options,
                log_values=self._server.log_settings.current,
                number=self._number,
                workers=options.frontend_workers,
                page=page_descriptor,
                link=theirs.fileno(),
                control=their_control.fileno(),
                requests=areas[0],
                responses=areas[1],
                http=tuple(one.fileno() for one in sockets.get("http", ())),
                grpc=tuple(one.fileno() for one in sockets.get("grpc", ())),
            )
            self._process = _spawn(setup)
        finally:
            theirs.close()
            their_control.close()
            close_all(areas)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._on_ended)
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._on_control)
        mine.setblocking(False)
        link = self._link
        await self._loop.create_unix_connection(lambda: link, sock=mine)
        self.tell_headers()

    async def wait_until_ended(self) -> str:
        """Wait until the process has ended and its resources are freed. Return how it ended."""
        await self._over
        assert self._process is not None
        status = self._process.wait()
        return self._reason or (f"ended with exit status {status}" if status >= 0 else f"was ended by signal {-status}")

    def kill(self, reason: str) -> None:
        if self._pidfd >= 0:
            self._reason = self._reason or reason
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    @property
    def answers(self) -> bool:
        """Whether the worker listens, and gave a heartbeat within the last _SILENT_S."""
        return self._control is not None and self.ready.done() and self._silent_s <= _SILENT_S

    # -- commands to the worker ----------------------------------------------------------------------------------------
    def send(self, command: str, value: Any) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):  # the process has gone, or is stopped
                self._control.send(marshal.dumps((command, value)))

    def hand_over(self, protocol: str, connected: socket.socket) -> None:
        """Let this worker serve a connection that was accepted for another worker. Raises OSError if it cannot take it."""
        assert self._control is not None
        socket.send_fds(self._control, [marshal.dumps(("connection", protocol))], [connected.fileno()])

    def tell_headers(self) -> None:
        """Send the worker the names of the headers that rollouts read. It forwards only these and the headers of traces."""
        self.send("headers", sorted(self._server.rollouts.headers))

    async def drain(self, protocol: str) -> None:
        """Drain the worker's connections of a protocol. Wait until they are closed, or the worker has ended."""
        drained = self._drained[protocol] = self._loop.create_future()
        self.send("drain", protocol)
        await asyncio.wait((drained, self._over), return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Close the link, so that the worker ends. Kill the worker if that takes too long."""
        if self._link is not None and self._link.transport is not None:
            self._link.transport.close()
        _, pending = await asyncio.wait((self._over,), timeout=_END_S)
        if pending:
            self.kill("did not end")
            await self._over

    def beat(self, elapsed_s: float, timeout_s: float) -> None:
        """Kill the worker if it hangs. Called every BEAT_S. elapsed_s: since the previous call. timeout_s: a longer silence is
        a hang, unless the worker waits for a CPU."""
        beats = self._page.beats[self._number]
        if beats != self._beats:
            self._beats, self._silent_s, self._hung_s = beats, 0.0, 0.0
        else:
            self._add_silence(elapsed_s)
        limit_s = min(timeout_s, _HUNG_S) if self.ready.done() else max(timeout_s, _START_S)
        if self._hung_s > limit_s:
            self.kill(f"gave no sign of life for {limit_s:g} s and was killed")
        elif self._link is not None:
            self._link.beat()

    def _add_silence(self, elapsed_s: float) -> None:
        assert self._process is not None
        before, self._activity = self._activity, read_activity(self._process.pid)
        self._silent_s += elapsed_s
        self._hung_s += not_waiting_s(before, self._activity, elapsed_s)

    # -- messages from the worker --------------------------------------------------------------------------------------
    def _on_control(self) -> None:
        assert self._control is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_COMMAND, 1)
        except OSError:
            return
        if not data:
            self._loop.remove_reader(self._control)
            return
        what, value = marshal.loads(data)
        if descriptors:
            task = self._loop.create_task(self._accept(what, socket.socket(fileno=descriptors[0]), value))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif what == "ready":
            self.ready.set_result(None)
        elif what == "drained" and not self._drained[value].done():
            self._drained[value].set_result(None)

    async def _accept(self, kind: str, connected: socket.socket, peer: "tuple[str, int] | None") -> None:
        try:
            await self._internal.accept(kind, connected, peer)
        except OSError as error:
            connected.close()
            log.warning("a connection of frontend worker %d was not taken: %s", self._number, error.strerror)

    # -- its end -------------------------------------------------------------------------------------------------------
    def _on_link_closed(self) -> None:
        """Kill the worker after _END_S, because it cannot work without its link. Usually it ends before."""
        self._loop.call_later(_END_S, self.kill, "closed its link")

    def _on_ended(self) -> None:
        assert self._control is not None
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._loop.remove_reader(self._control)
        self._control.close()
        self._control = None
        link, self._link = self._link, None  # the last view of its shared memory frees the memory
        if link is not None and link.transport is not None:
            link.transport.abort()
        self._over.set_result(None)


def _spawn(setup: Setup) -> "subprocess.Popen[bytes]":
    descriptor = os.memfd_create("slipway-worker-setup", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "w+b") as file:
        pickle.dump(setup, file)
        file.flush()
        file.seek(0)
        handed = (setup.page, setup.link, setup.control, setup.requests, setup.responses, *setup.http, *setup.grpc)
        # The worker has its own process group: a Ctrl-C for the server must not interrupt the last requests.
        return subprocess.Popen(
            [
                sys.executable,
                "-P",  # imports nothing from the current directory
                "-m",
                "serving.workers.program",
                str(descriptor),
                str(os.getpid()),
                f"frontend-worker-{setup.number}",
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(descriptor, *handed),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))},
            process_group=0,
        )
