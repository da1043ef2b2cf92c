"""`manage.py up` where a process hangs in place of ending, and what clients are told until all is back."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.dashboard.supervisor.test_up import command_line, events, last_event, models_are_ready, server_state, sign_in
from tests.support.ports import HOST
from tests.support.serving_process import PATIENCE_S, wait_until
from tests.support.up_process import Up

pytestmark = pytest.mark.long
BOUND_S = 10
PARTS = {"watch": "manage.py watch", "worker": "celery", "server": "-m serving", "dashboard": "daphne"}
PAGES = (
    "/",
    "/models/",
    "/models/digits/",
    "/models/digits/playground",
    "/models/digits/configuration",
    "/servers/local/",
)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Whether a process is ready is not read off its log: with WARNING there is nothing to read."""
    given = {"SLIPWAY_HUNG_AFTER_SECONDS": str(BOUND_S), "SLIPWAY_LOG_LEVEL": "WARNING"}
    with Up(tmp_path_factory.mktemp("hangs") / "data", **given) as running:
        running.prepared(wanted=["digits"]).start()
        wait_until(lambda: models_are_ready(running), what="every example is ready")
        yield running


def pid_of(up: Up, name: str) -> int:
    return next((pid for pid in up.processes() if PARTS[name] in " ".join(command_line(pid))), 0)


def stop(up: Up, name: str) -> int:
    pid = pid_of(up, name)
    assert pid, f"the {name} does not run"
    os.kill(pid, signal.SIGSTOP)
    return pid


@contextmanager
def stopped_watchers(up: Up) -> Iterator[None]:
    """While this lasts, every watcher is stopped, those that replace a stopped one too: nobody loads a model."""
    done = threading.Event()

    def keep_stopped() -> None:
        while not done.wait(0.05):
            if pid := pid_of(up, "watch"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    stop(up, "watch")
    thread = threading.Thread(target=keep_stopped)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def answer(up: Up, method: str, path: str, **body: Any) -> httpx.Response | None:
    """None while nobody listens."""
    try:
        return httpx.request(method, f"{up.http_url}{path}", timeout=PATIENCE_S, **body)
    except httpx.HTTPError:
        return None


def test_models_that_are_wanted_are_not_unknown_while_the_server_returns(up: Up):
    with stopped_watchers(up):
        ask_for_models_that_nobody_loads(up)
    wait_until(lambda: models_are_ready(up), 2 * PATIENCE_S, what="watch was replaced and has loaded every model")


def ask_for_models_that_nobody_loads(up: Up) -> None:
    _, before, _, _ = server_state(up)
    os.kill(before, signal.SIGKILL)
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v2/models/digits/infer", {"json": {"inputs": [tensor]}}),
        ("GET", "/v2/models/digits/ready", {}),
        ("GET", "/v2/models/digits", {}),
        ("GET", "/v2/models/digits/config", {}),
        ("GET", "/v2/models/digits/versions/1", {}),
        ("POST", "/v2/models/digits/generate", {"json": {}}),
    ]
    wait_until(lambda: answer(up, "GET", "/v2/health/live"), what="the server listens again")
    for method, path, body in calls:
        reported = answer(up, method, path, **body)
        assert reported is not None
        assert (reported.status_code, reported.headers.get("Retry-After")) == (503, "1"), path
        assert "model 'digits' is not loaded yet" in reported.json()["error"]
        other = answer(up, method, path.replace("digits", "nobody_wants_it"), **body)
        assert other is not None
        assert other.status_code == (400 if path.endswith("ready") else 404)
    client = grpcclient.InferenceServerClient(f"{HOST}:{up.ports[2]}")
    with client:
        assert not client.is_model_ready("digits")
        for ask in (client.get_model_metadata, client.get_model_config):
            with pytest.raises(InferenceServerException, match="is not loaded yet") as error:
                ask("digits")
            assert error.value.status() == "StatusCode.UNAVAILABLE"
            with pytest.raises(InferenceServerException) as error:
                ask("nobody_wants_it")
            assert error.value.status() == "StatusCode.NOT_FOUND"


def test_a_stopped_watcher_worker_or_dashboard_is_replaced_and_reported_and_a_lost_job_runs_again(up: Up):
    seen = last_event(up)
    before = {name: stop(up, name) for name in ("watch", "worker", "dashboard")}
    up.query(
        "INSERT INTO dashboard_job (id, kind, title, params, state, progress, step, log, error, result, cancel_requested,"
        " attempt, created_by_name, created_at, queued_at, started_at, heartbeat_at) VALUES (9000, 'inspect', 'lost', '{}',"
        " 'running', 0, '', '', '', '{}', 0, 0, 'test', '2026-01-01 00:00:00', '2026-01-01 00:00:00',"
        " '2026-01-01 00:00:00', '2026-01-01 00:00:00')"
    )
    for name, pid in before.items():
        wait_until(lambda name=name, pid=pid: pid_of(up, name) not in (0, pid), what=f"another {name}")
    for title in ("watcher", "worker", "dashboard"):
        sentence = f"The {title} was restarted, because it had not answered for {BOUND_S} s."
        wait_until(lambda sentence=sentence: ("stopped", sentence) in events(up, seen), what=sentence)
        wait_until(lambda title=title: any(f"The {title} is back" in text for _, text in events(up, seen)), what=title)
    row = "SELECT attempt, state FROM dashboard_job WHERE id = 9000"
    wait_until(lambda: up.query(row) == [(1, "failed")], 2 * PATIENCE_S, what="the lost job was run by the new worker")


def test_a_stopped_server_is_replaced_and_pages_answer_meanwhile(up: Up):
    seen = last_event(up)
    with httpx.Client(base_url=up.dashboard_url, follow_redirects=True, timeout=PATIENCE_S) as browser:
        sign_in(browser, up)
        before = stop(up, "server")
        wait_until(lambda: "does not answer" in browser.get("/servers/local/").text, what="pages say that it is down")
        for page in PAGES:
            assert browser.get(page).status_code == 200, page
    wait_until(lambda: server_state(up)[1] not in (None, before), what="another server")
    wait_until(lambda: models_are_ready(up), what="every model is back")
    reason = f"because it had not answered for {BOUND_S} s."
    sentence = f"The inference server was restarted, {reason}"
    wait_until(lambda: ("stopped", sentence) in events(up, seen), what=sentence)
