"""What deploy/Dockerfile says fits the programs: files that are there, locks, flags, ports, a user that is nobody special.

tests/e2e/images runs the images themselves.
"""

import json
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from importlib.metadata import version

import pytest

from serving.cli.command_line import parse
from serving.compiled.modules import build_folder
from tests.support.serving_process import ROOT

DEPLOY = ROOT / "deploy"
IMAGES = ("server", "dashboard")
Instruction = tuple[str, str]


def stages() -> dict[str, list[Instruction]]:
    """Return the name of each stage -> its instructions, the first of which is FROM; "" has those before it."""
    lines = (
        re.sub(r"^ *#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
        .replace("\\\n", " ")
        .splitlines()
    )
    found: dict[str, list[Instruction]] = {"": []}
    stage = ""
    for word, _, rest in (line.partition(" ") for line in lines if line):
        if word == "FROM":
            stage = rest.rpartition(" AS ")[2]
        found.setdefault(stage, []).append((word, rest))
    return found


STAGES = stages()


def image(name: str) -> list[Instruction]:
    """Return the instructions of an image: those of its stage, after those of the stages below."""
    below = STAGES[name][0][1].partition(" AS ")[0]
    return [*(image(below) if below in STAGES else []), *STAGES[name]]


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_on_the_base_alone_and_installs_nothing_itself(name: str) -> None:
    """What builds it is in stages from which files are copied."""
    assert next(rest.partition(" ")[0] for kind, rest in image(name) if kind == "FROM") == "$BASE"
    runs = " ".join(rest for kind, rest in image(name) if kind == "RUN")
    assert not re.search(r"pip|apt|gcc|\$INSTALL", runs)


@pytest.mark.parametrize("name", IMAGES)
def test_a_container_runs_as_the_user_of_the_manifests(name: str) -> None:
    assert dict(image(name))["USER"] == "10001:10001"
    folders = [DEPLOY / "kubernetes" / name for name in ("base", "servers", "overlays")]
    manifests = [path.read_text() for folder in folders for path in folder.rglob("*.yaml")]
    users = {user for text in manifests for user in re.findall(r"runAsUser: (\d+)", text)}
    assert users == {"10001"}


def test_what_is_copied_is_there_and_is_let_through() -> None:
    let_through = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split() if line[0] == "!"]
    copies = [rest for stage in STAGES.values() for kind, rest in stage if kind == "COPY" and "--from=" not in rest]
    for source in [word for rest in copies for word in shlex.split(rest)[:-1]]:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, given) or source.startswith(f"{given}/") for given in let_through), source


def test_every_package_comes_from_a_lock_and_pips_settings_stay_outside() -> None:
    used = {name: sorted(set(re.findall(r"-r requirements/(\w+)", str(stage)))) for name, stage in STAGES.items()}
    assert {name: locks for name, locks in used.items() if locks} == {
        "packages": ["cloud", "examples", "gpu", "opentelemetry", "server", "signing", "torch"],
        "compiled": ["compile"],
        "dashboard-packages": ["dashboard", "drift", "parquet"],
    }
    installs = [rest for stage in STAGES.values() for kind, rest in stage if kind == "RUN" and "install" in rest]
    for rest in [rest for rest in installs if "apt-get" not in rest]:
        assert rest.startswith("--mount=type=secret,id=pip,target=/etc/pip.conf ")
        without_hashes = [part for part in rest.split("&&") if "$INSTALL" in part and "--require-hashes" not in part]
        assert not re.search(r"requirements/(?!torch|gpu)", " ".join(without_hashes))


def test_the_lock_without_cuda_is_made_of_the_servers_lock() -> None:
    """The Dockerfile changes the markers of two lines; here its own commands do so."""
    [edit] = re.findall(r"sed -i (.*?) requirements/server.txt", (DEPLOY / "Dockerfile").read_text())
    command = f"sed {edit} requirements/server.txt"
    changed = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line for line in changed.splitlines() if line.startswith("onnxruntime")]
    asked = version("onnxruntime-gpu")
    assert lines == [f"onnxruntime=={asked} \\", f"onnxruntime-gpu=={asked} ; sys_platform == 'none' \\"]


def test_the_image_has_the_modules_of_the_path_compiled() -> None:
    """From where `make compiled` puts them to where a server looks, under the same path: it is part of no fingerprint."""
    builds = build_folder().parent.relative_to(ROOT)
    assert ("COPY", f"--from=compiled /slipway/{builds} {builds}") in image("server")


def test_the_images_command_is_the_servers_and_its_ports_are_open() -> None:
    instructions = dict(image("server"))
    command = json.loads(instructions["ENTRYPOINT"]) + json.loads(instructions["CMD"])
    assert command[:3] == ["python", "-m", "serving"]
    assert command[-1] == "--model-repository=/models"
    parsed, _ = parse([*command[3:-1], f"--model-repository={ROOT}"])
    assert [int(port) for port in instructions["EXPOSE"].split()] == [
        parsed.http_port,
        parsed.grpc_port,
        parsed.metrics_port,
    ]


def test_arguments_for_tritons_image_start_ours() -> None:
    """A pod's args stand after the image's ENTRYPOINT; `command: [tritonserver]` finds the script on the image's PATH."""
    begins = json.loads(dict(image("server"))["ENTRYPOINT"])[3:]
    given = ["tritonserver", "--model-repository=s3://my-models/production/", "--metrics-port=8002"]
    parsed, warnings = parse([*begins, *given])
    assert (parsed.metrics_port, warnings) == (8002, [])
    assert ("COPY", "bin bin") in image("server")
    text = " ".join(rest for _, rest in image("server"))
    assert ":/slipway/bin:" in text
    assert "ln -s /slipway/bin/tritonserver /opt/tritonserver/bin/tritonserver" in text


def test_the_bill_of_materials_names_what_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, "tools/sbom.py", "here"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    told = {component["purl"]: component for component in bill["components"]}
    assert len(told) == len(bill["components"])
    assert told[f"pkg:pypi/django@{version('django')}"]["licenses"] == [{"license": {"name": "BSD-3-Clause"}}]
    assert f"pkg:pypi/typing-extensions@{version('typing_extensions')}" in told
