"""A release goes to a real registry as an artefact, and comes back from it as an upload."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.exports import sending
from dashboard.exports.sending import release_export
from dashboard.jobs.runner import job_run
from dashboard.models import AuditEntry, Job, Release, Version
from dashboard.shared.exceptions import Conflict, DashboardError, Forbidden, Invalid, NotFound, Unavailable
from dashboard.uploads.fetching import upload_fetch
from dashboard.uploads.selectors import upload_get
from dashboard.uploads.sources.registry import OciRegistry
from tests.dashboard.conftest import CONFIG, relu_bytes
from tests.support.registry import PROGRAM, RegistryServer, credentials, registry

pytestmark = [pytest.mark.django_db, pytest.mark.skipif(PROGRAM is None, reason="needs docker-registry")]
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


def put_artifact(house: RegistryServer, path: str, layers: list[dict[str, Any]], **more: Any) -> None:
    """Put a manifest as another tool might have made it; its blobs need not exist."""
    content = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers, **more}
    name, _, tag = path.partition(":")
    answer = house.put(f"{name}/manifests/{tag}", json.dumps(content).encode(), MANIFEST)
    assert answer.status_code == 201, answer.text


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
    assert upload.proposal["config_text"].strip().startswith(CONFIG.strip().splitlines()[0])
    assert upload.source["address"].endswith(f"@{job.result['digest']}")
