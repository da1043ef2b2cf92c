"""`manage.py up`: prepare the data folder, then start and watch the dashboard, the inference server, watch and the worker.

`--only` starts some of them.
"""

import argparse
import asyncio
import logging
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from dashboard.access.control import restored_from
from dashboard.models import Server
from dashboard.postgresql import relay
from dashboard.servers.additions import Listener, listeners, ports_by_host
from dashboard.servers.services import LOCAL
from dashboard.shared import heartbeat
from dashboard.shared.exceptions import Conflict
from dashboard.shared.startup import check_database, one_sentence
from dashboard.supervisor import commands
from dashboard.supervisor.preflight import check_ports, check_signing_key, lock_data_folder
from dashboard.supervisor.process import ProcessSpec
from dashboard.supervisor.readiness import wait_for_models
from dashboard.supervisor.recorder import Recorder, follow_restart_requests, is_trouble
from dashboard.supervisor.setup import Prepared, prepare
from dashboard.supervisor.supervisor import Status, Supervisor
from repository.core.server_version import VERSION

logger = logging.getLogger(__name__)

_RESTORED = (
    "This installation was restored from a backup and controls nothing: only the dashboard starts. Stop the original, run "
    "manage.py accept control, and start this one again."
)


class Command(BaseCommand):
    requires_system_checks = []
    help = "Start and supervise everything; stop it with Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--only", type=_parts, default=commands.PARTS, metavar="PARTS", help="some of web,worker,watch,server"
        )

    def handle(self, *args: object, **options: Any) -> None:
        parts: tuple[str, ...] = options["only"]
        self._parts = parts
        try:
            with one_sentence():
                lock = lock_data_folder(settings.DATA_DIR)
                if "server" in parts:
                    commands.check_server_flags()
                if {"web", "worker"} & set(parts):
                    check_signing_key(settings.SIGNING_KEY)
                check_ports(settings.DASHBOARD_HOST, commands.ports(parts))
                self._listeners = listeners() if "server" in parts else []
                for host, ports in ports_by_host(self._listeners).items():
                    check_ports(host, ports)
                newer = check_database()
                prepared = prepare(runs_server="server" in parts)
                if restored_from():
                    self._parts = parts = _without_control(parts)
                specs = commands.process_specs(parts, prepared.server.name if prepared.server else LOCAL)
        except KeyboardInterrupt:
            raise CommandError("Interrupted before anything was started.", returncode=130) from None
        if newer:
            self._say(f"Release {newer} of Slipway has changed the database; this one, {VERSION}, can use it.")
        if restored_from():
            self._say(_RESTORED, logging.WARNING)
        self._say_prepared(prepared)
        self._warn_if_open()
        asyncio.run(self._supervise(prepared.server, specs))
        lock.release()

    async def _supervise(self, server: Server | None, specs: list[ProcessSpec]) -> None:
        heartbeat.forget_dead(*heartbeat.PROCESSES)
        relay.begin()
        own = server if "server" in self._parts else None  # the server that this machine runs
        recorder = Recorder(server, own=own is not None)

        def report(status: Status, kind: str, sentence: str) -> None:
            recorder.report(status, kind, sentence)
            if sentence:
                self._say(sentence, logging.WARNING if is_trouble(status, kind) else logging.INFO)

        supervisor = Supervisor(specs, commands.stages(specs), report, commands.build_spec() if own else None)
        beside = [asyncio.create_task(part) for part in (recorder.run(), self._give_heartbeats())]
        if own is not None:
            beside.append(asyncio.create_task(follow_restart_requests(own, supervisor)))
        try:
            await supervisor.run(on_live=lambda: self._invite(own))
        finally:
            for task in beside:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await recorder.flush()
            heartbeat.forget()
            heartbeat.forget_dead(*heartbeat.PROCESSES)

    async def _give_heartbeats(self) -> None:
        while True:
            heartbeat.beat("up")
            await asyncio.sleep(heartbeat.HEARTBEAT_S)

    async def _invite(self, server: Server | None) -> None:
        loaded = server is None or await wait_for_models(server)
        self._say_addresses()
        if not loaded:
            self._say("Some models are still loading; the overview shows which.")

    def _say(self, line: str, level: int = logging.INFO) -> None:
        if settings.LOG_FORMAT == "json":
            logger.log(level, line)
            return
        with suppress(OSError):  # the terminal may be closed
            self.stdout.write(f"{timezone.now():%H:%M:%S} {line}")
            self.stdout.flush()

    def _say_prepared(self, prepared: Prepared) -> None:
        if prepared.migrated:
            self._say("The database is up to date.")
        if prepared.restored:
            self._say(f"Restored from the bucket: {', '.join(prepared.restored)}.")
        if prepared.unrestored:
            self._say(f"The bucket was not compared: {prepared.unrestored}.", logging.WARNING)
        if prepared.examples:
            self._say(f"Published the example models {', '.join(prepared.examples)}.")
        if prepared.problem:
            self._say(f"Some example models are missing: {prepared.problem}.")
        if prepared.password:
            self.stdout.write(f"\n  Sign in as {prepared.administrator} with the password {prepared.password}")
            self.stdout.write("  It is shown only now: keep it, or change it after signing in.\n\n")
        elif prepared.administrator:
            self._say(f"Made the administrator {prepared.administrator} with the password of SLIPWAY_ADMIN_PASSWORD.")

    def _warn_if_open(self) -> None:
        local = settings.DASHBOARD_HOST in ("localhost", "127.0.0.1", "::1")
        if "server" in self._parts and not local and not settings.REQUIRE_TOKENS:
            self._say(
                f"Listening on {settings.DASHBOARD_HOST}: everybody who reaches it may send inference requests. "
                "Set SLIPWAY_REQUIRE_TOKENS=1 to require a token."
            )

    def _say_addresses(self) -> None:
        host = commands.reachable_host()
        host = f"[{host}]" if ":" in host else host
        web = [("Dashboard", f"http://{host}:{settings.DASHBOARD_PORT}/")]
        server = [
            ("Inference, HTTP", f"http://{host}:{settings.SERVER_HTTP_PORT}"),
            ("Inference, gRPC", f"{host}:{settings.SERVER_GRPC_PORT}"),
            ("Metrics", f"http://{host}:{settings.SERVER_METRICS_PORT}/metrics"),
        ]
        lines = (
            *(web if "web" in self._parts else ()),
            *(server if "server" in self._parts else ()),
            *(
                (one.title, f"{one.scheme}://{_format_listener(one)}" if one.scheme else _format_listener(one))
                for one in self._listeners
            ),
            ("Logs", str(settings.LOG_DIR)),
        )
        width = max(len(title) for title, _ in lines)
        self.stdout.write("\n" + "".join(f"  {title:<{width}} {address}\n" for title, address in lines))
        self.stdout.write("  Ctrl-C stops everything.\n\n")
        self.stdout.flush()


def _without_control(parts: tuple[str, ...]) -> tuple[str, ...]:
    if "web" not in parts:
        raise Conflict(
            "this installation was restored from a backup and controls nothing until manage.py accept control"
        )
    return ("web",)


def _parts(text: str) -> tuple[str, ...]:
    named = set(filter(None, text.split(",")))
    if not named or named - set(commands.PARTS):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(commands.PARTS)}, got '{text}'")
    return tuple(part for part in commands.PARTS if part in named)


def _format_listener(listener: Listener) -> str:
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    return f"{host}:{listener.port}"
