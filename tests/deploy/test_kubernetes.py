"""deploy/kubernetes: kubectl builds it, Kubernetes' schemas take it, and it fits the two programs.

Each overlay, and the base with the other components, is built once by the newest kubectl and once by the oldest.
"""

import json
import re
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dashboard.shared.environment import VARIABLES
from dashboard.supervisor.commands import PARTS
from repository.core.server_version import VERSION
from repository.remote.address import RemoteAddress
from serving.cli.command_line import parse
from serving.cli.options import Options
from tests.deploy.manifests import (
    COMBINED,
    DEPLOYED,
    NEWEST,
    OLDEST,
    OVERLAYS,
    Manifest,
    built,
    manifests,
    one,
    refused,
    with_components,
)
from tests.support.serving_process import ROOT

CRDS = json.loads((Path(__file__).parent / "kubernetes_crds.json").read_text())
# The newest Kubernetes, the oldest that its project supports, and the oldest that has every field which is used.
KUBERNETES = ("37", "35", "27")
SERVER = "slipway-inference-server"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@pytest.fixture(scope="session")
def folders() -> dict[str, Path]:
    """Name -> a folder for kubectl: the overlays, and the base with the components that are in none."""
    beside = ROOT / ".cache" / "tests" / "kubernetes"
    overlays = {name: DEPLOYED / "overlays" / name for name in OVERLAYS}
    return overlays | {name: with_components(beside / name, *of) for name, of in COMBINED.items()}


@pytest.fixture(params=[*OVERLAYS, *COMBINED])
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def found(folder: Path) -> list[Manifest]:
    return manifests(folder)


@pytest.fixture(scope="session")
def base() -> list[Manifest]:
    return manifests(DEPLOYED / "base")


def pods(found: list[Manifest]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the template of each that makes pods."""
    for each in found:
        if "template" in each["spec"] if "spec" in each else False:
            yield each["metadata"]["name"], each["spec"]["template"]


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def server(found: list[Manifest]) -> dict[str, Any]:
    (only,) = one(found, "Deployment", SERVER)["spec"]["template"]["spec"]["containers"]
    return only


def options(found: list[Manifest]) -> Options:
    """Return what the server makes of its arguments, with the settings of the ConfigMap."""
    (settings,) = (
        each["data"] for each in found if each["kind"] == "ConfigMap" and "SLIPWAY_REPOSITORY" in each["data"]
    )
    values = {**settings, "SLIPWAY_CONTROL_KEY": "k" * 32}
    given = [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], one) for one in server(found)["args"]]
    parsed, warnings = parse(given)
    assert warnings == []
    return parsed


def test_every_component_is_tried() -> None:
    overlays = "".join(path.read_text() for path in (DEPLOYED / "overlays").glob("*/kustomization.yaml"))
    used = {*re.findall(r"^  - \.\./\.\./components/(\S+)", overlays, re.MULTILINE), *chain(*COMBINED.values())}
    assert used == {path.name for path in (DEPLOYED / "components").iterdir()}


def test_the_newest_and_the_oldest_kubectl_build_the_same(folder: Path) -> None:
    assert built(folder, OLDEST) == built(folder, NEWEST)


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_schemas_of_kubernetes_take_every_field(folders: dict[str, Path], version: str) -> None:
    every = {json.dumps(each): each for folder in folders.values() for each in manifests(folder)}  # each once
    own = [each for each in every.values() if each["kind"] not in CRDS]
    assert not [each["apiVersion"] for each in own if re.search("alpha|beta", each["apiVersion"])]
    assert refused(own, version) == []


@pytest.mark.parametrize("kind", ["ScaledObject", "ServiceMonitor"])
def test_the_schemas_of_operators_take_every_field(folders: dict[str, Path], kind: str) -> None:
    (custom,) = (each for each in manifests(folders["keda"]) if each["kind"] == kind)
    jsonschema.validate(custom, CRDS[kind])


def test_the_check_refuses_a_field_that_is_misspelt(base: list[Manifest]) -> None:
    wrong = json.loads(json.dumps(one(base, "Deployment", SERVER)))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    old = {**one(base, "PodDisruptionBudget", SERVER), "apiVersion": "policy/v1beta1"}
    said = refused([wrong, old], NEWEST)
    assert len(said) == 2
    assert all(any(word in line for line in said) for word in ("livenesProbe", "policy/v1beta1"))
    scaled = yaml.safe_load((DEPLOYED / "components" / "scaling-keda" / "scaled-object.yaml").read_text())
    scaled["spec"]["maxReplicas"] = 8
    with pytest.raises(jsonschema.ValidationError, match="maxReplicas"):
        jsonschema.validate(scaled, CRDS["ScaledObject"])


def test_every_pod_keeps_to_the_restricted_standard(folder: Path, found: list[Manifest]) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards, and a root that cannot be written."""
    enforced = one(found, "Namespace", "ml-serving")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    for name, template in pods(found):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        for container in containers(template):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            # The one that hands the node's folder to the servers, in a namespace that says so.
            if container["name"] != "owner":
                assert set(context) == {"allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"}
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]) or container["name"] == "owner"
            assert "memory" in container["resources"]["limits"]
    of_the_node = [
        name for name, template in pods(found) for volume in template["spec"]["volumes"] if "hostPath" in volume
    ]
    assert (enforced, of_the_node) == (("privileged", [SERVER]) if of_the_node else ("restricted", [])), folder


def test_no_pod_gets_settings_by_accident(found: list[Manifest]) -> None:
    """A Service named slipway-web would set SLIPWAY_WEB_SERVICE_HOST, which the dashboard refuses: it is no setting."""
    for name, template in pods(found):
        assert template["spec"]["enableServiceLinks"] is False, name
        for container in containers(template):
            assert {each["name"] for each in container.get("env", []) if each["name"].startswith("SLIPWAY_")} <= set(
                VARIABLES
            )
    for each in found:
        if (
            each["kind"] == "ConfigMap"
            and each["metadata"]["name"].startswith("slipway-")
            and "config.yaml" not in each["data"]
        ):
            assert {name for name in each["data"] if name.startswith("SLIPWAY_")} <= set(VARIABLES)


def test_images_are_pinned_to_the_release(found: list[Manifest]) -> None:
    for _, template in pods(found):
        for container in containers(template):
            image, _, tag = container["image"].rpartition(":")
            assert tag == VERSION if image.startswith("slipway-") else re.match(r"\d+\.\d+", tag), container["image"]


def test_selectors_ports_and_mounts_find_what_they_name(found: list[Manifest]) -> None:
    made = [template for _, template in pods(found)]
    for each in found:
        selector = each.get("spec", {}).get("selector")
        if not selector or each["kind"] == "ServiceMonitor":
            continue
        labels = selector.get("matchLabels", selector)
        chosen = [template for template in made if labels.items() <= template["metadata"]["labels"].items()]
        assert chosen, each["metadata"]["name"]
        if each["kind"] == "Service":
            names = {
                port["name"] for template in chosen for one in containers(template) for port in one.get("ports", [])
            }
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= names
    claims = {each["metadata"]["name"] for each in found if each["kind"] == "PersistentVolumeClaim"}
    for owner in (each for each in found if "template" in each.get("spec", {})):
        spec = owner["spec"]["template"]["spec"]
        templates = {one["metadata"]["name"] for one in owner["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in spec["volumes"]} | templates
        assert {mount["name"] for one in spec["containers"] for mount in one["volumeMounts"]} <= volumes
        assert {
            one["persistentVolumeClaim"]["claimName"] for one in spec["volumes"] if "persistentVolumeClaim" in one
        } <= claims


def test_policies_name_ports_and_pods_that_exist(found: list[Manifest]) -> None:
    made = [template for _, template in pods(found)]
    names = {port["name"] for template in made for one in containers(template) for port in one.get("ports", [])}
    components = {template["metadata"]["labels"].get("app.kubernetes.io/component") for template in made}
    policies = [each for each in found if each["kind"] == "NetworkPolicy"]
    assert any(each["spec"]["podSelector"] == {} and "Ingress" in each["spec"]["policyTypes"] for each in policies)
    for policy in policies:
        rules = [*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])]
        assert {
            port["port"] for rule in rules for port in rule.get("ports", []) if isinstance(port["port"], str)
        } <= names
        wanted = policy["spec"]["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/component")
        assert wanted is None or wanted in components


@pytest.mark.parametrize("name", ["cpu", "gpu", "dev", "servers-only"])
def test_the_servers_command_line_is_the_servers_own(folders: dict[str, Path], name: str) -> None:
    found = manifests(folders[name])
    given = options(found)
    (place,) = given.model_repository
    assert isinstance(place, RemoteAddress)
    assert (place.protocol, place.url) == ("s3", "s3://my-models/production")
    served = {"http": given.http_port, "grpc": given.grpc_port, "metrics": given.metrics_port}
    assert {port["name"]: port["containerPort"] for port in server(found)["ports"]} == served
    for service in (SERVER, f"{SERVER}s"):
        ports = one(found, "Service", service)["spec"]["ports"]
        assert {port["targetPort"]: port["port"] for port in ports} == served
    mounts = {Path(mount["mountPath"]) for mount in server(found)["volumeMounts"]}
    assert given.traffic_state is not None
    assert {given.repository_cache_folder, given.traffic_state.parent, Path("/tmp"), Path("/dev/shm")} <= mounts


def test_a_server_ends_after_it_has_drained(base: list[Manifest]) -> None:
    given, spec = options(base), one(base, "Deployment", SERVER)["spec"]["template"]["spec"]
    assert given.behind_load_balancer
    assert spec["terminationGracePeriodSeconds"] > given.drain_secs + given.exit_timeout_secs
    assert one(base, "Deployment", SERVER)["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_a_client_with_the_keepalive_of_the_docs_may_wait_long_for_an_answer(base: list[Manifest]) -> None:
    (asks_ms,) = re.findall(r'keepalive_time_ms", ([\d_]+)', (ROOT / "docs" / "kubernetes.md").read_text())
    assert options(base).grpc_http2_min_recv_ping_interval_without_data < int(asks_ms)


def test_a_new_server_is_ready_only_with_every_model_of_the_bucket(base: list[Manifest]) -> None:
    given = options(base)
    assert (given.model_control_mode, given.load_model, given.strict_readiness) == ("explicit", ("*",), True)


def test_probes_ask_routes_that_exist_and_liveness_asks_nothing_else(found: list[Manifest]) -> None:
    routes = "".join(
        (ROOT / path).read_text()
        for path in ("serving/frontends/http_server.py", "dashboard/web/health.py", "dashboard/urls.py")
    )
    alone = ("/v2/health/live", "/livez")
    own = [
        c for _, template in pods(found) for c in template["spec"]["containers"] if c["image"].startswith("slipway-")
    ]
    for container in own:
        for probe in PROBES:
            action = container[probe].get("httpGet")
            assert action is None or action["path"].strip("/") in routes
            if action is None:
                assert "/data/heartbeats" in container[probe]["exec"]["command"][2]
        live = container["livenessProbe"].get("httpGet", {"path": "/livez"})
        assert live["path"] in alone
        assert container["readinessProbe"] != container["livenessProbe"]


def test_the_dashboard_runs_each_part_once(folders: dict[str, Path]) -> None:
    for name in ("cpu", "adapter"):
        found = manifests(folders[name])
        only = [
            container["args"][2].split(",")
            for _, template in pods(found)
            for container in template["spec"]["containers"]
            if container["args"][:2] == ["up", "--only"]
        ]
        assert sorted(chain(*only)) == sorted(set(PARTS) - {"server"})
    (alone,) = one(manifests(folders["all-in-one"]), "StatefulSet", "slipway")["spec"]["template"]["spec"]["containers"]
    assert alone["args"] == ["up"]


def test_the_account_may_find_the_servers_and_scales_only_where_it_is_chosen(folders: dict[str, Path]) -> None:
    """The right to find them is that of the sentence with which the dashboard says that it lacks it."""
    found = manifests(folders["cpu"])
    role, binding = (one(found, kind, "slipway-dashboard") for kind in ("Role", "RoleBinding"))
    asked = (ROOT / "dashboard" / "fleet" / "kubernetes.py").read_text()
    rule = next(rule for rule in role["rules"] if rule["resources"] == ["endpointslices"])
    assert all(f"[{word}]" in asked for word in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]))
    assert {verb for each in role["rules"] for verb in each["verbs"]} == {"list", "get"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "slipway-dashboard", "namespace": "ml-serving"}]
    scales = one(manifests(folders["keda"]), "Role", "slipway-dashboard-scales")
    assert scales["rules"][0]["resourceNames"] == [SERVER]


@pytest.mark.parametrize("name", ["keda", "adapter"])
def test_an_autoscaler_owns_the_number_of_servers(folders: dict[str, Path], name: str) -> None:
    found = manifests(folders[name])
    assert "replicas" not in one(found, "Deployment", SERVER)["spec"]
    (scaler,) = (each for each in found if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"))
    assert scaler["spec"]["scaleTargetRef"]["name"] == SERVER


def test_no_secret_is_written_down() -> None:
    text = "".join(path.read_text() for path in DEPLOYED.rglob("*") if path.is_file())
    assert not re.search(r"AKIA|BEGIN [A-Z ]*PRIVATE KEY|(SECRET|PASSWORD|_KEY)(: |=)\S|kind: Secret\n", text)


def test_prometheus_in_the_cluster_finds_the_pods(base: list[Manifest]) -> None:
    (job,) = yaml.safe_load((ROOT / "deploy" / "prometheus" / "kubernetes.yml").read_text())["scrape_configs"]
    (discovery,) = job["kubernetes_sd_configs"]
    template = one(base, "Deployment", SERVER)["spec"]["template"]
    assert discovery["namespaces"]["names"] == [one(base, "Deployment", SERVER)["metadata"]["namespace"]]
    (selector,) = discovery["selectors"]
    labels = dict(label.split("=") for label in selector["label"].split(","))
    assert labels.items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(options(base).metrics_port)


QUERIES = """evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: 'nv_inference_pending_request_count{{{labels},pod="a",model="m"}}'
        values: '6x20'
      - series: 'nv_inference_pending_request_count{{{labels},pod="b",model="m"}}'
        values: '2x20'
      - series: 'nv_inference_queue_duration_us{{{labels},pod="a",model="m"}}'
        values: '0+90000000x20'
      - series: 'nv_inference_request_success{{{labels},pod="a",model="m"}}'
        values: '0+1500x20'
    promql_expr_test:
"""


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed: apt install prometheus")
def test_prometheus_answers_what_the_autoscalers_ask(tmp_path: Path) -> None:
    """Eight requests wait, six of them at one of two servers, and a request there waits for 60 ms."""
    from tests.e2e.monitoring.tools import checked

    keda = yaml.safe_load((DEPLOYED / "components" / "scaling-keda" / "scaled-object.yaml").read_text())
    asked = [trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"]]
    expected = [(asked[0], "", [("{}", 8)]), (asked[1], "", [("{}", 60)])]
    rules = yaml.safe_load((DEPLOYED / "components" / "scaling-prometheus-adapter" / "adapter-rules.yaml").read_text())
    words = {"<<.GroupBy>>": "pod", "<<.LabelMatchers>>": 'kube_namespace="ml-serving",pod=~"a|b"'}
    for rule, values in zip(rules["rules"], [[("a", 6), ("b", 2)], [("a", 60)]], strict=True):
        query = rule["metricsQuery"]
        for word, stands in words.items():
            query = query.replace(word, stands)
        expected.append((query, "", [(f'{{pod="{pod}"}}', value) for pod, value in values]))
    test = yaml.safe_load(QUERIES.format(labels='job="slipway",kube_namespace="ml-serving"') + "      []\n")
    test["tests"][0]["promql_expr_test"] = [
        {
            "expr": query,
            "eval_time": "4m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
        }
        for query, _, samples in expected
    ]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump(test))
    checked("promtool", "test", "rules", tmp_path / "queries.yml")
    names = set(re.findall(r"nv_\w+", " ".join(query for query, *_ in expected)))
    documented = (ROOT / "docs" / "server.md").read_text()
    assert all(f"`{name}`" in documented for name in names)
