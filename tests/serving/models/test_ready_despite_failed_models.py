"""--ready-despite-failed-models: a few models that fail at the start do not keep a real server from being ready."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.model_factory import onnx_scale, pass_on_ensemble
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.serving_process import ServerProcess, wait_until

FLAGS = ("--model-control-mode=poll", "--repository-poll-secs=0.1", "--exit-on-error=false")
UNREADY = "the server is not ready: these models do not serve: "


class Repository:
    """A repository of scale models: a folder, or a bucket with the same content."""

    def __init__(self, folder: Path, store: ObjectStore | None = None) -> None:
        self._store = store
        self._models, self._made = folder / "models", folder / "made"
        self._models.mkdir()
        self.place: Any = self._models if store is None else f"s3://127.0.0.1:{store.port}/{BUCKET}/models"

    def put(self, *names: str, good: bool) -> None:
        """Write models, or replace them. One that is not good cannot be loaded."""
        for name in names:
            shutil.rmtree(self._made / name, ignore_errors=True)
            folder = onnx_scale(self._made, name)
            if not good:
                (folder / "1" / "model.onnx").write_bytes(b"no model")
            if self._store is not None:
                self._store.put_folder(folder, f"models/{name}")
            else:
                self.delete(name)
                shutil.move(folder, self._models / name)

    def put_ensemble(self, name: str, step: str) -> None:
        pass_on_ensemble(self._models, name, step)

    def delete(self, name: str) -> None:
        if self._store is not None:
            self._store.delete_folder(self._made / name, f"models/{name}")
        elif (self._models / name).exists():
            (self._models / name).rename(self._made / f"{name} deleted")  # at once, so that no poll sees a part of it
            shutil.rmtree(self._made / f"{name} deleted")


@pytest.fixture
def models(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.long)])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Repository]:
    if request.param == "folder":
        yield Repository(tmp_path)
    else:
        with ObjectStore() as store:
            yield Repository(tmp_path, store)


def serve(models: Repository, cache: Path, *flags: str) -> ServerProcess:
    """Start a server, and return when it lives. Its models may still be loading."""
    credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    everything = (f"--repository-cache-folder={cache}", *FLAGS, *flags)
    return ServerProcess([models.place], *everything, wait="live", environment=credentials)


def readiness(server: ServerProcess) -> tuple[int, Any]:
    """What readiness says once the models were loaded: the status, and the reason or the models that do not serve."""

    def said() -> tuple[int, Any] | None:
        status, body = server.get("/v2/health/ready")
        error = body["error"] if status == 400 else ""
        started = "has not loaded its models yet" not in error and "has not been listed" not in error
        return (status, error or (body and body["unready_models"])) if started else None

    return wait_until(said, what="the end of the start")  # type: ignore[no-any-return]


def becomes(server: ServerProcess, status: int, said: Any) -> None:
    wait_until(lambda: readiness(server) == (status, said), what=f"{status}, {said}")


def rows(server: ServerProcess) -> dict[str, tuple[str, bool]]:
    """model -> its state in the index, and whether its last load failed"""
    return {row["name"]: (row["state"], row["failed"]) for row in server.post("/v2/repository/index")[1]}


def unready_counts(server: ServerProcess) -> dict[str, int]:
    """kind -> the models that do not serve, as /metrics says"""
    page = httpx.get(server.metrics_url, timeout=60).text
    lines = [line for line in page.splitlines() if line.startswith("slipway_server_unready_models{")]
    return {line.split('"')[1]: int(line.split()[1]) for line in lines}


def test_readiness_follows_the_models_that_fail_and_are_mended(anywhere: Repository, tmp_path: Path) -> None:
    anywhere.put("a", "b", good=True)
    anywhere.put("bad1", "bad2", "bad3", good=False)
    with serve(anywhere, tmp_path / "cache", "--ready-despite-failed-models=20%") as server:
        assert readiness(server) == (400, UNREADY + "bad1, bad2, bad3")
        assert unready_counts(server) == {"expected": 0, "failed_at_start": 3, "new": 0}
        anywhere.put("bad2", "bad3", good=True)
        becomes(server, 200, ["bad1"])
        assert rows(server)["bad1"] == ("UNAVAILABLE", True)
        assert unready_counts(server) == {"expected": 0, "failed_at_start": 1, "new": 0}
        assert "slipway_server_ready 1" in httpx.get(server.metrics_url, timeout=60).text
        anywhere.delete("a")
        wait_until(lambda: rows(server).get("a", ("",))[0] != "READY", what="the deletion")
        anywhere.put("a", good=False)
        becomes(server, 400, UNREADY + "a")  # it has served
        assert unready_counts(server) == {"expected": 1, "failed_at_start": 1, "new": 0}
        anywhere.put("a", "bad1", good=True)
        becomes(server, 200, b"")
        assert unready_counts(server) == {"expected": 0, "failed_at_start": 0, "new": 0}


def test_a_server_of_which_no_model_serves_is_not_ready(models: Repository, tmp_path: Path) -> None:
    models.put("only", good=False)
    with serve(models, tmp_path / "cache", "--ready-despite-failed-models=100%") as server:
        assert readiness(server) == (400, UNREADY + "only")
        models.put("other", good=True)
        becomes(server, 200, ["only"])
        models.delete("other")
        becomes(server, 400, UNREADY + "only")
        models.delete("only")
        becomes(server, 200, b"")


@pytest.mark.parametrize(("flag", "status"), [("", 400), ("2", 200), ("50%", 400), ("67%", 200)])
def test_an_ensemble_fails_with_its_step(models: Repository, tmp_path: Path, flag: str, status: int) -> None:
    models.put("good", good=True)
    models.put("step", good=False)
    models.put_ensemble("whole", "step")
    flags = [f"--ready-despite-failed-models={flag}"] if flag else []
    with serve(models, tmp_path / "cache", *flags) as server:
        names = ["step", "whole"]
        assert readiness(server) == (status, names if status == 200 else UNREADY + ", ".join(names))


def test_readiness_does_not_flicker_while_loads_are_tried_again(models: Repository, tmp_path: Path) -> None:
    models.put("good", good=True)
    models.put("bad", good=False)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--ready-despite-failed-models=1")
    with serve(models, tmp_path / "cache", *flags) as server:
        assert readiness(server) == (200, ["bad"])
        for _ in range(5):
            assert server.post("/v2/repository/models/bad/load")[0] == 400
            assert readiness(server) == (200, ["bad"])
        assert server.post("/v2/repository/models/good/unload")[0] == 200
        models.put("good", good=False)
        assert server.post("/v2/repository/models/good/load")[0] == 400
        assert readiness(server) == (400, UNREADY + "bad, good")  # no model serves
        models.put("bad", good=True)
        assert server.post("/v2/repository/models/bad/load")[0] == 200
        assert readiness(server) == (400, UNREADY + "good")  # it has served
