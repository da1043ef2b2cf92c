"""A release goes to a real registry as an artefact, and comes back from it as an upload."""

import base64
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.exports import sending
from dashboard.exports.sending import release_export
from dashboard.jobs.runner import job_run
from dashboard.models import AuditEntry, Job, Release, Version
from dashboard.releases.storage import managed_repository
from dashboard.shared.exceptions import Forbidden, Invalid, NotFound
from dashboard.uploads import fetching
from dashboard.uploads.fetching import upload_fetch
from dashboard.uploads.selectors import upload_get
from dashboard.uploads.sources.registry import OciRegistry
from dashboard.uploads.sources.registry_client import Registry, parse_reference
from tests.dashboard.conftest import CONFIG, relu_bytes, text_of
from tests.support.registry import PASSWORD, PROGRAM, USER, RegistryServer, credentials, registry

pytestmark = [pytest.mark.django_db, pytest.mark.skipif(PROGRAM is None, reason="needs docker-registry")]
SKOPEO = shutil.which("skopeo")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A registry that asks for a password."""
    with registry(tmp_path_factory.mktemp("registry"), locked=True) as server:
        yield server


@pytest.fixture(autouse=True)
def allowed(settings: Any, tmp_path: Path, house: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SOURCE_REGISTRIES = settings.EXPORT_REGISTRIES = [f"{house.url}/models"]
    settings.REGISTRY_AUTH_FILE = credentials(tmp_path / "config.json", house.host)
    monkeypatch.setattr(sending, "FIRST_WAIT_S", 0.0)


@pytest.fixture
def release(relu: Version) -> Release:
    return relu.model.releases.latest("number")


@pytest.fixture
def export(release: Release, actor: Actor, house: RegistryServer) -> Callable[..., Job]:
    """export("models/relu:1"): the job that has sent the release there."""

    def begin(path: str) -> Job:
        job = release_export(release=release, address=f"{house.host}/{path}", actor=actor)
        job_run(job_id=job.pk)
        job.refresh_from_db()
        return job

    return begin


def put_artifact(
    house: RegistryServer, path: str, *named: str, kind: str = "application/octet-stream", **more: Any
) -> str:
    """Put an artefact as another tool might have made it: a layer for each name. Return its address."""
    name, _, tag = path.partition(":")
    blob = b"123"
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
    reference = parse_reference(f"{house.host}/{path}", settings.EXPORT_REGISTRIES, "")
    Registry(reference, settings.EXPORT_REGISTRIES, "pull,push").send_blob(digest, len(blob), [blob])
    layer = {"mediaType": kind, "digest": digest, "size": len(blob)}
    layers = [layer | ({"annotations": {"org.opencontainers.image.title": one}} if one else {}) for one in named]
    content = {"schemaVersion": 2, "mediaType": MANIFEST, "config": layer, "layers": layers, **more}
    answer = house.put(f"{name}/manifests/{tag}", json.dumps(content).encode(), MANIFEST)
    assert answer.status_code == 201, answer.text
    return f"{house.host}/{path}"


def test_a_release_comes_back_as_an_upload(export: Callable[..., Job], actor: Actor, house: RegistryServer) -> None:
    job = export("models/relu")
    assert job.state == "succeeded", job.error
    assert job.result["address"] == f"{house.host}/models/relu:{Release.objects.get().number}"
    answer = house.get(f"models/relu/manifests/{Release.objects.get().number}", Accept=MANIFEST)
    manifest = answer.json()
    assert job.result["digest"] == answer.headers["docker-content-digest"]
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    layers = {row["annotations"]["org.opencontainers.image.title"]: row for row in manifest["layers"]}
    assert layers["1/model.onnx"]["digest"] == f"sha256:{hashlib.sha256(relu_bytes()).hexdigest()}"
    again = export("models/relu")
    assert (again.result["digest"], again.result["sent_bytes"]) == (job.result["digest"], 0)

    source = {"kind": "registry", "address": str(job.result["address"])}
    upload = upload_fetch(actor=actor, model_name="copy", source=source)
    for _ in ("fetch", "inspect"):
        job_run(job_id=upload_get(upload.pk).job_id or 0)
    upload = upload_get(upload.pk)
    assert upload.state == "inspected", upload.error
    assert (upload.folder / "version" / "model.onnx").read_bytes() == relu_bytes()
    assert (upload.folder / "source" / "config.pbtxt").read_text() == CONFIG
    assert upload.source["address"].endswith(f"@{job.result['digest']}")


@pytest.mark.skipif(SKOPEO is None, reason="needs skopeo")
def test_a_stock_client_copies_an_artefact(export: Callable[..., Job], house: RegistryServer, tmp_path: Path) -> None:
    job = export("models/relu:stock")
    source, target = f"docker://{job.result['address']}", f"oci:{tmp_path}/copy:stock"
    command = [SKOPEO, "copy", "--src-tls-verify=false", f"--src-creds={USER}:{PASSWORD}", source, target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    index = json.loads((tmp_path / "copy" / "index.json").read_text())
    assert index["manifests"][0]["digest"] == job.result["digest"]
    blob = tmp_path / "copy" / "blobs" / "sha256" / hashlib.sha256(relu_bytes()).hexdigest()
    assert blob.read_bytes() == relu_bytes()


def test_each_fault_of_an_artefact_is_said_in_a_sentence(house: RegistryServer) -> None:
    put_artifact(house, "models/image:1", "")
    put_artifact(house, "models/packed:1", "files", kind="application/vnd.oci.image.layer.v1.tar+gzip")
    put_artifact(house, "models/two:1", "1/model.onnx", "3/model.onnx", "labels.txt")
    for address, kind, said in (
        ("models/none:1", NotFound, "has no 'models/none' with '1'"),
        ("models/image:1", Invalid, "a container image cannot be fetched"),
        ("models/packed:1", Invalid, "'files' is packed"),
        ("models/two", Invalid, "needs a tag"),
        ("models/Two:1", Invalid, "expected an address such as"),
        ("other/two:1", Forbidden, "SLIPWAY_SOURCE_REGISTRIES"),
        ("modelsx/two:1", Forbidden, "SLIPWAY_SOURCE_REGISTRIES"),
    ):
        with pytest.raises(kind, match=said):
            OciRegistry().located({"address": f"{house.host}/{address}"})
    with pytest.raises(Forbidden, match="SLIPWAY_SOURCE_REGISTRIES"):
        OciRegistry().located({"address": "169.254.169.254/models/two:1"})
    with pytest.raises(NotFound, match="no version 2; it has 1, 3"):
        OciRegistry().located({"address": f"{house.host}/models/two:1", "version": "2"})
    place = OciRegistry().located({"address": f"oci://{house.host}/models/two:1"})
    assert [row.name for row in OciRegistry().files(place)] == ["3/model.onnx", "labels.txt"]


def test_bytes_that_are_gone_or_damaged_end_the_upload(
    house: RegistryServer, actor: Actor, unqueued: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FIRST_WAIT_S", 0.0)
    address = put_artifact(house, "models/damaged:1", "model.onnx")
    [blob] = [path for path in house.folder.rglob("data") if path.read_bytes() == b"123"]
    for spoil, said in ((lambda: blob.write_bytes(b"124"), "did not have the SHA-256"), (blob.unlink, "was removed")):
        spoil()
        upload = upload_fetch(actor=actor, model_name="damaged", source={"kind": "registry", "address": address})
        job_run(job_id=upload.job_id or 0)
        upload = upload_get(upload.pk)
        assert upload.state == "failed"
        assert said in upload.error


def test_credentials_are_asked_for_and_never_shown(
    export: Callable[..., Job], house: RegistryServer, settings: Any, tmp_path: Path
) -> None:
    credentials(settings.REGISTRY_AUTH_FILE, house.host, "wrong")
    job = export("models/relu:1")
    assert (job.state, job.result["status"]) == ("failed", 403)
    assert "refuses" in job.error
    settings.REGISTRY_AUTH_FILE.write_text("[]")
    assert "is not readable JSON in Docker's form" in export("models/relu:1").error
    credentials(settings.REGISTRY_AUTH_FILE, house.host)
    export("models/relu:1")
    rows = [*Job.objects.values(), *AuditEntry.objects.values()]
    assert PASSWORD not in str(rows)
    assert base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode() not in str(rows)


def test_an_export_that_was_cut_off_sends_the_rest(
    export: Callable[..., Job], house: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as at_the_end:
        at_the_end.setattr(Registry, "send_manifest", lambda *given: house.engine.kill())
        export("models/cut:1")
    assert "does not answer" in export("models/cut:1").error
    house.engine.start()
    job = export("models/cut:1")
    assert (job.state, job.result["sent_bytes"]) == ("succeeded", 0)


def test_a_release_is_exported_by_page_and_rest(
    release: Release, api: APIClient, as_person: Callable[..., Client], house: RegistryServer, settings: Any
) -> None:
    page, rest = f"/models/relu/releases/{release.number}/", f"/api/v1/models/relu/releases/{release.number}/export"
    address = f"{house.host}/models/relu"
    operator, viewer = as_person("operate"), as_person("upload_data")
    assert f'value="{address}:{release.number}"' in text_of(operator, page)
    assert "export-address" not in text_of(viewer, page)
    assert operator.post(f"{page}export", {"address": address}).headers["Location"].startswith("/jobs/")
    assert api.post(rest, {"address": address}).status_code == 202
    for wrong, status in ((f"{address}@sha256:{64 * '0'}", 400), ("elsewhere.example/models/relu", 403), ("", 400)):
        assert api.post(rest, {"address": wrong}).status_code == status
        assert operator.post(f"{page}export", {"address": wrong}).headers["Location"] == page
    version = managed_repository().version_dir("relu", release.versions[0])
    version.rename(version.with_name("gone"))
    assert "is not in the repository any more" in api.post(rest, {"address": address}).json()["error"]
    settings.EXPORT_REGISTRIES = []
    assert api.post(rest, {"address": address}).status_code == 403
    assert "export-address" not in text_of(operator, page)


def test_the_command_exports_and_imports(release: Release, actor: Actor, house: RegistryServer) -> None:
    def run(*arguments: str) -> str:
        call_command("registry", *arguments, "--as", str(actor.user), stdout=(said := StringIO()), stderr=StringIO())
        return said.getvalue().strip()

    address = f"{house.host}/models/relu"
    assert run("push", "relu", f"{address}:cli").startswith(f"{address}:cli@sha256:")
    assert run("pull", f"{address}:cli", "--model", "copy", "--no-load") == "copy version 1"
    assert (
        Version.objects.get(model__name="copy").details["fetched_from"].startswith(f"an OCI registry: {address}:cli@")
    )
    for arguments, said in (
        (("push", "none", address), "There is no model named 'none'"),
        (("pull", f"{address}:none"), "The registry has no 'models/relu' with 'none'"),
    ):
        with pytest.raises(CommandError, match=said):
            run(*arguments)


def test_a_registry_with_tokens_gets_one_for_each_action(settings: Any) -> None:
    """The double is a registry that answers as Docker's token specification says, and stores nothing."""
    asked: list[tuple[str, str]] = []

    class Double(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            port = self.server.server_address[1]
            key = self.headers.get("Authorization", "")
            asked.append((self.path, key))
            status, content = 401, {}
            if self.path.startswith("/token?"):
                status, content = 200, {"token": "a-token", "expires_in": 60}
            elif key == "Bearer a-token":
                status, content = 200, {"layers": []}
            self.send_response(status)
            self.send_header("WWW-Authenticate", f'Bearer realm="http://127.0.0.1:{port}/token",service="house"')
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Double) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        host = f"127.0.0.1:{server.server_address[1]}"
        settings.SOURCE_REGISTRIES = [f"http://{host}"]
        credentials(settings.REGISTRY_AUTH_FILE, host)
        try:
            with pytest.raises(Invalid, match="it holds no files"):
                OciRegistry().located({"address": f"{host}/models/relu:1"})
        finally:
            server.shutdown()
    (_, first), (token, second), (path, third) = asked
    assert (first, third, path) == ("", "Bearer a-token", "/v2/models/relu/manifests/1")
    assert token == "/token?scope=repository%3Amodels%2Frelu%3Apull&service=house"
    assert second.startswith("Basic ")
