"""The command lines of the four processes, or of some of them, from the settings."""

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from django.conf import settings

from dashboard.servers.additions import additions
from dashboard.servers.bundled_flags import flag, is_on
from dashboard.servers.server_state import BUILD
from dashboard.servers.services import LOCAL
from dashboard.shared.environment import BASE_DIR
from dashboard.shared.exceptions import Invalid
from dashboard.shared.heartbeat import heard_since_last
from dashboard.shared.model_logs import model_logs_folder
from dashboard.supervisor.probes import probe_grpc, probe_http
from dashboard.supervisor.process import Probe, ProcessSpec, Stop
from dashboard.web.health import LIVENESS
from repository.core import shutdown

# Seconds that requests under way have to finish when the inference server stops.
EXIT_TIMEOUT_S = 30

# The order of stopping. The callers of the server stop first, the pages last, because they answer forwarded requests.
STAGES = (("watch", "worker"), ("server",), ("dashboard",))

_TLS_FLAGS = tuple(f"--{protocol}-use-ssl{kind}" for protocol in ("http", "grpc") for kind in ("", "-mutual"))

# What `up --only` may name. "web" is the process `dashboard`.
PARTS = ("web", "worker", "watch", "server")

# Environment variable -> Django setting of a port.
PORT_SETTINGS = {
    "SLIPWAY_PORT": "DASHBOARD_PORT",
    "SLIPWAY_HTTP_PORT": "SERVER_HTTP_PORT",
    "SLIPWAY_GRPC_PORT": "SERVER_GRPC_PORT",
    "SLIPWAY_METRICS_PORT": "SERVER_METRICS_PORT",
}


def ports(parts: Collection[str]) -> dict[str, int]:
    """Return the ports on which these parts listen, by their settings."""
    own = {name: getattr(settings, setting) for name, setting in PORT_SETTINGS.items()}
    return {name: port for name, port in own.items() if ("web" if name == "SLIPWAY_PORT" else "server") in parts}


def reachable_host() -> str:
    """Return the address at which this machine reaches its own listeners."""
    host: str = settings.DASHBOARD_HOST
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def process_specs(parts: Collection[str] = PARTS, server: str = LOCAL) -> list[ProcessSpec]:
    """Return the processes of these parts. server: the name of the bundled server that this machine runs."""
    made: dict[str, Callable[[], ProcessSpec]] = {
        "server": partial(_server, server),
        "web": _dashboard,
        "watch": _watch,
        "worker": _worker,
    }
    return [make() for part, make in made.items() if part in parts]


def stages(specs: Iterable[ProcessSpec]) -> list[tuple[str, ...]]:
    """Return STAGES with these processes only."""
    present = {spec.name for spec in specs}
    staged = [tuple(name for name in stage if name in present) for stage in STAGES]
    return [stage for stage in staged if stage]


def _spec(
    name: str,
    title: str,
    *command: str,
    make_probe: Callable[[], Probe],
    stop: Stop,
    says_ready: bytes = b"",
    model_logs: Path | None = None,
    folder: Path = BASE_DIR,
    environment: Mapping[str, str] | None = None,
) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        title=title,
        command=(sys.executable, *command),
        log=settings.LOG_DIR / f"{name}.log",
        folder=folder,
        model_logs=model_logs,
        environment={"DJANGO_SETTINGS_MODULE": "dashboard.settings", **(environment or {})},
        make_probe=make_probe,
        says_ready=says_ready,
        stop=stop,
        hung_after_s=settings.HUNG_AFTER_SECONDS,
    )


def build_spec() -> ProcessSpec | None:
    """Return the process that compiles the server's modules for its next start, or None if compiling is turned off."""
    if os.environ.get("SERVING_COMPILED") == "no":
        return None
    command = (sys.executable, "-m", "tools.compile_serving", "--background")
    return ProcessSpec(
        name=BUILD,
        title="compilation of the inference server's modules",
        command=command,
        log=settings.LOG_DIR / f"{BUILD}.log",
        folder=BASE_DIR,
        stop=((signal.SIGTERM, 3.0),),
    )


def _dashboard() -> ProcessSpec:
    host, port = settings.DASHBOARD_HOST, settings.DASHBOARD_PORT
    # The pings end the WebSocket of a browser that stopped reading, and free its queue.
    arguments = ("-b", host, "-p", str(port), "-v", "0", "--ping-interval", "20", "--ping-timeout", "30")

    async def answers() -> bool:
        # Any status counts, such as a 400 for a host name that is not allowed.
        return await probe_http(reachable_host(), port, LIVENESS, any_status=True)

    return _spec(
        "dashboard",
        "dashboard",
        *("-m", "daphne", *arguments, "--no-server-name", "dashboard.asgi:application"),
        make_probe=lambda: answers,
        stop=((signal.SIGTERM, 5.0),),
    )


def _watch() -> ProcessSpec:
    command = (str(BASE_DIR / "manage.py"), "watch")
    stop = ((signal.SIGTERM, 5.0),)
    return _spec("watch", "watcher", *command, make_probe=partial(heard_since_last, "watch"), stop=stop)


def _worker() -> ProcessSpec:
    # Threads end with the worker. They are enough, because a job's heavy work runs in separate processes.
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")  # nobody reads Celery's own heartbeats
    options = ("--pool", "threads", "--loglevel", "INFO", *quiet)
    # SIGTERM finishes the jobs under way; one that takes longer is queued again by `watch`.
    stop = ((signal.SIGTERM, 8.0), (signal.SIGQUIT, 3.0))
    command = ("-m", "celery", "--quiet", "-A", "dashboard", "--skip-checks", "worker", *options)
    heard = partial(heard_since_last, "worker")
    return _spec("worker", "worker", *command, says_ready=b" ready.", make_probe=heard, stop=stop)


def _server(name: str) -> ProcessSpec:
    host = reachable_host()

    async def answers() -> bool:
        return (
            await probe_http(host, settings.SERVER_HTTP_PORT, "/v2/health/live")
            and await probe_grpc(host, settings.SERVER_GRPC_PORT)
            # any status: /metrics itself takes seconds with thousands of models
            and await probe_http(host, settings.SERVER_METRICS_PORT, "/", any_status=True)
        )

    folder = next((folder for one in additions() if (folder := one.working_folder()) is not None), BASE_DIR)
    return _spec(
        "server",
        "inference server",
        *("-m", "serving", f"@{_write_server_arguments(name)}"),
        make_probe=lambda: answers,
        stop=((signal.SIGTERM, _server_stop_s()),),
        model_logs=model_logs_folder(),
        folder=folder,
        environment={} if folder == BASE_DIR else {"PYTHONPATH": _python_path()},
    )


def _python_path() -> str:
    """Return PYTHONPATH for a server that does not run in the project's folder."""
    return os.pathsep.join(filter(None, (str(BASE_DIR), os.environ.get("PYTHONPATH", ""))))


def _server_stop_s() -> float:
    """Return how many seconds the server may take to stop: the time in its flags, and a margin."""
    try:
        given = max(0.0, float(flag("--drain-secs")))
    except ValueError:
        given = None
    drain_s = shutdown.drain_s(given, is_on("--behind-load-balancer"))
    return shutdown.longest_s(EXIT_TIMEOUT_S, drain_s) + 3.0


def server_arguments(name: str = LOCAL) -> list[str]:
    """Return the flags of the inference server of this name. They restrict the control routes to requests with the header and
    key in SERVER_CONTROL_HEADER and SERVER_CONTROL_KEY."""
    host, key = settings.DASHBOARD_HOST, f"{settings.SERVER_CONTROL_HEADER}={settings.SERVER_CONTROL_KEY}"
    restricted = f"model-repository,shared-memory,logging,trace:{key}"
    arguments = {
        "--model-repository": settings.MODEL_REPOSITORY,
        "--model-control-mode": "explicit",
        "--wanted-models-file": settings.WANTED_MODELS_FILE,
        "--traffic-state": settings.TRAFFIC_STATE_FILE,
        "--capture-folder": settings.CAPTURE_DIR,
        "--exit-on-error": "false",
        "--exit-timeout-secs": EXIT_TIMEOUT_S,
        "--http-address": host,
        "--http-port": settings.SERVER_HTTP_PORT,
        "--grpc-address": host,
        "--grpc-port": settings.SERVER_GRPC_PORT,
        "--metrics-address": host,
        "--metrics-port": settings.SERVER_METRICS_PORT,
        "--http-restricted-api": restricted,
        "--grpc-restricted-protocol": restricted,
        "--model-environment": "bounded",  # because this environment holds keys and the database's address
        "--strict-devices": str(settings.STRICT_DEVICES).lower(),
    }
    if settings.LOG_FORMAT == "json":
        arguments["--log-format"] = "json"
    for addition in additions():
        arguments |= addition.flags()
    if settings.TRAFFIC_REMOTES is not None:
        arguments["--traffic-remotes"] = settings.TRAFFIC_REMOTES
    if settings.REQUIRE_TOKENS:
        arguments["--auth-file"] = settings.AUTH_FILE
        # A log has one writer.
        arguments["--usage-log"] = settings.USAGE_LOG if name == LOCAL else settings.USAGE_LOG / name
    return [f"{flag}={value}" for flag, value in arguments.items()]


def check_server_flags() -> None:
    """Raise Invalid if SLIPWAY_SERVER_FLAGS has a flag that `up` sets, or TLS: the processes would not find each other."""
    own = {argument.partition("=")[0] for argument in server_arguments()}
    taken = next((flag for flag in settings.SERVER_FLAGS if flag.partition("=")[0] in own), None)
    if taken is not None:
        raise Invalid(
            f"SLIPWAY_SERVER_FLAGS cannot have {taken.partition('=')[0]}, because `manage.py up` sets it; remove it"
        )
    tls = next((name for name in _TLS_FLAGS if is_on(name)), None)
    if tls is not None:
        raise Invalid(
            f"SLIPWAY_SERVER_FLAGS cannot have {tls}, because the dashboard reaches its server without TLS; remove it, and "
            "let a proxy in front of the server terminate TLS"
        )


def _write_server_arguments(name: str) -> str:
    """Write the flags to a file and return its path, because every account of the machine can read command lines."""
    path = settings.DATA_DIR / "server.args"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join([*server_arguments(name), *settings.SERVER_FLAGS]) + "\n")
    return str(path)
