"""`manage.py up` as a person has it: real processes on real ports."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.gated_model import GatedModel
from tests.support.ports import HOST, free_ports
from tests.support.serving_process import PATIENCE_S, wait_until
from tests.support.up_process import PORT_SETTINGS, Up

pytestmark = pytest.mark.long
CONTROL_HEADER = "slipway-control-key"
TABLES = ("auth_user", "dashboard_model", "dashboard_version", "dashboard_release", "dashboard_auditentry")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Started once for the tests that leave it running."""
    with Up(tmp_path_factory.mktemp("up") / "data") as running:
        running.start()
        wait_until(lambda: models_are_ready(running), what="every example is ready")
        yield running


def models(up: Up) -> list[str]:
    return [name for (name,) in up.query("SELECT name FROM dashboard_model WHERE desired_state = 'loaded'")]


def models_are_ready(up: Up) -> bool:
    names = models(up)
    try:
        answers = [httpx.get(f"{up.http_url}/v2/models/{name}/ready", timeout=PATIENCE_S).status_code for name in names]
    except httpx.HTTPError:
        return False
    return bool(names) and set(answers) == {200}


def server_state(up: Up) -> tuple[str, int | None, int, str]:
    return up.query("SELECT state, pid, restarts, last_reason FROM dashboard_serverstate")[0]


def events(up: Up, since: int = 0) -> list[tuple[str, str]]:
    return up.query("SELECT kind, message FROM dashboard_serverevent WHERE id > ? ORDER BY id", since)


def last_event(up: Up) -> int:
    return up.query("SELECT coalesce(max(id), 0) FROM dashboard_serverevent")[0][0]


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if command_line(pid)}


def command_line(pid: int) -> list[str]:
    """Empty for a process that has ended, even while it is looked at."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def test_every_address_that_it_prints_answers(up: Up):
    assert httpx.get(f"{up.dashboard_url}/readyz", timeout=PATIENCE_S).json() == {"status": "ok"}
    assert httpx.get(f"{up.http_url}/v2/health/live", timeout=PATIENCE_S).status_code == 200
    assert "nv_" in httpx.get(f"http://{HOST}:{up.ports[3]}/metrics", timeout=PATIENCE_S).text
    for port in up.ports:
        assert f"{HOST}:{port}" in up.output
    assert {"digits", "digits_torch", "digits_pipeline"} <= set(models(up))


def test_the_administrators_password_is_generated_and_signs_in(up: Up):
    assert len(up.password) >= 12
    with httpx.Client(base_url=up.dashboard_url, follow_redirects=True, timeout=PATIENCE_S) as browser:
        answer = sign_in(browser, up)
    assert answer.status_code == 200
    assert answer.url.path == "/"


def sign_in(browser: httpx.Client, up: Up, password: str = "") -> httpx.Response:
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browser.get("/sign-in").text)
    form = {"username": "admin", "password": password or up.password, "csrfmiddlewaretoken": token.group(1)}
    return browser.post("/sign-in", data=form, headers={"Referer": f"{up.dashboard_url}/sign-in"})


def test_secrets_are_neither_in_the_process_list_nor_in_logs_nor_readable_by_others(up: Up):
    key = (up.data / "control_key").read_text()
    commands = [argument for pid in up.processes() for argument in command_line(pid)]
    logs = [path.read_text(errors="replace") for path in (up.data / "logs").rglob("*") if path.is_file()]
    for text in (*commands, *logs, up.output):
        assert key not in text
    for name in ("control_key", "secret_key", "server.args"):
        assert (up.data / name).stat().st_mode & 0o077 == 0


def test_control_routes_need_the_key(up: Up):
    index = f"{up.http_url}/v2/repository/index"
    assert httpx.post(index, content=b"{}", timeout=PATIENCE_S).status_code in (401, 403)
    headers = {CONTROL_HEADER: (up.data / "control_key").read_text()}
    assert httpx.post(index, content=b"{}", headers=headers, timeout=PATIENCE_S).status_code == 200


def test_the_doctor_finds_nothing_wrong_and_then_a_server_that_refuses_the_key(up: Up):
    command, how = [sys.executable, "manage.py", "doctor"], {"cwd": up.root, "capture_output": True, "text": True}
    well = subprocess.run(command, env=up.environment, timeout=PATIENCE_S, check=False, **how)
    assert well.returncode == 0, well.stdout
    assert "All is well: " in well.stdout
    for title in ("Pages", "Inference servers", "Watcher that leads", "Model repository"):
        assert re.search(rf"^ok +{title}$", well.stdout, re.MULTILINE), well.stdout
    other = {**up.environment, "SLIPWAY_CONTROL_KEY": "x" * 40}
    ill = subprocess.run([*command, "--json"], env=other, timeout=PATIENCE_S, check=False, **how)
    assert ill.returncode == 1
    (fault,) = [one for one in json.loads(ill.stdout)["checks"] if one["state"] == "wrong"]
    assert fault["check"] == "servers"
    assert "refuses the control key" in fault["faults"][0]


def test_a_server_killed_with_sigkill_is_restarted_at_once_with_every_model(up: Up):
    seen = last_event(up)
    _, pid, restarts, _ = server_state(up)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server_state(up)[1] not in (None, pid), what="a new process")
    wait_until(lambda: models_are_ready(up) and server_state(up)[0] == "ready", what="every model is back")
    assert server_state(up)[2] == restarts + 1

    def both_events() -> list[tuple[str, str]]:
        found = [(kind, message) for kind, message in events(up, seen) if kind in ("crashed", "restarted")]
        return found if len(found) >= 2 else []

    (crashed, message), (restarted, _) = wait_until(both_events, what="the events of the crash")
    assert (crashed, restarted) == ("crashed", "restarted")
    assert re.search(r"The inference server was killed by SIGKILL after .*; it is restarted immediately\.", message)


def live(up: Up) -> bool:
    try:
        return httpx.get(f"{up.http_url}/v2/health/live", timeout=PATIENCE_S).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_restart_that_is_asked_for_is_an_orderly_one(up: Up):
    seen = last_event(up)
    pid = server_state(up)[1]
    up.query("UPDATE dashboard_serverstate SET restart_requested_at = '2026-01-01 00:00:00'")
    wait_until(lambda: server_state(up)[1] not in (None, pid), what="a new process")
    wait_until(lambda: models_are_ready(up), what="every model is back")
    reported = [(kind, message) for kind, message in events(up, seen) if kind in ("crashed", "stopped")]
    assert reported == [("stopped", "The inference server was restarted, because somebody asked for it on its page.")]
    assert up.query("SELECT restart_requested_at FROM dashboard_serverstate") == [(None,)]


def test_a_dead_watcher_or_worker_is_replaced(up: Up):
    def pids() -> dict[str, int]:
        names = {"watch": "manage.py watch", "worker": "celery"}
        found = {pid: " ".join(command_line(pid)) for pid in up.processes()}
        return {name: pid for name, part in names.items() for pid, line in found.items() if part in line}

    before = pids()
    assert set(before) == {"watch", "worker"}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: set(pids()) == set(before) and not set(pids().values()) & set(before.values()), what="new ones")


def test_a_second_up_on_the_same_data_folder_says_who_runs_there(up: Up):
    with Up(up.data) as second:
        second.start(wait=False)
        assert second.process.wait(PATIENCE_S) == 1
        assert f"Slipway already runs on this data folder (process {up.pid})" in second.output
    assert live(up)


def test_a_taken_port_is_named_before_anything_starts(up: Up, tmp_path: Path):
    with Up(tmp_path / "data", [*free_ports(3), up.ports[1]]) as second:
        second.start(wait=False)
        assert second.process.wait(PATIENCE_S) == 1
        assert f"port {up.ports[1]} on {HOST} is taken: free it, or set SLIPWAY_METRICS_PORT" in second.output
        assert not (second.data / "db.sqlite3").exists()


def test_ctrl_c_ends_everything_and_a_second_run_changes_nothing(tmp_path: Path):
    with Up(tmp_path / "data", SLIPWAY_ADMIN_PASSWORD="chosen-by-a-person") as first:
        first.prepared(wanted=["digits"]).start()
        assert "chosen-by-a-person" not in first.output
        processes = first.processes()
        assert len(processes) >= 5
        with ThreadPoolExecutor(1) as executor:
            gated = GatedModel(first.data / "models", tmp_path)
            under_way = executor.submit(ask_gated, first)
            gated.wait_for("under way")
            first.process.send_signal(signal.SIGINT)
            log = first.data / "logs" / "server.log"
            wait_until(lambda: "shutting down" in log.read_text(), what="the server has heard of it")
            gated.open()
            assert first.process.wait(PATIENCE_S) == 0
            assert under_way.result().status_code == 200
        wait_until(lambda: not alive(processes), what="no process is left")
        rows = {table: first.query(f"SELECT * FROM {table}") for table in TABLES}
        assert server_state(first)[:2] == ("stopped", None)
        first.query("UPDATE dashboard_serverstate SET restart_requested_at = '2026-01-01 00:00:00'")
        seen = last_event(first)
    with Up(tmp_path / "data", first.ports) as second:
        second.start()
        assert not second.password
        assert "Published" not in second.output
        assert {table: second.query(f"SELECT * FROM {table}") for table in TABLES} == rows
        wait_until(lambda: models_are_ready(second), what="every model is back")
        reported = {kind for kind, _ in events(second, seen)}
        assert not reported & {"crashed", "stopped", "restarted"}, "a request to an earlier run is none to this one"
        killed_leaves_no_orphan(second)


def ask_gated(up: Up) -> httpx.Response:
    """A request to a model that is loaded beside those of the dashboard, and waits at its gate."""
    headers = {CONTROL_HEADER: (up.data / "control_key").read_text()}
    load = f"{up.http_url}/v2/repository/models/gated/load"
    httpx.post(load, headers=headers, timeout=PATIENCE_S).raise_for_status()
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
    body = {"id": "under way", "inputs": [tensor]}
    return httpx.post(f"{up.http_url}/v2/models/gated/infer", json=body, timeout=2 * PATIENCE_S)


def killed_leaves_no_orphan(up: Up) -> None:
    """SIGKILL cannot be caught: the guardian ends what is left, and so does one that took a killed guardian's place."""
    [before] = [pid for pid in up.processes() if "guardian.py" in " ".join(command_line(pid))]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: "The guardian is back." in up.output, what="a new guardian")
    processes = up.processes()
    os.kill(up.pid, signal.SIGKILL)
    up.process.wait()
    wait_until(lambda: not alive(processes), what="no orphan is left")


def test_every_port_setting_is_checked():
    from dashboard.supervisor.commands import PORT_SETTINGS as checked

    assert tuple(checked) == PORT_SETTINGS
