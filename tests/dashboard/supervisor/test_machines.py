"""Machines with data folders of their own, one PostgreSQL and one shared folder; each runs a part of `up`."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.dashboard.conftest import relu_bytes
from tests.dashboard.supervisor.test_bad_data_folder import DAPHNE, WATCH, WORKER, is_one_sentence
from tests.dashboard.supervisor.test_up import sign_in
from tests.support import engines
from tests.support.ports import free_ports
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until
from tests.support.up_process import Up

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(engines.MISSING), reason=f"needs Debian's packages {', '.join(engines.MISSING)}"),
]
KEYS = {f"SLIPWAY_{name}_KEY": hashlib.sha256(name.encode()).hexdigest() for name in ("SECRET", "CONTROL", "INFER")}
PASSWORD = "a long password of machines"
X = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [-1.0, 2.0, -3.0, 4.0]}]}


class Machines:
    """One installation. `first` and `second` run a web process each, `worker` a worker, `serving` watch and server."""

    def __init__(self, root: Path, database: str) -> None:
        self.root = root
        self.given = {
            **KEYS,
            "DATABASE_URL": database,
            "SLIPWAY_SHARED": str(root / "shared"),
            "SLIPWAY_ADMIN_PASSWORD": PASSWORD,
            "SLIPWAY_REQUIRE_TOKENS": "1",
            "SERVING_COMPILED": "no",
        }
        ports = free_ports(4)
        # Only the web processes listen on the first port, and the addresses of the server are the same for all.
        self.serving, self.first = (Up(root / name, ports, **self.given) for name in ("serving", "first"))
        self.second, self.worker = (Up(root / name, **self.given) for name in ("second", "worker"))
        self.all = (self.serving, self.first, self.second, self.worker)

    def start(self) -> None:
        """Start all at once, on an empty database."""
        self.serving.start("--only", "watch,server", wait=False)
        self.first.start("--only", "web", wait=False)
        self.second.start("--only", "web", wait=False)
        self.worker.start("--only=worker", wait=False)
        wait_until(lambda: all(up.is_up() for up in self.all), START_TIMEOUT_S, "all machines")

    def run(self, name: str, *command: str, **environment: str) -> tuple[int, str]:
        """Run a command on another machine, and return its exit status and output."""
        up = Up(self.root / name, **{**self.given, **environment})
        up.close()
        done = subprocess.run(
            [sys.executable, *command],
            cwd=up.root,
            env=up.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, postgres: engines.Engine) -> Iterator[Machines]:
    made = Machines(tmp_path_factory.mktemp("machines"), engines.new_database(postgres.port, "installation"))
    try:
        made.start()
        yield made
    finally:
        for up in reversed(made.all):
            up.close()


def client_of(up: Up) -> httpx.Client:
    return httpx.Client(base_url=up.dashboard_url, trust_env=False, timeout=PATIENCE_S)


def test_an_upload_whose_chunks_meet_two_machines_is_served_by_a_third(machines: Machines) -> None:
    content = relu_bytes()
    half = len(content) // 2
    asked = {"model_name": "spread", "files": [{"path": "model.onnx", "size": len(content)}]}
    with client_of(machines.first) as first, client_of(machines.second) as second:
        assert sign_in(first, machines.first, PASSWORD).status_code == 302
        second.cookies = first.cookies  # a session of one machine is one of the other
        for client in (first, second):
            client.headers["X-CSRFToken"] = first.cookies["slipway_csrf"]
        upload = f"/api/v1/uploads/{first.post('/api/v1/uploads', json=asked).json()['id']}"
        for client, offset, chunk in ((second, 0, content[:half]), (first, half, content[half:])):
            binary = {"Content-Type": "application/octet-stream"}
            sent = client.put(f"{upload}/files/0?offset={offset}", content=chunk, headers=binary)
            assert sent.status_code == 200, sent.text
        assert second.post(f"{upload}/complete").status_code == 202
        wait_until(lambda: first.get(upload).json()["state"] == "inspected", what="the worker's inspection")
        published = first.post(f"{upload}/publish", json={"load": True})
        assert published.status_code in (201, 202), published.text
        made = second.post("/api/v1/tokens", json={"name": "t", "rights": ["infer"]})
        assert made.status_code == 201, made.text
    headers = {"Authorization": f"Bearer {made.json()['token']}"}
    address = f"{machines.serving.http_url}/v2/models/spread/infer"

    def answer() -> httpx.Response:
        return httpx.post(address, json=X, headers=headers, trust_env=False, timeout=PATIENCE_S)

    wait_until(lambda: answer().status_code == 200, what="the answer of the new model")
    assert answer().json()["outputs"][0]["data"] == [0.0, 2.0, 0.0, 4.0]
    assert not any((up.data / "models").exists() for up in machines.all)


def test_each_machine_runs_what_it_was_asked_for(machines: Machines) -> None:
    words = ("daphne", "watch", "celery", "serving")
    found = [[word for word in words if up.running(word)] for up in machines.all]
    assert found == [["watch", "serving"], ["daphne"], ["daphne"], ["celery"]]


@pytest.mark.parametrize(
    ("wrong", "command", "told"),
    [
        ({"SLIPWAY_CONTROL_KEY": "x" * 40}, DAPHNE, "set SLIPWAY_CONTROL_KEY to the same values on each machine"),
        (
            {"SLIPWAY_SECRET_KEY": "", "SLIPWAY_INFER_KEY": ""},
            WATCH,
            "set SLIPWAY_SECRET_KEY and SLIPWAY_INFER_KEY to the same",
        ),
        ({"SLIPWAY_SHARED": ""}, WORKER, "set SLIPWAY_SHARED to the folder that they share"),
        ({"DATABASE_URL": ""}, None, "The shared folder belongs to another database: set DATABASE_URL"),
    ],
)
def test_a_machine_of_another_installation_is_refused(
    machines: Machines, wrong: dict[str, str], command: tuple[str, ...] | None, told: str
) -> None:
    name = f"odd-{hashlib.sha256(told.encode()).hexdigest()[:8]}"
    is_one_sentence(machines.run(name, "manage.py", "up", "--only", "web", **wrong), told)
    if command is not None:  # all of them call the same check
        is_one_sentence(machines.run(name, *command, **wrong), told)


def test_new_keys_and_a_moved_folder_are_accepted_by_a_command(machines: Machines) -> None:
    new = {"SLIPWAY_CONTROL_KEY": "y" * 40, "SLIPWAY_SHARED": str(machines.root / "moved")}
    os.mkdir(machines.root / "moved")
    status, said = machines.run("other", "manage.py", "accept", "folder", **new)
    assert status == 1
    assert "set SLIPWAY_CONTROL_KEY to the same values" in said
    for what in ("keys", "folder"):
        assert machines.run("other", "manage.py", "accept", what, **new)[0] == 0
    is_one_sentence(machines.run("other", *WATCH), "set SLIPWAY_SHARED")
    assert machines.run("other", "manage.py", "accept", "folder")[0] == 1, "the earlier key is refused now"


def test_parts_that_do_not_exist_are_named(machines: Machines) -> None:
    status, said = machines.run("other", "manage.py", "up", "--only", "web,serving")
    assert status != 0
    assert "expected some of web,worker,watch,server, got 'web,serving'" in said
