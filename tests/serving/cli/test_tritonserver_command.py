"""tritonserver's own command: the script, and the word with which manifests for Triton's image begin their arguments."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving.cli.command_line import parse
from tests.support import model_factory
from tests.support.object_store import ObjectStore
from tests.support.serving_process import ROOT, ServerProcess

SERVING = (sys.executable, "-m", "serving")
# What a Deployment for Triton's image gives, as the lesson on serving has it.
MANIFEST = (
    "tritonserver",
    "--model-repository=s3://my-models/production/",
    "--log-verbose=0",
    "--allow-metrics=true",
    "--metrics-port=8002",
)


@pytest.mark.parametrize(
    "program",
    [
        (*SERVING, "tritonserver"),
        (*SERVING, "/opt/tritonserver/bin/tritonserver"),
        (str(ROOT / "bin" / "tritonserver"),),
        ("bash", "-c", '"$0" "$@"', str(ROOT / "bin" / "tritonserver")),
    ],
    ids=["a word", "a path", "the script", "a shell"],
)
def test_tritonservers_command_starts_the_server(tmp_path: Path, program: tuple[str, ...]) -> None:
    model_factory.onnx_scale(tmp_path)
    with ServerProcess(tmp_path, program=program, cwd=tmp_path) as server:
        assert server.get("/v2/models/scale/ready")[0] == 200
        assert server.terminate() == 0  # no shell stands between the signal and the server


def test_the_script_takes_no_program_from_the_folder_in_which_it_is_called(tmp_path: Path) -> None:
    for name in ("serving", "repository", "orjson", "logging"):
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (tmp_path / name / file).write_text("raise SystemExit('a stranger')")
    called = [str(ROOT / "bin" / "tritonserver"), "--help"]
    done = subprocess.run(called, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--model-repository" in done.stdout


def test_a_manifests_own_arguments_start_the_server(tmp_path: Path) -> None:
    model_factory.onnx_scale(tmp_path)
    credentials = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}
    with ObjectStore() as store:
        for path in tmp_path.rglob("*.*"):
            store.put(f"production/{path.relative_to(tmp_path)}", path.read_bytes())
        environment = {**credentials, "AWS_ENDPOINT_URL": store.endpoint}
        with ServerProcess([], program=(*SERVING, *MANIFEST), environment=environment) as server:
            assert server.get("/v2/models/scale/ready")[0] == 200


def test_the_word_changes_no_argument() -> None:
    parsed, warnings = parse(MANIFEST)
    assert (parsed, warnings) == (parse(MANIFEST[1:])[0], [])
    assert parsed.metrics_port == 8002


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model-repository=models", "serve"),
        ("tritonserver", "tritonserver", "--model-repository=models"),
        ("--model-repository", "models", "tritonserver"),
    ],
)
def test_any_other_word_is_refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


def test_a_repository_may_have_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tritonserver").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse(["--model-repository", "tritonserver"])[0].model_repository == (Path("tritonserver"),)
