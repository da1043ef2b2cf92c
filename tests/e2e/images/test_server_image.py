"""The server's image in a pod: with the security context and limits of our manifests, and with the manifest of the lesson."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from repository.core.server_version import VERSION
from tests.e2e.images.pods import Container, Pod, configuration, owned
from tests.serving.cli.test_tritonserver_command import MANIFEST
from tests.support import model_factory
from tests.support.object_store import ObjectStore
from tests.support.serving_process import PATIENCE_S, wait_until

GRACE_S = 75.0  # terminationGracePeriodSeconds of the manifests
PLACES: dict[str, Path | None] = {"/cache": None, "/tmp": None, "/dev/shm": None}
SHELL = " ".join(MANIFEST)


class ReachableStore(ObjectStore):
    """A bucket at the address of this machine that a pod reaches."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host
        self.endpoint = f"http://{host}:{self.port}"

    def _command(self) -> list[str]:
        return [self._host if word == "127.0.0.1" else word for word in super()._command()]


def is_ready(pod: Pod, server: Container) -> Callable[[], bool]:
    """Ask as a kubelet's readiness probe does: by the pod's address."""

    def ask() -> bool:
        server.runs()
        try:
            return httpx.get(f"http://{pod.address}:8000/v2/health/ready", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    return ask


def scaled(client: ModuleType, address: str, model: str) -> float:
    """Return what a stock client gets for 3."""
    tensor = client.InferInput("INPUT0", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[3.0]], np.float32))
    return float(client.InferenceServerClient(address).infer(model, [tensor]).as_numpy("OUTPUT0")[0, 0])


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    with Pod() as made:
        yield made


@pytest.fixture(scope="module")
def server(pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """The server with a model of ONNX Runtime, one in Python and one of PyTorch, under the restrictions of our manifests."""
    folder = owned(tmp_path_factory.mktemp("models"))
    model_factory.onnx_scale(folder)
    model_factory.python_scale(folder, "in_python")
    model_factory.torchscript_add_sub(folder, "in_torch")
    with Container(pod, "slipway-server", "--model-repository=/models", volumes={**PLACES, "/models": folder}) as made:
        wait_until(is_ready(pod, made), 240, "readiness")
        yield made


def test_stock_clients_get_answers_from_models_of_each_kind(pod: Pod, server: Container) -> None:
    for model in ("scale", "in_python"):
        assert scaled(tritonclient.http, f"{pod.address}:8000", model) == 6
        assert scaled(tritonclient.grpc, f"{pod.address}:8001", model) == 6
    assert httpx.get(f"http://{pod.address}:8000/v2/models/in_torch/ready").status_code == 200
    assert "nv_inference_request_success" in httpx.get(f"http://{pod.address}:8002/metrics").text


def test_the_modules_are_compiled(pod: Pod, server: Container) -> None:
    assert httpx.get(f"http://{pod.address}:8000/v2").json()["version"] == f"{VERSION}+compiled"


def test_it_has_no_rights_and_writes_only_to_its_volumes(server: Container) -> None:
    status = server.status()
    assert status["Uid"].split()[0] == "10001"
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    mounts = server.run("cat", "/proc/mounts").stdout
    assert re.search(r"^\S+ / \S+ ro,", mounts, re.MULTILINE)
    for place in ("/slipway", "/usr", "/"):
        assert server.run("touch", f"{place}/here").returncode == 1
    assert server.run("touch", "/cache/here").returncode == 0
    assert server.run("cat", "/sys/fs/cgroup/memory/memory.limit_in_bytes").stdout.strip() == str(2 << 30)


def test_nothing_that_builds_is_in_the_image(server: Container) -> None:
    for program in ("gcc", "cc", "pip", "pip3", "make", "git"):
        assert server.run("sh", "-c", f"command -v {program}").stdout == ""
    assert server.run("python", "-m", "pip").returncode == 1
    left = server.run(
        "sh", "-c", "ls -A /root /mnt /tmp; ls -d /etc/pip.conf /sbom.py /slipway/requirements /slipway/tests"
    )
    assert left.stdout.split() == [".bashrc", ".profile", "/root:", "/mnt:", "/tmp:"] or not re.search(
        "pip|cache|wheel|sbom|requirements|tests", left.stdout
    )
    assert server.run("sh", "-c", "find / -xdev -name '*.whl' -o -xdev -path '*/.cache/pip' 2>/dev/null").stdout == ""


def test_the_bill_of_materials_names_what_is_installed(server: Container) -> None:
    bill = json.loads(server.run("cat", "/usr/share/slipway/sbom.cdx.json").stdout)
    told = {component["purl"] for component in bill["components"]}
    asked = "from importlib.metadata import *; print(*(f'{d.name.lower()}@{d.version}' for d in distributions()))"
    installed = server.run("python", "-c", asked).stdout.split()
    assert len(installed) > 50
    assert {
        f"pkg:pypi/{re.sub('[-_.]+', '-', one.partition('@')[0])}@{one.partition('@')[2]}" for one in installed
    } <= told
    system = server.run("dpkg-query", "-W", "-f", "${Package}\n").stdout.split()
    assert len(system) == len([purl for purl in told if purl.startswith("pkg:deb/")]) > 20


def test_the_labels_say_which_release_it_is() -> None:
    for image in ("slipway-server", "slipway-dashboard"):
        labels = configuration(image)["Labels"]
        assert labels["org.opencontainers.image.version"] == VERSION
        assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
        assert re.fullmatch("[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])
        assert labels["org.opencontainers.image.base.name"]


def test_sigterm_ends_it_within_the_grace_of_a_pod(pod: Pod, server: Container) -> None:
    print(f"server: at most {server.memory_peak() >> 20} MiB")
    assert server.terminate(GRACE_S) == 0, server.log


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (None, MANIFEST),
        (["tritonserver"], MANIFEST[1:]),
        (["/opt/tritonserver/bin/tritonserver"], MANIFEST[1:]),
        (["/bin/sh", "-c", SHELL], ()),
        (["bash", "-c", SHELL], ()),
    ],
    ids=["args", "command", "path", "sh", "bash"],
)
def test_the_lessons_manifest_needs_only_another_image(
    tmp_path: Path, command: list[str] | None, arguments: tuple[str, ...]
) -> None:
    """Its pod says nothing of a user or a read-only root. Its probes are those of is_ready and of /v2/health/live."""
    model_factory.onnx_scale(tmp_path)
    with Pod() as pod, ReachableStore(pod.host) as store:
        store.put_folder(tmp_path, "production")
        environment = {**store.credentials, "AWS_ENDPOINT_URL": store.endpoint}
        with Container(
            pod, "slipway-server", *arguments, command=command, environment=environment, restricted=False
        ) as server:
            wait_until(is_ready(pod, server), 240, "readiness")
            assert httpx.get(f"http://{pod.address}:8000/v2/health/live").status_code == 200
            assert scaled(tritonclient.http, f"{pod.address}:8000", "scale") == 6
            # a shell must not stand between the kubelet and the server
            assert server.terminate(PATIENCE_S) == 0, server.log
