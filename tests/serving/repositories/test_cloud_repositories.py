"""--model-repository=s3://...: a real server follows a real S3 interface on loopback."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.model_factory import onnx_scale, pass_on_ensemble
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

pytestmark = pytest.mark.long
SECRETS = {"AWS_SECRET_ACCESS_KEY": "secret-of-the-bucket", "AWS_SESSION_TOKEN": "token-of-the-session"}
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "id-of-the-key", "AWS_DEFAULT_REGION": "us-east-1", **SECRETS}
POLL = ("--model-control-mode=poll", "--repository-poll-secs=0.1")
EXPLICIT = ("--model-control-mode=explicit", "--repository-poll-secs=0.1")


@pytest.fixture(scope="module")
def only_store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture
def store(only_store: ObjectStore) -> ObjectStore:
    only_store.empty()
    return only_store


def address(store: ObjectStore) -> str:
    return f"s3://127.0.0.1:{store.port}/{BUCKET}/production"


def serve(place: str, cache: Path, *flags: str, beside: tuple[Path, ...] = (), **options: Any) -> ServerProcess:
    """A server on a repository in the cloud and, `beside` it, others of this machine."""
    cache.mkdir(exist_ok=True)
    environment = {**CREDENTIALS, "HOME": str(cache), "AWS_EC2_METADATA_DISABLED": "true"}
    everything = (f"--repository-cache-folder={cache}", "--log-verbose=2", *flags)
    return ServerProcess(
        [*beside, place], *everything, environment=environment | options.pop("environment", {}), **options
    )


def scaled(server: ServerProcess, model: str = "scale") -> Any:
    """What the model makes of 1: its factor; the error where it does not serve."""
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}
    status, answer = server.post(f"/v2/models/{model}/infer", body)
    return answer["outputs"][0]["data"][0] if status == 200 else answer["error"]


def versions(server: ServerProcess, model: str = "scale") -> dict[str, str]:
    rows = server.post("/v2/repository/index")[1]
    return {row.get("version", ""): row.get("state", "") for row in rows if row["name"] == model}


def test_a_published_version_is_served_and_a_deleted_model_goes(store: ObjectStore, tmp_path: Path) -> None:
    first = onnx_scale(tmp_path / "made", factor=2.0)
    store.put_folder(first, "production/scale")
    store.put_folder(onnx_scale(tmp_path / "made", "other"), "production/other")
    with serve(address(store), tmp_path / "cache", *POLL) as server:
        assert scaled(server) == 2.0
        second = onnx_scale(tmp_path / "made", factor=3.0, version=2)
        store.put_folder(second / "2", "production/scale/2")
        wait_until(lambda: scaled(server) == 3.0, what="version 2")
        wait_until(lambda: versions(server) == {"1": "UNAVAILABLE", "2": "READY"}, what="the end of version 1")
        store.delete_folder(second, "production/scale")
        wait_until(lambda: isinstance(scaled(server), str), what="the deletion")
        assert not any(name in server.log for name in SECRETS.values())
        assert server.terminate() == 0
    assert list((tmp_path / "cache").glob("slipway-models-*")) == []


def test_a_repository_in_the_cloud_may_be_a_namespace(store: ObjectStore, tmp_path: Path) -> None:
    made, local = tmp_path / "made", tmp_path / "local"
    store.put_folder(onnx_scale(made, factor=3.0), "production/scale")
    pass_on_ensemble(made, "whole", "scale", max_batch_size=8)
    store.put_folder(made / "whole", "production/whole")
    store.put("production/whole/1/", b"")  # an empty folder
    onnx_scale(local, factor=2.0)
    with serve(address(store), tmp_path / "cache", *POLL, "--model-namespacing", beside=(local,)) as server:
        assert "ambiguity" in scaled(server)
        assert scaled(server, "whole") == 3.0
        assert f'namespace="{address(store)}"' in httpx.get(server.metrics_url, timeout=60).text
        shutil.rmtree(local / "scale")
        wait_until(lambda: scaled(server) == 3.0, what="the only one of the name")
        store.delete_folder(made / "scale", "production/scale")
        wait_until(lambda: "unloaded" in str(scaled(server)), what="the deletion")
        assert "in ensemble 'whole'" in scaled(server, "whole")


def test_a_half_written_upload_is_never_served(store: ObjectStore, tmp_path: Path) -> None:
    folder = onnx_scale(tmp_path / "made", factor=2.0)
    store.put_folder(folder, "production/scale")
    with serve(address(store), tmp_path / "cache", *POLL) as server:
        content = (onnx_scale(tmp_path / "made", factor=3.0, version=2) / "2" / "model.onnx").read_bytes()
        store.begin_upload("production/scale/2/model.onnx", content[: len(content) // 2])
        store.put_folder(onnx_scale(tmp_path / "made", "other"), "production/other")
        wait_until(lambda: scaled(server, "other") == 2.0, what="a model that was published later")
        assert scaled(server) == 2.0
        assert versions(server) == {"1": "READY"}


def test_serving_models_outlive_the_network_and_polling_resumes(store: ObjectStore, tmp_path: Path) -> None:
    folder = onnx_scale(tmp_path / "made", factor=2.0)
    store.put_folder(folder, "production/scale")
    with serve(address(store), tmp_path / "cache", *POLL) as server:
        store.stop()
        wait_until(lambda: "cannot be reached" in server.log, what="the trouble in the log")
        assert scaled(server) == 2.0
        store.start()
        wait_until(lambda: "has no model" in server.log or "does not exist" in server.log, what="an answer")
        assert scaled(server) == 2.0
        onnx_scale(tmp_path / "made", factor=3.0, version=2)
        store.put_folder(folder, "production/scale")
        wait_until(lambda: scaled(server) == 3.0, what="version 2")
        assert server.log.count("cannot be reached") == 1


def test_a_load_request_loads_the_newest_files(store: ObjectStore, tmp_path: Path) -> None:
    with serve(address(store), tmp_path / "cache", *EXPLICIT, "--repository-poll-secs=600") as server:
        assert server.post("/v2/repository/models/scale/load")[0] == 404
        store.put_folder(onnx_scale(tmp_path / "made", factor=2.0), "production/scale")
        assert server.post("/v2/repository/models/scale/load")[0] == 200
        assert scaled(server) == 2.0
        store.put_folder(onnx_scale(tmp_path / "made", factor=5.0), "production/scale")
        assert server.post("/v2/repository/models/scale/load")[0] == 200
        assert scaled(server) == 5.0
        store.stop()
        status, answer = server.post("/v2/repository/models/scale/load")
        assert (status, "cannot be reached" in answer["error"]) == (503, True)
        assert scaled(server) == 5.0


def test_the_copies_lie_where_tritons_variable_says(store: ObjectStore, tmp_path: Path) -> None:
    store.put_folder(onnx_scale(tmp_path / "made", factor=2.0), "production/scale")
    environment = {**CREDENTIALS, "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    environment["TRITON_AWS_MOUNT_DIRECTORY"] = str(tmp_path / "mounted")
    with ServerProcess([address(store)], environment=environment) as server:
        assert scaled(server) == 2.0
        assert list((tmp_path / "mounted").glob("slipway-models-*/**/scale/1/model.onnx"))


def test_the_index_names_models_of_the_bucket_before_they_are_loaded(store: ObjectStore, tmp_path: Path) -> None:
    with serve(address(store), tmp_path / "cache", *EXPLICIT) as server:
        store.put_folder(onnx_scale(tmp_path / "made"), "production/scale")
        wait_until(lambda: versions(server) == {"": ""}, what="the model in the index")


@pytest.mark.parametrize(
    ("place", "environment", "sentence"),
    [
        (
            "s3://127.0.0.1:{port}/no-bucket/models",
            {},
            "the bucket or folder of the s3 model repository does not exist",
        ),
        ("s3://127.0.0.1:1/bucket/models", {}, "the s3 model repository cannot be reached"),
        (
            "s3://127.0.0.1:{port}/my-models",
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
            "no valid credentials",
        ),
        ("gs://bucket/models", {}, "need the package gcsfs: pip install -r requirements/cloud.txt"),
        ("nosuch://bucket/models", {}, "no installed package reads 'nosuch://' addresses"),
    ],
)
def test_an_error_of_a_repository_is_one_sentence(
    store: ObjectStore, tmp_path: Path, place: str, environment: dict[str, str], sentence: str
) -> None:
    place = place.format(port=store.port)
    with serve(place, tmp_path / "cache", wait="", environment=environment) as server:
        assert server.process is not None
        assert server.process.wait(PATIENCE_S) == 1
        assert sentence in server.log
        assert "Traceback" not in server.log


def test_a_store_that_says_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"s3://127.0.0.1:{silent.getsockname()[1]}/bucket/models"
        with serve(place, tmp_path / "cache", "--exit-timeout-secs=1", wait="live") as server:
            connection, _ = silent.accept()
            with connection:
                assert server.terminate() == 0


@pytest.mark.parametrize("mode", ["poll", "none", "explicit"])
def test_a_server_is_not_ready_before_its_bucket_has_been_listed(store: ObjectStore, tmp_path: Path, mode: str) -> None:
    store.stop()
    flags = (f"--model-control-mode={mode}", "--repository-poll-secs=0.2", "--exit-on-error=false")
    wanted = ("--load-model=scale",) if mode == "explicit" else ()
    with serve(address(store), tmp_path / "cache", *flags, *wanted, wait="live") as server:
        wait_until(lambda: "cannot be reached" in server.log, what="the trouble in the log")
        assert server.get("/v2/health/ready")[0] == 400
        store.start()
        store.put_folder(onnx_scale(tmp_path / "made", factor=2.0), "production/scale")
        wait_until(lambda: server.get("/v2/health/ready")[0] == 200, what="readiness")
        if mode != "explicit":  # an empty bucket may have been listed before the model came
            wait_until(lambda: mode == "none" or scaled(server) == 2.0, what="the model")


@pytest.mark.parametrize("mode", ["poll", "none"])
def test_a_prefix_without_a_model_is_no_complete_listing(store: ObjectStore, tmp_path: Path, mode: str) -> None:
    store.put("production/README", b"no model")
    flags = (f"--model-control-mode={mode}", "--repository-poll-secs=0.2", "--exit-on-error=false")
    with serve(address(store), tmp_path / "cache", *flags, wait="live") as server:
        wait_until(lambda: "has no model: check its address" in server.log, what="the trouble in the log")
        # The log has the sentence before the start is complete.
        wait_until(
            lambda: "has no model: check its address" in str(server.get("/v2/health/ready")[1]), what="the reason"
        )
        assert server.get("/v2/health/ready")[0] == 400


def test_an_empty_list_unloads_nothing_until_a_person_confirms_it(store: ObjectStore, tmp_path: Path) -> None:
    folder = onnx_scale(tmp_path / "made", factor=2.0)
    store.put_folder(folder, "production/scale")
    with serve(address(store), tmp_path / "cache", *POLL) as server:
        store.delete_folder(folder, "production/scale")
        metric = f'slipway_repository_listed{{repository="{address(store)}"}} 0'
        wait_until(lambda: metric in httpx.get(server.metrics_url, timeout=60).text, what="the trouble in the metrics")
        assert scaled(server) == 2.0
        assert server.get("/v2/health/ready")[0] == 200
        assert server.post("/v2/slipway/repository/unloads") == (200, {"models": ["scale"]})
        wait_until(lambda: isinstance(scaled(server), str), what="the unload")


@pytest.mark.parametrize("mode", ["poll", "explicit"])
def test_a_server_that_starts_while_its_store_is_down_serves_what_is_cached(
    store: ObjectStore, tmp_path: Path, mode: str
) -> None:
    folder = onnx_scale(tmp_path / "made", factor=2.0)
    store.put_folder(folder, "production/scale")
    flags = (f"--model-control-mode={mode}", "--repository-poll-secs=0.1")
    wanted = ("--load-model=*",) if mode == "explicit" else ()
    with FaultyStore(store.endpoint) as proxy:
        place = f"s3://127.0.0.1:{proxy.port}/{BUCKET}/production"
        cached = f'slipway_repository_from_cache{{repository="{place}"}} '
        with serve(place, tmp_path / "cache", *flags, *wanted) as first:
            assert scaled(first) == 2.0
            proxy.fetched = 0
            with serve(place, tmp_path / "cache", *flags, *wanted) as second:
                assert scaled(second) == 2.0
                assert proxy.fetched == 0
                first.kill()
                proxy.fault = "busy"
                with serve(place, tmp_path / "cache", *flags, *wanted) as third:
                    assert scaled(third) == 2.0
                    assert "cannot be reached (OSError); 1 models are those of the cache" in third.log
                    assert f"{cached}1" in httpx.get(third.metrics_url, timeout=60).text
                    proxy.fault = ""
                    wait_until(lambda: f"{cached}0" in httpx.get(third.metrics_url, timeout=60).text, what="the store")
                    onnx_scale(tmp_path / "made", factor=3.0)
                    store.put_folder(folder, "production/scale")
                    if mode == "explicit":
                        assert third.post("/v2/repository/models/scale/load")[0] == 200
                    wait_until(lambda: scaled(third) == 3.0, what="the new files")


def test_a_cache_that_lacks_a_model_does_not_make_the_server_ready(store: ObjectStore, tmp_path: Path) -> None:
    for name in ("scale", "other"):
        store.put_folder(onnx_scale(tmp_path / "made", name, factor=2.0), f"production/{name}")
    with serve(address(store), tmp_path / "cache", *POLL) as server:
        assert scaled(server) == 2.0
    [kept] = (tmp_path / "cache" / "listed").glob("*/other")
    kept.unlink()
    store.stop()
    with serve(address(store), tmp_path / "cache", *POLL, "--exit-on-error=false", wait="live") as server:
        wait_until(lambda: scaled(server) == 2.0, what="the model that is cached")
        wait_until(lambda: "models are those of the cache" in str(server.get("/v2/health/ready")[1]), what="the reason")
        assert server.get("/v2/health/ready")[0] == 400


def test_two_empty_repositories_of_a_namespace_are_accepted_together(store: ObjectStore, tmp_path: Path) -> None:
    folders = {name: onnx_scale(tmp_path / "made", name) for name in ("a", "b")}
    for name, folder in folders.items():
        store.put_folder(folder, f"{name}/{name}")
    places = [f"s3://127.0.0.1:{store.port}/{BUCKET}/{name}" for name in folders]
    with serve(places[0], tmp_path / "cache", *POLL, f"--model-repository={places[1]}") as server:
        for name, folder in folders.items():
            store.delete_folder(folder, f"{name}/{name}")
        lines = [f'slipway_repository_listed{{repository="{place}"}} 0' for place in places]
        for line in lines:
            wait_until(lambda text=line: text in httpx.get(server.metrics_url, timeout=60).text, what=line)
        assert server.post("/v2/slipway/repository/unloads") == (200, {"models": ["a", "b"]})
        wait_until(lambda: not any("READY" in versions(server, name).values() for name in folders), what="the unloads")


@pytest.mark.parametrize("despite", [False, True])
def test_a_bad_new_model_takes_readiness_away_unless_told_otherwise(
    store: ObjectStore, tmp_path: Path, despite: bool
) -> None:
    store.put_folder(onnx_scale(tmp_path / "made", factor=2.0), "production/scale")
    with serve(address(store), tmp_path / "cache", *POLL, f"--ready-despite-new-models={despite}".lower()) as server:
        bad = onnx_scale(tmp_path / "made", "bad")
        (bad / "1" / "model.onnx").write_bytes(b"no model")
        store.put_folder(bad, "production/bad")
        wait_until(lambda: "UNAVAILABLE" in versions(server, "bad").values(), what="the bad model")
        wait_until(lambda: server.get("/v2/health/ready")[0] == (200 if despite else 400), what="what readiness says")
        if not despite:
            assert (
                server.get("/v2/health/ready")[1]["error"] == "the server is not ready: these models do not serve: bad"
            )
        new = {row["name"]: row.get("new", False) for row in server.post("/v2/repository/index")[1]}
        assert new == {"scale": False, "bad": True}
        assert 'slipway_server_unready_models{kind="new"} 1' in httpx.get(server.metrics_url, timeout=60).text
        assert scaled(server) == 2.0
        store.put_folder(onnx_scale(tmp_path / "made", "bad"), "production/bad")
        wait_until(lambda: scaled(server, "bad") == 2.0, what="the mended model")
        wait_until(lambda: server.get("/v2/health/ready")[0] == 200, what="readiness")
