"""Versions of registered models of MLflow, and objects of buckets. MLflow is not installed for the tests: a double answers as
its REST documentation says."""

import json
import posixpath
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from dashboard.access.authorisation import Actor
from dashboard.jobs.runner import job_run
from dashboard.models import Job, Upload
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, NotFound, Unavailable
from dashboard.uploads.fetching import source_title, upload_fetch
from dashboard.uploads.selectors import upload_get
from dashboard.uploads.sources.base import Source
from dashboard.uploads.sources.bucket import Bucket
from dashboard.uploads.sources.mlflow import MlflowRegistry
from dashboard.uploads.sources.triton import TritonRepository
from tests.dashboard.conftest import relu_bytes
from tests.support.object_store import BUCKET, ObjectStore

TOKEN = "a-secret-token"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"


class DoubleOfMlflow:
    """A tracking server with one registered model of one version, 3, whose alias is `champion`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.uri = "mlflow-artifacts:/1/models/m-1/artifacts"
        self.status = "READY"
        self.artifacts: dict[str, bytes] = {}
        self.keys: list[str] = []

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        """Return the status, and JSON or the bytes of an artefact."""
        if path.startswith(f"{ARTIFACTS}/"):
            found = self.artifacts.get(unquote(path.removeprefix(f"{ARTIFACTS}/")))
            return (200, found) if found is not None else (404, {"error_code": "RESOURCE_DOES_NOT_EXIST"})
        if path == ARTIFACTS:
            return 200, {"files": self.rows(query["path"])}
        if query.get("name") != "fraud":
            return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST"}
        if path.endswith("/model-versions/get-download-uri"):
            return 200, {"artifact_uri": self.uri}
        known = query.get("version") == "3" or query.get("alias") == "champion"
        row = {"model_version": {"name": "fraud", "version": "3", "status": self.status}}
        return (200, row) if known else (400, {"error_code": "INVALID_PARAMETER_VALUE"})

    def rows(self, root: str) -> list[dict[str, Any]]:
        below = {
            name.removeprefix(f"{root}/"): one for name, one in self.artifacts.items() if name.startswith(f"{root}/")
        }
        folders = {name.partition("/")[0] for name in below if "/" in name}
        files = [
            {"path": name, "is_dir": False, "file_size": len(one)} for name, one in below.items() if "/" not in name
        ]
        return [*({"path": name, "is_dir": True} for name in folders), *files]


@contextmanager
def double_of_mlflow() -> Iterator[DoubleOfMlflow]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            double.keys.append(self.headers.get("Authorization", ""))
            status, body = (401, {})
            if double.keys[-1] == f"Bearer {TOKEN}":
                status, body = double.answer(parts.path, dict(parse_qsl(parts.query)))
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.end_headers()  # like the real one, it streams without Content-Length
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    double = DoubleOfMlflow(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def mlflow(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[DoubleOfMlflow]:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    with double_of_mlflow() as double:
        settings.SOURCE_MLFLOW = double.url
        root = "1/models/m-1/artifacts"
        double.artifacts = {
            posixpath.join(root, "MLmodel"): b"flavors: {}",
            posixpath.join(root, "model.onnx"): relu_bytes(),
            posixpath.join(root, "data/labels one.txt"): b"cat",
        }
        yield double


def contents(source: Source, **asked: str) -> dict[str, bytes]:
    place = source.located(asked)
    return {row.name: b"".join(source.read(place, row, 0)) for row in source.files(place)}


# -- MLflow ------------------------------------------------------------------------------------------------------------
def test_a_version_or_an_alias_is_read_through_the_proxy_of_artefacts(mlflow: DoubleOfMlflow) -> None:
    wanted = {"MLmodel": b"flavors: {}", "data/labels one.txt": b"cat", "model.onnx": relu_bytes()}
    for version in ("3", "champion", "@champion"):
        assert contents(MlflowRegistry(), model="fraud", version=version) == wanted
    mlflow.uri = f"{mlflow.url}{ARTIFACTS}/1/models/m-1/artifacts"
    assert contents(MlflowRegistry(), model="fraud", version="3") == wanted
    for model, version in (("fraud", "4"), ("fraud", "none"), ("other", "3")):
        with pytest.raises(NotFound, match=f"no version or alias '{version}' of a model '{model}'"):
            MlflowRegistry().located({"model": model, "version": version})
    mlflow.status = "PENDING_REGISTRATION"
    with pytest.raises(Invalid, match="version 3 of 'fraud' is not ready"):
        MlflowRegistry().located({"model": "fraud", "version": "3"})


@pytest.mark.django_db
def test_the_token_is_nowhere_but_in_the_requests(mlflow: DoubleOfMlflow, actor: Actor, unqueued: list[int]) -> None:
    source = {"kind": "mlflow", "model": "fraud", "version": "champion"}
    upload = upload_fetch(actor=actor, model_name="", source=source)
    job_run(job_id=upload.job_id or 0)
    upload = upload_get(upload.pk)
    assert (upload.state, upload.model_name, upload.received_bytes) == ("received", "fraud", upload.size_bytes)
    assert source_title(upload) == "MLflow: fraud, version 3"
    assert set(mlflow.keys) == {f"Bearer {TOKEN}"}
    rows = [*Upload.objects.values(), *Job.objects.values(), *upload.files.values()]
    assert TOKEN not in str(rows)


def test_what_the_server_says_is_not_trusted(
    mlflow: DoubleOfMlflow, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"model": "fraud", "version": "3"}
    for uri, error, sentence in (
        ("dbfs:/models/1", Invalid, "at a 'dbfs:' address"),
        ("mlflow-artifacts://evil.example/1", Forbidden, "not the allowed MLflow server"),
        ("mlflow-artifacts:/../secret", Invalid, "unsafe path"),
    ):
        mlflow.uri = uri
        with pytest.raises(error, match=sentence):
            MlflowRegistry().located(asked)
    for uri, setting in (
        ("s3://bucket/models", "BUCKETS"),
        ("wasbs://models@account.blob.core.windows.net/1", "BUCKETS"),
        ("/srv/mlruns/1", "FOLDERS"),
        ("file:///srv/mlruns/1", "FOLDERS"),
    ):
        mlflow.uri = uri
        with pytest.raises(Forbidden, match=f"SLIPWAY_SOURCE_{setting}"):
            MlflowRegistry().files(MlflowRegistry().located(asked))
    settings.SOURCE_FOLDERS = [tmp_path]
    (tmp_path / "runs" / "1").mkdir(parents=True)
    (tmp_path / "runs" / "1" / "model.onnx").write_bytes(b"local")
    mlflow.uri = (tmp_path / "runs" / "1").as_uri()
    assert contents(MlflowRegistry(), **asked) == {"model.onnx": b"local"}
    mlflow.uri = "mlflow-artifacts:/bad"
    for row in ({"path": "..", "is_dir": True}, {"path": "a%2f..", "file_size": 1}, {"path": "a"}, {"path": ""}):
        monkeypatch.setattr(mlflow, "rows", lambda root, row=row: [row])
        with pytest.raises(Invalid):
            contents(MlflowRegistry(), **asked)
    monkeypatch.setattr(mlflow, "rows", lambda root: [{"path": "deeper", "is_dir": True}])
    monkeypatch.setattr("dashboard.uploads.sources.mlflow._MOST_FOLDERS", 5)
    with pytest.raises(Invalid, match="more than 5 folders"):
        contents(MlflowRegistry(), **asked)
    monkeypatch.setattr("dashboard.uploads.sources.mlflow._LISTING_S", -1.0)
    with pytest.raises(Unavailable, match="took longer"):
        contents(MlflowRegistry(), **asked)


def test_a_wrong_token_and_a_wrong_server_are_told(
    mlflow: DoubleOfMlflow, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"model": "fraud", "version": "3"}
    monkeypatch.setattr(mlflow, "answer", lambda path, query: (200, b"<html>"))
    with pytest.raises(Unavailable, match="is it a tracking server"):
        MlflowRegistry().located(asked)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "olga")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    with pytest.raises(Forbidden, match="refuses access") as refused:
        MlflowRegistry().located(asked)
    assert mlflow.keys[-1] == "Basic b2xnYTpzZWNyZXQ="
    assert "secret" not in str(refused.value)


# -- buckets -----------------------------------------------------------------------------------------------------------
def test_objects_below_an_allowed_prefix_are_read_from_any_offset(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with ObjectStore() as store:
        prefix = f"s3://127.0.0.1:{store.port}/{BUCKET}/models"
        settings.SOURCE_BUCKETS = [prefix]
        store.put("models/relu/config.pbtxt", b"config")
        store.put("models/relu/1/model.onnx", b"one")
        store.put("models/relu/2/model.onnx", b"0123456789")
        store.put("other/model.onnx", b"other")
        assert contents(Bucket(), address=f"{prefix}/relu/2") == {"model.onnx": b"0123456789"}
        assert contents(Bucket(), address=f"{prefix}/relu/1/model.onnx") == {"model.onnx": b"one"}
        assert contents(TritonRepository(), address=f"{prefix}/relu") == {
            "2/model.onnx": b"0123456789",
            "config.pbtxt": b"config",
        }
        place = {"address": f"{prefix}/relu/2"}
        [row] = Bucket().files(place)
        assert b"".join(Bucket().read(place, row, 4)) == b"456789"
        store.put("models/relu/2/model.onnx", b"9876543210")
        with pytest.raises(Conflict, match="was changed"):
            list(Bucket().read(place, row, 4))
        store.delete("models/relu/2/model.onnx")
        with pytest.raises(Conflict, match="was removed"):
            list(Bucket().read(place, row, 4))
        for address in (f"{prefix}/../other", f"{prefix}2", f"s3://127.0.0.1:{store.port}/{BUCKET}/other"):
            with pytest.raises(Forbidden, match="SLIPWAY_SOURCE_BUCKETS"):
                Bucket().files({"address": address})
        with pytest.raises(NotFound):
            Bucket().files({"address": f"{prefix}/none"})
