"""deploy/kserve fits KServe's own schemas, strictly, and the server's command line."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from serving.cli.command_line import parse
from serving.cli.options import Options
from tests.support.kserve import container, documents, filled

SCHEMAS = json.loads((Path(__file__).parent / "kserve_crds.json").read_text())
RUNTIMES = ("slipway-server", "slipway-torchserve")
FILES = ("clusterservingruntimes.yaml", "servingruntimes.yaml", "inferenceservice.yaml")


def check(document: dict[str, Any]) -> None:
    """Raise ValidationError unless the document fits; the schema allows no field that it does not name."""
    schema = SCHEMAS[document["kind"].removeprefix("Cluster")]
    jsonschema.Draft202012Validator(schema).validate(document)


def options(runtime: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Return what the server makes of a runtime's arguments and variables, without a warning."""
    for variable in container(runtime).get("env", ()):
        monkeypatch.setenv(variable["name"], filled(variable["value"], "iris"))
    arguments = [filled(one, "iris").replace("/mnt/models", str(folder)) for one in container(runtime)["args"]]
    parsed, warnings = parse(arguments)
    assert warnings == []
    return parsed


@pytest.mark.parametrize("file", FILES)
def test_every_document_fits_the_schema_of_its_kind(file: str) -> None:
    for document in documents(file).values():
        check(document)


@pytest.mark.parametrize(
    "place", [("metadata2",), ("spec", "protocolVersion"), ("spec", "containers", 0, "readinessProbe", "httpget")]
)
def test_a_field_that_kserve_does_not_know_is_found(place: tuple[str | int, ...]) -> None:
    document = copy.deepcopy(documents("servingruntimes.yaml")["slipway-server"])
    inside: Any = document
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = {}
    with pytest.raises(jsonschema.ValidationError, match=str(place[-1])):
        check(document)


def test_the_runtimes_of_a_namespace_are_those_of_the_cluster() -> None:
    of_cluster, of_namespace = (documents(file) for file in FILES[:2])
    assert tuple(of_cluster) == tuple(of_namespace) == RUNTIMES
    for name, document in of_cluster.items():
        assert document == {**of_namespace[name], "kind": "ClusterServingRuntime"}


def test_kserve_is_told_whose_defaults_a_runtime_takes() -> None:
    """KServe gives an InferenceService of such a runtime its protocol, and the explicit mode to one without a storageUri."""
    found = [one["metadata"]["annotations"]["serving.kserve.io/server-type"] for one in documents(FILES[0]).values()]
    assert found == ["tritonserver", "torchserve"]


def test_the_runtime_of_models_starts_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = options("slipway-server", tmp_path, monkeypatch)
    assert (parsed.model_repository, parsed.model_name) == ((tmp_path,), "iris")
    assert (parsed.http_port, parsed.grpc_port, parsed.metrics_port) == (8080, 9000, 8002)


def test_the_runtime_of_archives_starts_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model-store").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.properties").write_text("enable_envvars_config=true\n")
    settings: Any = options("slipway-torchserve", tmp_path, monkeypatch).source
    found = settings.settings
    assert (found.inference_address.host, found.inference_address.port) == ("0.0.0.0", 8080)
    assert (found.management_address.host, found.metrics_address.port) == ("127.0.0.1", 8082)
    assert (found.model_store, found.service_envelope, found.token_auth) == (tmp_path / "model-store", "kserve", False)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_probes_and_the_end_fit_the_arguments(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = container(runtime)
    for probe, path in (("readinessProbe", "ready"), ("livenessProbe", "live")):
        assert here[probe]["httpGet"] == {"path": f"/v2/health/{path}", "port": 8080}
    flags = dict(one.split("=", 1) for one in here["args"])
    assert int(flags["--drain-secs"]) + int(flags["--exit-timeout-secs"]) < 30  # Kubernetes' grace period


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_pod_may_write_only_into_its_volumes(runtime: str) -> None:
    here = container(runtime)
    assert here["securityContext"]["readOnlyRootFilesystem"]
    assert here["securityContext"]["runAsNonRoot"]
    assert {mount["mountPath"] for mount in here["volumeMounts"]} == {"/tmp", "/cache", "/dev/shm"}
    for variable in here.get("env", ()):
        if variable["name"].endswith("_LOCATION"):
            assert os.path.commonpath([variable["value"], "/tmp"]) == "/tmp"
