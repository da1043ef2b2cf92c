"""The process of a worker. It ends when the link to the core is closed, or the kernel signals that the core has ended."""

import asyncio
import contextlib
import logging
import marshal
import os
import pickle
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any, cast

import uvloop

from serving.child_program.__main__ import die_with
from serving.cli.tls import TlsFiles, server_context
from serving.frontends.grpc_server import GrpcServer
from serving.frontends.http1.listener import Listener
from serving.frontends.http_server import make_listener
from serving.frontends.shared.authorisation import Authoriser
from serving.resources import allocator, python_settings
from serving.server.inference_server import InferenceServer
from serving.telemetry.logs import LogSettings, LogValues, configure_logging
from serving.workers.link.setup import BEAT_S, MAX_COMMAND, Setup
from serving.workers.link.shared_area import AreaReader, AreaWriter
from serving.workers.link.shared_page import SharedPage, SharedRequestMemory
from serving.workers.program.core_client import CoreClient
from serving.workers.program.grpc_methods import find_method
from serving.workers.program.http_relay import HttpRelay
from serving.workers.program.http_routes import worker_routes

log = logging.getLogger(__name__)


def main() -> None:
    setup_descriptor, parent = map(int, sys.argv[1:3])
    die_with(parent)
    # Ignored, because the core ends its workers when they have finished their work.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(setup_descriptor, "rb") as file:
        setup: Setup = pickle.load(file)
    log_settings = LogSettings(setup.log_values)
    configure_logging(log_settings, setup.options.log_file, setup.options.log_console, setup.options.log_file_max_bytes)
    allocator.set_up()
    python_settings.set_up()
    uvloop.run(_Worker(setup, log_settings).run())


class _Worker:
    """The listeners of this process, and its connections to the core."""

    def __init__(self, setup: Setup, log_settings: LogSettings) -> None:
        self._setup = setup
        self._log_settings = log_settings
        self._control = socket.socket(fileno=setup.control)
        self._control.setblocking(False)
        self._page = SharedPage(setup.page, setup.workers)
        self._ended = asyncio.Event()
        self._http: Listener | None = None
        self._grpc: GrpcServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the core closes the link or has ended."""
        setup = self._setup
        loop = asyncio.get_running_loop()
        memory = SharedRequestMemory(setup.options.request_memory_limit, self._page, setup.number)
        areas = AreaWriter(setup.requests), AreaReader(setup.responses)
        core = CoreClient(setup.options, self._page, memory, areas, self._control, self._ended.set)
        await loop.create_unix_connection(lambda: core, sock=socket.socket(fileno=setup.link))
        await self._listen(cast(InferenceServer, core), HttpRelay(core))
        loop.add_reader(self._control, self._on_command, core)
        self._tell("ready", "")
        self._beat(core)
        await self._ended.wait()

    async def _listen(self, core: InferenceServer, relay: HttpRelay) -> None:
        options = self._setup.options
        if self._setup.http:
            authoriser = Authoriser.from_options(options, "http")
            self._http = make_listener(core, options, authoriser, routes=worker_routes(relay))
            tls = server_context(TlsFiles.of_http(options), "http/1.1")
            await self._http.start_on([socket.socket(fileno=one) for one in self._setup.http], tls)
        if self._setup.grpc:
            self._grpc = GrpcServer(core, options, Authoriser.from_options(options, "grpc"), find_method)
            await self._grpc.start_on([socket.socket(fileno=one) for one in self._setup.grpc])

    # -- the core's commands -----------------------------------------------------------------------------------------
    def _on_command(self, core: CoreClient) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_COMMAND, 1)
        except BlockingIOError:
            return
        if not data:
            self._ended.set()
            return
        command, value = marshal.loads(data)
        if command == "connection":
            if descriptors:  # the kernel passes no descriptor if this process has too many
                self._start(self._adopt(value, socket.socket(fileno=descriptors[0])))
        elif command == "drain":
            self._start(self._drain(value))
        elif command == "log":
            self._log_settings.replace(LogValues(*value))
        elif command == "headers":
            core.show_headers(value)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _adopt(self, protocol: str, connected: socket.socket) -> None:
        """Serve a connection that the core accepted for another worker."""
        frontend = self._http if protocol == "http" else self._grpc
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            assert frontend is not None
            await frontend.serve(connected)
        except OSError:  # the client has gone
            connected.close()

    async def _drain(self, protocol: str) -> None:
        frontend = self._http if protocol == "http" else self._grpc
        if frontend is not None:
            await frontend.drain()
        self._tell("drained", protocol)

    def _tell(self, what: str, value: str) -> None:
        with contextlib.suppress(OSError):  # the core has ended, and the link is closed, too
            self._control.send(marshal.dumps((what, value)))

    def _beat(self, core: CoreClient) -> None:
        self._page.beats[self._setup.number] += 1
        core.beat()
        asyncio.get_running_loop().call_later(BEAT_S, self._beat, core)
