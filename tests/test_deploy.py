"""What deploy/ holds fits the server: its flags, its ports, its routes, the files that are copied."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from repository.remote.address import RemoteAddress
from serving.cli.command_line import parse
from serving.cli.options import Options
from serving.compiled.modules import build_folder
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


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, the rest) of each line that is one."""
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line and line[0] != "#")]


def test_the_pods_command_line_is_the_servers_own_and_reads_from_the_cloud() -> None:
    (place,) = options().model_repository
    assert isinstance(place, RemoteAddress)
    assert (place.protocol, place.url) == ("s3", "s3://my-models/production")
    assert options().model_control_mode == "poll"


def test_arguments_for_tritons_image_start_ours() -> None:
    """A pod's args stand after the image's ENTRYPOINT; `command: [tritonserver]` finds the script on the image's PATH."""
    begins = json.loads(dict(dockerfile())["ENTRYPOINT"])[3:]
    given = ["tritonserver", "--model-repository=s3://my-models/production/", "--metrics-port=8002"]
    parsed, warnings = parse([*begins, *given])
    assert (parsed.metrics_port, warnings) == (8002, [])
    assert ["COPY", "bin bin"] in [[kind, rest] for kind, rest in dockerfile()]
    assert 'PATH="/slipway/bin:$PATH"' in dict(dockerfile())["ENV"]


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


def test_the_image_copies_what_is_there_and_runs_as_nobody_special() -> None:
    instructions = dockerfile()
    copied = [rest for kind, rest in instructions if kind == "COPY" and not rest.startswith("--from=")]
    for source in [word for rest in copied for word in shlex.split(rest)[:-1]]:
        assert (ROOT / source).exists(), source
    assert dict(instructions)["USER"] == str(pod()["spec"]["securityContext"]["runAsUser"])


def test_the_image_installs_what_the_server_needs_and_no_more() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    server, compiled, image = text.split("\nFROM ")[1:]
    installed = re.findall(r"-r (requirements\S*\.txt)", server + image)
    assert set(installed) == {f"requirements/{name}.txt" for name in ("server", "cloud", "torch")}
    assert re.findall(r"-r (requirements\S*\.txt)", compiled) == ["requirements/compile.txt"]
    named = re.findall(r"requirements\S*\.txt", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_image_has_the_modules_of_the_path_compiled() -> None:
    """From where `make compiled` puts them to where a server looks, under the same path: it is part of no fingerprint."""
    [line] = [rest for kind, rest in dockerfile() if kind == "COPY" and rest.startswith("--from=compiled ")]
    source, target = line.split()[1:]
    builds = build_folder().parent.relative_to(ROOT)
    assert (source, target) == (f"/slipway/{builds}", str(builds))


def test_the_images_command_is_the_servers_and_its_ports_are_open(tmp_path: Path) -> None:
    instructions = dict(dockerfile())
    command = json.loads(instructions["ENTRYPOINT"]) + json.loads(instructions["CMD"])
    assert command[:3] == ["python", "-m", "serving"]
    assert command[-1] == "--model-repository=/models"
    parsed, _ = parse([*command[3:-1], f"--model-repository={tmp_path}"])
    ports = [parsed.http_port, parsed.grpc_port, parsed.metrics_port]
    assert [int(port) for port in instructions["EXPOSE"].split()] == ports


@pytest.mark.parametrize("name", ["Dockerfile", "haproxy.cfg", "kubernetes.yaml"])
def test_the_pages_name_what_deploy_holds(name: str) -> None:
    assert f"deploy/{name}" in (ROOT / "docs" / "configuration.md").read_text()
