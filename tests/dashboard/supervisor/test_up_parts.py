"""The parts of `manage.py up`: back-off, logs, ports, the lock on the data folder."""

import asyncio
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from dashboard.models import Heartbeat, Server, ServerState
from dashboard.servers.server_state import MACHINE, UP
from dashboard.shared.environment import VARIABLES
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.shared.log_files import KEPT, LogFollower, RotatingLog, tail
from dashboard.supervisor import commands
from dashboard.supervisor.backoff import DELAYS_S, STABLE_S, Backoff
from dashboard.supervisor.installation import own_server_name
from dashboard.supervisor.preflight import DataFolderLock, check_ports, lock_data_folder
from dashboard.supervisor.probes import probe_http
from dashboard.web.health import READINESS
from repository.core import shutdown
from serving.cli.command_line import parse

HOST = "127.0.0.1"


def test_the_first_restarts_begin_within_a_second_and_a_crash_loop_slows_down():
    backoff = Backoff()
    delays = [backoff.delay(lived_s=0.5, answered=False) for _ in range(12)]
    assert all(delay < 1 for delay in delays[:4])
    assert delays == sorted(delays)
    assert delays[-1] == max(DELAYS_S)


def test_a_long_run_makes_the_next_restart_immediate():
    backoff = Backoff()
    for _ in range(8):
        backoff.delay(lived_s=0.5, answered=False)
    assert backoff.delay(lived_s=STABLE_S, answered=True) == 0


def test_a_process_that_did_its_work_is_always_back_within_a_second():
    backoff = Backoff()
    assert max(backoff.delay(lived_s=2, answered=True) for _ in range(20)) < 1


def test_a_log_is_rotated_by_size_and_keeps_few_files(tmp_path: Path):
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "server.log"
    log = RotatingLog(path, max_bytes=100)
    for number in range(100):
        log.write(f"this is line {number}\n".encode())
    log.close()
    names = {file.name for file in path.parent.iterdir()}
    assert names == {"server.log", *(f"server.log.{number}" for number in range(1, KEPT + 1))}
    assert path.stat().st_mode & 0o077 == 0


def test_a_follower_reads_whole_lines_over_a_rotation(tmp_path: Path):
    path = tmp_path / "server.log"
    log = RotatingLog(path, max_bytes=30)
    log.write(b"before\n")
    follower = LogFollower(path)
    log.write(b"one\ntw")
    assert follower.read() == ["one"]
    log.write(b"o\n")
    assert follower.read() == ["two"]
    log.write(b"long enough to be rotated away\n")
    log.write(b"after\n")
    log.close()
    assert follower.read() == ["after"]


def test_a_tail_is_the_last_lines_and_empty_without_a_file(tmp_path: Path):
    path = tmp_path / "server.log"
    assert tail(path, 3) == []
    path.write_text("".join(f"{number}\n" for number in range(1000)))
    assert tail(path, 3) == ["997", "998", "999"]
    assert tail(path, 1000, max_bytes=10) == ["998", "999"]


def test_every_taken_port_is_named_with_the_setting_that_moves_it():
    with socket.create_server((HOST, 0)) as first, socket.create_server((HOST, 0)) as second:
        ports = {"SLIPWAY_PORT": first.getsockname()[1], "SLIPWAY_HTTP_PORT": second.getsockname()[1]}
        with pytest.raises(Conflict) as error:
            check_ports(HOST, ports)
    for setting, port in ports.items():
        assert f"port {port} on {HOST} is taken: free it, or set {setting}" in error.value.message
    check_ports(HOST, ports)


def test_two_settings_with_the_same_port_are_refused():
    with pytest.raises(Invalid, match="SLIPWAY_PORT and SLIPWAY_HTTP_PORT are both 9000"):
        check_ports(HOST, {"SLIPWAY_PORT": 9000, "SLIPWAY_HTTP_PORT": 9000})


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(Invalid, match="SLIPWAY_HOST"):
        check_ports("no-such-host.invalid", {"SLIPWAY_PORT": 9000})


def test_a_data_folder_is_held_by_one_process_and_free_again_when_that_is_killed(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from dashboard.supervisor.preflight import lock_data_folder;"
        "lock = lock_data_folder(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Conflict, match=rf"process {holder.pid}.*SLIPWAY_DATA"):
            lock_data_folder(tmp_path)
        holder.kill()
    lock = DataFolderLock(tmp_path)
    assert lock.acquire()
    assert lock.holder() == str(os.getpid())
    lock.release()


def test_flags_for_the_inference_server_come_after_those_of_up_itself(settings: Any, tmp_path: Path) -> None:
    settings.DATA_DIR = tmp_path
    settings.SERVER_FLAGS = VARIABLES["SLIPWAY_SERVER_FLAGS"].parse("--cache-config=local,size=1000 --trace-rate=7")
    commands.check_server_flags()
    commands.process_specs()
    assert (tmp_path / "server.args").read_text().splitlines()[-2:] == [
        "--cache-config=local,size=1000",
        "--trace-rate=7",
    ]


@pytest.mark.parametrize("flags", ["", "--drain-secs=60", "--behind-load-balancer", "--drain-secs=1 --drain-secs=40.5"])
def test_the_server_is_given_as_long_to_end_as_it_takes_by_its_flags(settings: Any, tmp_path: Path, flags: str) -> None:
    settings.DATA_DIR, settings.SERVER_FLAGS = tmp_path, VARIABLES["SLIPWAY_SERVER_FLAGS"].parse(flags)
    [waited] = [spec.stop[0][1] for spec in commands.process_specs() if spec.name == "server"]
    read, _ = parse([f"@{tmp_path / 'server.args'}"])
    drain_s = shutdown.drain_s(read.drain_secs, read.behind_load_balancer)
    assert waited > shutdown.longest_s(read.exit_timeout_secs, drain_s)


def test_models_do_not_see_the_environment_of_the_dashboard(settings: Any) -> None:
    assert "--model-environment=bounded" in commands.server_arguments()
    settings.SERVER_FLAGS = ["--model-environment=all"]
    with pytest.raises(Invalid, match="cannot have --model-environment"):
        commands.check_server_flags()


@pytest.mark.parametrize("flag", ["--http-use-ssl", "--grpc-use-ssl=true", "--grpc-use-ssl-mutual"])
def test_tls_of_the_server_is_refused_because_the_dashboard_could_not_reach_it(settings: Any, flag: str) -> None:
    settings.SERVER_FLAGS = [flag]
    with pytest.raises(Invalid, match="reaches its server without TLS"):
        commands.check_server_flags()


def test_flags_that_up_gives_itself_and_what_is_no_flag_are_refused(settings: Any) -> None:
    settings.SERVER_FLAGS = ["--http-port=1234"]
    with pytest.raises(Invalid, match="cannot have --http-port"):
        commands.check_server_flags()
    with pytest.raises(ValueError, match="flags, such as"):
        VARIABLES["SLIPWAY_SERVER_FLAGS"].parse("rm -rf")


def test_a_dashboard_that_says_that_its_database_is_away_does_not_hang() -> None:
    """An outage of the database would restart it each minute, with the uploads under way."""

    async def ask(**how: bool) -> bool:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, HOST, 0)
        async with server:
            return await probe_http(HOST, server.sockets[0].getsockname()[1], READINESS, **how)

    assert asyncio.run(ask(any_status=True))
    assert not asyncio.run(ask())


@pytest.mark.django_db
def test_a_server_keeps_its_name_while_its_machine_lives_though_no_watcher_looks_at_it(
    settings: Any, tmp_path: Path
) -> None:
    settings.SHARED_DIR, settings.DATA_DIR = tmp_path, tmp_path / "joins"
    settings.DATA_DIR.mkdir()
    server = Server.objects.create(name="local", bundled=True)
    now, up = timezone.now(), {"host": "other", "process": 7, "since": 1}
    info = {MACHINE: "another", UP: [*up.values()]}
    ServerState.objects.create(server=server, state="ready", checked_at=now - timedelta(hours=1), info=info)
    assert own_server_name() == "local", "its machine is gone"
    Heartbeat.objects.create(machine="another", name="up", beat_at=now, seen_at=now, **up)
    assert own_server_name() == "local-2"
