"""What deploy/ holds fits the server: its flags, its ports, its routes, the files that are copied."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from repository.remote.address import RemoteAddress
from serving.cli.command_line import parse
from serving.cli.options import Options
from tests.support.serving_process import ROOT

DEPLOY = ROOT / "deploy"


def manifest(kind: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return next(document for document in documents if document["kind"] == kind)


def pod() -> dict[str, Any]:
    return manifest("Deployment")["spec"]["template"]


def container() -> dict[str, Any]:
    (only,) = pod()["spec"]["containers"]
    return only


def options() -> Options:
    parsed, warnings = parse(container()["args"])
    assert warnings == []
    return parsed


def test_the_pods_command_line_is_the_servers_own_and_reads_from_the_cloud() -> None:
    (place,) = options().model_repository
    assert isinstance(place, RemoteAddress)
    assert (place.protocol, place.url) == ("s3", "s3://my-models/production")
    assert options().model_control_mode == "poll"


def test_ports_probes_and_annotations_agree_with_the_server() -> None:
    served = {"http": options().http_port, "grpc": options().grpc_port, "metrics": options().metrics_port}
    assert {port["name"]: port["containerPort"] for port in container()["ports"]} == served
    assert {port["targetPort"]: port["port"] for port in manifest("Service")["spec"]["ports"]} == served
    assert pod()["metadata"]["annotations"]["prometheus.io/port"] == str(options().metrics_port)
    routes = (ROOT / "serving" / "frontends" / "http_server.py").read_text()
    for probe, path in (("readinessProbe", "/v2/health/ready"), ("livenessProbe", "/v2/health/live")):
        assert container()[probe]["httpGet"] == {"path": path, "port": "http"}
        assert path in routes


def test_a_pod_ends_after_its_requests_and_writes_only_where_it_may() -> None:
    assert pod()["spec"]["terminationGracePeriodSeconds"] > options().exit_timeout_secs
    assert container()["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {Path(mount["mountPath"]) for mount in container()["volumeMounts"]}
    state, remotes = options().traffic_state, options().traffic_remotes
    assert state is not None
    assert remotes is not None
    assert {options().repository_cache_folder, state.parent, remotes.parent, Path("/tmp"), Path("/dev/shm")} <= mounts
    volumes = {volume["name"] for volume in pod()["spec"]["volumes"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} <= volumes


def test_selectors_find_the_pods() -> None:
    labels = pod()["metadata"]["labels"]
    assert manifest("Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("Service")["spec"]["selector"] == labels


def test_the_dashboards_account_may_read_what_it_asks_for() -> None:
    role, binding, account = (manifest(kind) for kind in ("Role", "RoleBinding", "ServiceAccount"))
    [rule] = role["rules"]
    asked = (ROOT / "dashboard" / "fleet" / "kubernetes.py").read_text()
    for one in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]):
        assert f"[{one}]" in asked  # as the sentence of a refusal says
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account["metadata"]}]


def test_no_secret_is_written_down() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text() + (DEPLOY / "Dockerfile").read_text()
    assert not re.search(r"AKIA|BEGIN [A-Z ]*PRIVATE KEY|SECRET_ACCESS_KEY: *\S", text)


@pytest.mark.parametrize("name", ["Dockerfile", "haproxy.cfg", "kubernetes.yaml"])
def test_the_pages_name_what_deploy_holds(name: str) -> None:
    assert f"deploy/{name}" in (ROOT / "docs" / "configuration.md").read_text()
