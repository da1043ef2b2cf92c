"""The inference server as a program: `python -m serving`."""

import asyncio
import dataclasses
import errno
import faulthandler
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from repository.core import shutdown
from serving.backends.environments.child_variables import set_model_environment
from serving.cli.command_line import parse
from serving.cli.options import Options
from serving.compiled.loading import Compiled
from serving.core.errors import ServingError, unavailable
from serving.frontends.frontend import Listening
from serving.frontends.shared.authorisation import Authoriser
from serving.plugins.plugin import imported
from serving.resources import allocator, python_settings
from serving.resources.private_folder import PrivateFolder
from serving.server.inference_server import InferenceServer
from serving.server.model_source import ModelSource
from serving.telemetry.logs import LogSettings, configure_logging
from serving.workers.pool import FrontendWorkers

log = logging.getLogger("serving")

FREEING_S = 2.0  # the part of --exit-timeout-secs that is reserved for freeing models


def main() -> None:
    options, warnings = parse(sys.argv[1:])
    log_settings = LogSettings.from_options(options)
    try:
        configure_logging(log_settings, options.log_file, options.log_console, options.log_file_max_bytes)
    except OSError as error:
        sys.exit(f"--log-file: cannot write the log: {error.strerror}")
    log.info("the modules of a request's path run %s", Compiled.sentence)
    for warning in warnings:
        log.warning("%s", warning)
    # If native code crashes, the printed stacks name the model and its file: see serving.execution.crash_trace.
    faulthandler.enable()
    allocator.set_up()
    hidden = options.source.hidden_variables if options.source is not None else ""
    set_model_environment(options.model_environment, hidden)
    python_settings.set_up()
    if options.source is None or not options.source.refusal:
        sys.exit(uvloop.run(_serve(options, log_settings)))
    folder = PrivateFolder(None, "slipway-registered-")
    try:
        sys.exit(uvloop.run(_serve(_registered(options, folder.path), log_settings)))
    finally:
        folder.close()


def _registered(options: Options, folder: Path) -> Options:
    """Return the options of a server that serves only the models of its source."""
    repository = folder / "models"
    repository.mkdir()
    # The source handles the models that fail to load at start.
    return dataclasses.replace(
        options, model_repository=(repository,), model_control_mode="explicit", load_model=(), exit_on_error=False
    )


async def _serve(options: Options, log_settings: LogSettings) -> int:
    """Listen, so that probes are answered while models load; load the models; wait for a signal. Return the exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        server = InferenceServer(options, log_settings)
    except OSError as error:
        log.error("cannot write the request log: %s", error.strerror)
        return 1
    except ServingError as error:
        log.error("%s", error.message)
        return 1
    if server.request_log is not None:
        loop.add_signal_handler(signal.SIGHUP, server.request_log.reopen)
    frontends: dict[str, Listening] = {}
    source: ModelSource | None = None
    status = 0
    try:
        if options.source is not None:
            source = imported(options.source.source)(server, options)
            if not await _unless_stopped(source.register(), stop):
                return 0
        speaks = options.allow_http or options.allow_grpc
        workers = FrontendWorkers(server, options) if options.frontend_workers and speaks else None
        frontends = _frontends(server, options, workers)
        if options.source is not None:
            frontends |= imported(options.source.frontends)(source, options)
        for listening in frontends.values():
            await _start(listening)
        if workers is not None:
            await workers.start()
        for name, listening in frontends.items():
            log.info("%s listens on %s", name, _format_listening(listening))
        if source is not None:
            await source.listening()
        _warn_if_open(options, frontends)
        if options.address_file is not None:
            _write_addresses(options.address_file, frontends)
        status = await _load_and_wait(server, source, stop)
    except ServingError as error:
        log.error("%s", error.message)
        status = 1
    except OSError as error:
        log.error("--address-file: cannot write it: %s", error.strerror)
        status = 1
    finally:
        if source is not None:
            source.stop()
        await _shut_down(server, frontends, options, serving=bool(frontends) and not status)
        if source is not None:
            source.close()
    return status


async def _start(listening: Listening) -> None:
    """Start to listen. Raises UNAVAILABLE if that fails, with the wording of tritonserver's log."""
    try:
        await listening.frontend.start()
    except OSError as error:
        place = f"{listening.host}:{listening.port}"
        taken = error.errno == errno.EADDRINUSE
        refused = f"cannot listen on '{place}': {error.strerror or error}"
        reason = f"Socket '{place}' already in use" if taken else refused
        raise unavailable(f"failed to start {listening.service} service: Unavailable - {reason}") from error


async def _start_all(server: InferenceServer, source: ModelSource | None) -> None:
    if source is not None:
        await source.start()
    await server.start()


async def _unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Do the work and return True. If the server has to stop before the work is done, cancel it and return False."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    return False


async def _load_and_wait(server: InferenceServer, source: ModelSource | None, stop: asyncio.Event) -> int:
    start = asyncio.create_task(_start_all(server, source))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((start, stopped), return_when=asyncio.FIRST_COMPLETED)
    if start.done():
        try:
            start.result()
        except ServingError as error:
            log.error("%s", error.message)
            stopped.cancel()
            return 1
        log.info("ready")
    else:
        start.cancel()
    await stopped
    return 0


async def _shut_down(server: InferenceServer, frontends: dict[str, Listening], options: Options, serving: bool) -> None:
    """Shut down in steps, so that clients can finish. Answer the metrics, and probes on open connections, until the end.

    First answer "not ready" during the drain time, so that load balancers notice. Then stop listening, tell clients to close
    their connections, refuse new requests, and wait for the requests under way. serving: whether clients may be connected.
    """
    timeout_s = options.exit_timeout_secs
    server.stop()
    if serving:
        await _drain_of_clients(options)
    log.info("shutting down. Timeout %g: Waiting for in-flight requests to complete.", timeout_s)
    deadline = time.monotonic() + timeout_s
    drains = {name: asyncio.ensure_future(one.frontend.drain()) for name, one in frontends.items() if name != "metrics"}
    if drains:
        await asyncio.wait(drains.values(), timeout=timeout_s - min(FREEING_S, timeout_s / 2))
    await server.drain(max(0.0, deadline - time.monotonic()))
    draining = asyncio.gather(*drains.values(), return_exceptions=True)
    try:
        async with asyncio.timeout(min(shutdown.CLOSING_S, timeout_s)):
            await draining
    except TimeoutError:
        log.debug("connections stayed open")
    await asyncio.gather(*(one.frontend.close() for one in frontends.values()), return_exceptions=True)


async def _drain_of_clients(options: Options) -> None:
    """Keep serving for --drain-secs, so that a load balancer can send its clients to other servers."""
    drain_s = shutdown.drain_s(options.drain_secs, options.behind_load_balancer)
    if drain_s:
        log.info("reporting not ready, and serving for %g more seconds: see --drain-secs", drain_s)
        await asyncio.sleep(drain_s)


def _frontends(server: InferenceServer, options: Options, workers: FrontendWorkers | None) -> dict[str, Listening]:
    found: dict[str, Listening] = {}
    if options.allow_http:
        from serving.frontends.http_server import HttpServer

        checks = Authoriser.from_options(options, "http")
        http = workers.frontend("http") if workers is not None else HttpServer(server, options, checks)
        found["http"] = Listening(http, "HTTP", options.http_address, options.http_port)
    if options.allow_grpc:
        from serving.frontends.grpc_server import GrpcServer

        checks = Authoriser.from_options(options, "grpc")
        grpc = workers.frontend("grpc") if workers is not None else GrpcServer(server, options, checks)
        found["grpc"] = Listening(grpc, "GRPC", options.grpc_address, options.grpc_port)
    if options.allow_metrics:
        from serving.frontends.metrics_server import MetricsServer

        metrics = MetricsServer(server, options, Authoriser.from_options(options, "http"))
        address = options.metrics_address or options.http_address
        found["metrics"] = Listening(metrics, "Metrics", address, options.metrics_port)
    return found


def _format_listening(listening: Listening) -> str:
    host, port = listening.frontend.address
    if host.startswith("/"):
        return f"unix:{host}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _write_addresses(path: Path, frontends: dict[str, Listening]) -> None:
    content: dict[str, str | int] = {name: _format_listening(one) for name, one in frontends.items()}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content | {"pid": os.getpid()}))
    temporary.replace(path)


def _warn_if_open(options: Options, frontends: dict[str, Listening]) -> None:
    everywhere = ("0.0.0.0", "::")
    open_to_all = [name for name, one in frontends.items() if one.frontend.address[0] in everywhere and not one.asks]
    guarded = any("model-repository" in restriction.apis for restriction in options.http_restricted_api)
    if open_to_all and not (guarded and options.auth_file):
        log.warning(
            "%s listen on every interface and anyone who reaches them may use them: bind to 127.0.0.1, or give "
            "--auth-file and restrict 'model-repository' with --http-restricted-api and --grpc-restricted-protocol",
            ", ".join(open_to_all),
        )
