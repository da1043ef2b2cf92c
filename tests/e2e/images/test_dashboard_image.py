"""The dashboard's image in a pod: its parts in containers of their own on one PostgreSQL, and all in one container."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.e2e.images.pods import Container, Pod, owned
from tests.support import engines, model_factory
from tests.support.serving_process import PATIENCE_S, wait_until

GRACE_S = 60.0
START_S = 600.0
PASSWORD = "a long password of a test"
KEYS = {name: letter * 40 for letter, name in zip("abc", ("SECRET", "CONTROL", "INFER"), strict=True)}
ENVIRONMENT = {
    "SLIPWAY_ADMIN_PASSWORD": PASSWORD,
    "SLIPWAY_ALLOWED_HOSTS": "*",
    **{f"SLIPWAY_{name}_KEY": key for name, key in KEYS.items()},
}


def is_ready(pod: Pod, *containers: Container) -> bool:
    assert all(container.runs() for container in containers)
    try:
        return httpx.get(f"http://{pod.address}:9000/readyz", timeout=1).status_code == 200
    except httpx.HTTPError:
        return False


def inspected(pod: Pod, content: bytes) -> dict[str, Any]:
    """Sign in, upload a model, and return its upload once the worker has inspected it in its sandbox."""
    address = f"http://{pod.address}:9000"
    with httpx.Client(base_url=address, follow_redirects=True, timeout=PATIENCE_S) as client:
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', client.get("/sign-in").text)
        assert token is not None
        client.headers["Referer"] = f"{address}/sign-in"
        form = {"username": "admin", "password": PASSWORD, "csrfmiddlewaretoken": token[1]}
        client.post("/sign-in", data=form).raise_for_status()
        client.headers["X-CSRFToken"] = client.cookies["slipway_csrf"]
        files = [{"path": "model.onnx", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}]
        made = client.post("/api/v1/uploads", json={"model_name": "scale", "files": files}).raise_for_status().json()
        path = f"/api/v1/uploads/{made['id']}"
        client.put(f"{path}/files/0", params={"offset": 0}, content=content).raise_for_status()
        client.post(f"{path}/complete").raise_for_status()

        def ended() -> Any:
            found = client.get(path).json()
            return found if found["state"] in ("inspected", "failed") else None

        found: dict[str, Any] = wait_until(ended, START_S, "the end of the inspection")
        return found


@pytest.fixture
def model(tmp_path: Path) -> bytes:
    return (model_factory.onnx_scale(tmp_path / "models") / "1" / "model.onnx").read_bytes()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[int]:
    """A PostgreSQL that pods reach. Yield its port."""
    rules = Path("/tmp", f"{tmp_path.name}-hba.conf")
    rules.write_text("host all all 0.0.0.0/0 trust\n")
    try:
        with engines.postgres("listen_addresses=*", f"hba_file={rules}") as engine:
            yield engine.port
    finally:
        rules.unlink()


def test_web_worker_and_watch_run_in_containers_of_their_own(tmp_path: Path, model: bytes, database: int) -> None:
    with Pod() as pod, ExitStack() as stack:
        address = f"postgres://slipway@{pod.host}:{database}/postgres"
        shared, parts = owned(tmp_path / "shared"), {}
        for part in ("web", "worker", "watch"):
            volumes = {"/data": owned(tmp_path / part), "/shared": shared, "/tmp": None}
            parts[part] = stack.enter_context(
                Container(
                    pod,
                    "slipway-dashboard",
                    *("up", "--only", part),
                    environment={**ENVIRONMENT, "DATABASE_URL": address},
                    volumes=volumes,
                    memory=1 << 30,
                )
            )
            # The first one makes the tables. The others wait two minutes for that, and end: a kubelet would start them again.
            wait_until(lambda: is_ready(pod, *parts.values()), START_S, "readiness")
        assert inspected(pod, model)["state"] == "inspected"

        def beating() -> bool:
            with psycopg.connect(f"postgres://slipway@127.0.0.1:{database}/postgres") as session:
                beats = session.execute(
                    "SELECT DISTINCT name FROM dashboard_heartbeat WHERE beat_at > now() - interval '30 s'"
                )
                return {"worker", "watch"} <= {name for (name,) in beats}

        wait_until(beating, what="heartbeats of the worker and the watcher")
        for name, part in parts.items():
            assert part.runs()
            assert part.run("touch", "/slipway/here").returncode == 1
            assert part.status()["CapEff"] == "0" * 16
            print(f"{name}: at most {part.memory_peak() >> 20} MiB")
        for part in parts.values():
            assert part.terminate(GRACE_S) == 0, part.log
        assert {path.name for path in shared.iterdir()} >= {"models", "installation"}


def test_one_container_has_all_parts_on_its_own_volume(tmp_path: Path, model: bytes) -> None:
    volumes = {"/data": owned(tmp_path / "data"), "/shared": owned(tmp_path / "shared"), "/tmp": None}
    with Pod() as pod, Container(pod, "slipway-dashboard", environment=ENVIRONMENT, volumes=volumes) as dashboard:
        wait_until(lambda: is_ready(pod, dashboard), START_S, "readiness")
        assert inspected(pod, model)["state"] == "inspected"
        assert dashboard.terminate(GRACE_S) == 0, dashboard.log
    assert (tmp_path / "data" / "db.sqlite3").exists()
