"""What deploy/ holds fits the server: its flags, its ports, its routes, the files that are copied."""

import json
import re
import shlex
from pathlib import Path

import pytest

from serving.cli.command_line import parse
from serving.compiled.modules import build_folder
from tests.support.serving_process import ROOT

DEPLOY = ROOT / "deploy"


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, the rest) of each line that is one."""
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line and line[0] != "#")]


def test_arguments_for_tritons_image_start_ours() -> None:
    """A pod's args stand after the image's ENTRYPOINT; `command: [tritonserver]` finds the script on the image's PATH."""
    begins = json.loads(dict(dockerfile())["ENTRYPOINT"])[3:]
    given = ["tritonserver", "--model-repository=s3://my-models/production/", "--metrics-port=8002"]
    parsed, warnings = parse([*begins, *given])
    assert (parsed.metrics_port, warnings) == (8002, [])
    assert ["COPY", "bin bin"] in [[kind, rest] for kind, rest in dockerfile()]
    assert 'PATH="/slipway/bin:$PATH"' in dict(dockerfile())["ENV"]


def test_no_secret_is_written_down() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert not re.search(r"AKIA|BEGIN [A-Z ]*PRIVATE KEY|SECRET_ACCESS_KEY: *\S", text)


def test_the_image_copies_what_is_there_and_runs_as_nobody_special() -> None:
    instructions = dockerfile()
    copied = [rest for kind, rest in instructions if kind == "COPY" and not rest.startswith("--from=")]
    for source in [word for rest in copied for word in shlex.split(rest)[:-1]]:
        assert (ROOT / source).exists(), source
    assert dict(instructions)["USER"] == "10001"


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


@pytest.mark.parametrize("name", ["Dockerfile", "haproxy.cfg", "kubernetes"])
def test_the_pages_name_what_deploy_holds(name: str) -> None:
    assert f"deploy/{name}" in (ROOT / "docs" / "configuration.md").read_text()
