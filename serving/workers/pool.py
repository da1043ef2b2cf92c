"""`--frontend-workers`: all workers of a server, and their listening sockets.

A worker that ends is restarted with a backoff, which grows if its runs are short. While a worker is down, or gives no
heartbeat, the core accepts the connections of its listening sockets, and passes them to workers that answer.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time

from serving.cli.options import Options
from serving.cli.tls import TlsFiles, server_context
from serving.core.errors import unavailable
from serving.server.inference_server import InferenceServer
from serving.telemetry.logs import LogValues
from serving.workers.internal_connections import InternalConnections
from serving.workers.link.setup import BEAT_S
from serving.workers.link.shared_page import SharedPage, SharedRequestMemory
from serving.workers.listening import listen
from serving.workers.worker_process import WorkerProcess

log = logging.getLogger(__name__)

_FIRST_DELAY_S, _LAST_DELAY_S = 0.2, 30.0  # shortest and longest delay before a worker is restarted
_LONG_RUN_S = 20.0  # a run of this length resets the delay
_FAILED_STARTS = 3  # failed starts of a worker after which the server itself fails to start


class FrontendWorkers:
    """All workers. Create it before the server's frontends, because it replaces the server's request memory by a shared one."""

    def __init__(self, server: InferenceServer, options: Options) -> None:
        self._server = server
        self._options = options
        self._page, self._page_descriptor = SharedPage.create(options.frontend_workers)
        server.request_memory = SharedRequestMemory(options.request_memory_limit, self._page, 0)
        self._internal = InternalConnections(server, options)
        self._sockets: list[dict[str, list[socket.socket]]] = [{} for _ in range(options.frontend_workers)]
        self._processes: list[WorkerProcess | None] = [None] * options.frontend_workers
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._accepting_for: set[int] = set()  # indexes of the workers that do not answer
        self._turns = itertools.count()

    def frontend(self, protocol: str) -> "WorkersFrontend":
        """Return the frontend of a protocol ("http", "grpc") that represents all workers."""
        return WorkersFrontend(self, protocol)

    # -- life --------------------------------------------------------------------------------------------------------
    def listen(self, protocol: str) -> tuple[str, int]:
        """Bind the sockets of a protocol. Return the address. Raises OSError, or INVALID_ARG for invalid TLS files."""
        options = self._options
        address, port, shared, tls = {
            "http": (options.http_address, options.http_port, options.reuse_http_port, TlsFiles.of_http(options)),
            "grpc": (options.grpc_address, options.grpc_port, options.reuse_grpc_port, TlsFiles.of_grpc(options)),
        }[protocol]
        server_context(tls, protocol)  # invalid TLS files are refused here, once, not by each worker
        found = listen(address, port, options.frontend_workers, shared)
        for mine, sockets in zip(self._sockets, found, strict=True):
            mine[protocol] = sockets
        host, bound = found[0][0].getsockname()[:2]
        return host, bound

    async def start(self) -> None:
        """Start the workers and wait until all of them listen. Raises UNAVAILABLE if a worker cannot be started."""
        loop = asyncio.get_running_loop()
        self._show_tracing()
        self._server.trace_settings.subscribe(self._show_tracing)
        self._server.log_settings.subscribe(self._tell_log_values)
        self._server.rollouts.on_headers(self._tell_headers)
        await self._internal.start()
        ready = []
        for index in range(len(self._processes)):
            ready.append(loop.create_future())
            self._tasks.append(loop.create_task(self._keep(index, ready[-1])))
        self._tasks.append(loop.create_task(self._watch()))
        await asyncio.gather(*ready)

    async def drain(self, protocol: str) -> None:
        """Stop listening. Wait until the requests of a protocol are answered and its connections are closed."""
        self._stopping = True
        self._accept_for_none()  # called first, because the loop must not watch closed descriptors
        for sockets in self._sockets:
            for one in sockets.pop(protocol, ()):
                one.close()
        drains = [process.drain(protocol) for process in self._processes if process is not None]
        await asyncio.gather(self._internal.drain(protocol), *drains)

    async def close(self) -> None:
        self._stopping = True  # set first, or `_keep` would start the workers again
        self._accept_for_none()
        for sockets in self._sockets:
            for one in itertools.chain.from_iterable(sockets.values()):
                one.close()
            sockets.clear()
        await asyncio.gather(*(process.close() for process in self._processes if process is not None))
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._internal.close()  # closed last: a worker passes connections on until it ends
        if self._page_descriptor >= 0:
            os.close(self._page_descriptor)
            self._page_descriptor = -1

    async def _keep(self, index: int, ready: "asyncio.Future[None]") -> None:
        """Keep a worker running. ready: gets its result when the worker first listens, or when it cannot be started."""
        delay_s = _FIRST_DELAY_S
        failed = 0
        while True:
            began = time.monotonic()
            reason = await self._run(index, ready)
            self._page.forget(index + 1)
            if self._stopping:
                return
            failed += 1
            if failed == _FAILED_STARTS and not ready.done():
                ready.set_exception(
                    unavailable(f"failed to start the frontend workers: one {reason}; the log says why")
                )
                return
            delay_s = _FIRST_DELAY_S if time.monotonic() - began >= _LONG_RUN_S else min(2 * delay_s, _LAST_DELAY_S)
            log.error("frontend worker %d %s; it is restarted in %g s", index + 1, reason, delay_s)
            await asyncio.sleep(delay_s)

    async def _run(self, index: int, ready: "asyncio.Future[None]") -> str:
        """Run a worker until it ends. Return how it ended."""
        process = WorkerProcess(index + 1, self._server, self._page, self._internal)
        try:
            await process.start(self._options, self._page_descriptor, self._sockets[index])
        except OSError as error:
            return f"cannot be started ({error.strerror})"
        self._processes[index] = process
        process.ready.add_done_callback(lambda _: None if ready.done() else ready.set_result(None))
        try:
            return await process.wait_until_ended()
        finally:
            self._processes[index] = None

    # -- all of them ---------------------------------------------------------------------------------------------------
    async def _watch(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            self._show_tracing()
            for process in self._processes:
                if process is not None:
                    # The elapsed time is limited, because the core itself may have been stopped for a while.
                    process.beat(min(now - last, 2 * BEAT_S), self._options.process_heartbeat_timeout_secs)
            self._accept_for_absent()
            last = now

    # -- accepting for workers that do not answer ----------------------------------------------------------------------
    def _responsive(self) -> list[WorkerProcess]:
        return [process for process in self._processes if process is not None and process.answers]

    def _accept_for_absent(self) -> None:
        """Accept connections for the workers that do not answer, if another worker answers."""
        if self._stopping:
            return
        loop = asyncio.get_running_loop()
        able = bool(self._responsive())
        for index, process in enumerate(self._processes):
            absent = able and (process is None or not process.answers)
            if absent == (index in self._accepting_for):
                continue
            (self._accepting_for.add if absent else self._accepting_for.discard)(index)
            for protocol, sockets in self._sockets[index].items():
                for one in sockets:
                    if absent:
                        loop.add_reader(one, self._accept, index, protocol, one)
                    else:
                        loop.remove_reader(one)

    def _accept_for_none(self) -> None:
        for index in self._accepting_for:
            for one in itertools.chain.from_iterable(self._sockets[index].values()):
                asyncio.get_running_loop().remove_reader(one)
        self._accepting_for.clear()

    def _accept(self, index: int, protocol: str, listening: socket.socket) -> None:
        """Accept the next connection, and pass it to the worker whose turn it is."""
        able = self._responsive()
        try:
            if not able:
                raise OSError
            connected, _ = listening.accept()
        except BlockingIOError:
            return  # a worker has accepted it
        except OSError:  # no worker answers, or no descriptor is free: `_watch` begins to accept again
            self._accept_for_none()
            return
        with connected:
            first = next(self._turns) % len(able)
            for process in able[first:] + able[:first]:
                with contextlib.suppress(OSError):  # the worker may have just been stopped, and read no commands
                    process.hand_over(protocol, connected)
                    return

    def _show_tracing(self) -> None:
        self._page.tracing = self._server.tracing

    def _tell_headers(self) -> None:
        for process in self._processes:
            if process is not None:
                process.tell_headers()

    def _tell_log_values(self, values: LogValues) -> None:
        for process in self._processes:
            if process is not None:
                process.send("log", [getattr(values, name) for name in LogValues.__slots__])


class WorkersFrontend:
    """A frontend.Frontend for the listeners of one protocol in all workers."""

    def __init__(self, workers: FrontendWorkers, protocol: str) -> None:
        self._workers = workers
        self._protocol = protocol
        self.address = ("", 0)

    async def start(self) -> None:
        """Bind the sockets. Connections wait until the workers run."""
        self.address = self._workers.listen(self._protocol)

    async def drain(self) -> None:
        await self._workers.drain(self._protocol)

    async def close(self) -> None:
        await self._workers.close()
