"""`--model-signature-key`: versions that the key has signed load, others are refused before their files are read."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.support.model_factory import onnx_scale, pass_on_ensemble, python_scale
from tests.support.serving_process import ServerProcess
from tests.support.signing_keys import key_pair


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return key_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, Path]) -> Iterator[ServerProcess]:
    flags = ("--model-control-mode=explicit", f"--model-signature-key={keys[1]}")
    with ServerProcess(tmp_path_factory.mktemp("models"), *flags) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpclient.InferenceServerClient]:
    with httpclient.InferenceServerClient(server.http) as client:
        yield client


def sign(version: Path, private: Path) -> None:
    """Sign with the command of the package, as people outside do."""
    command = ["sign", "key", str(version), "--private_key", str(private), "--signature", str(version / "model.sig")]
    done = subprocess.run([sys.executable, "-m", "model_signing", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_version_that_was_signed_by_the_packages_own_command_serves(
    server: ServerProcess, client: httpclient.InferenceServerClient, keys: tuple[Path, Path]
) -> None:
    model = onnx_scale(server.repositories[0], "signed", 2.0)
    sign(model / "1", keys[0])
    client.load_model("signed")
    assert client.is_model_ready("signed")
    pass_on_ensemble(server.repositories[0], "around", "signed")
    client.load_model("around")
    assert client.is_model_ready("around")


def test_unsigned_and_changed_versions_are_refused_and_what_serves_goes_on(
    server: ServerProcess, client: httpclient.InferenceServerClient, keys: tuple[Path, Path]
) -> None:
    model = onnx_scale(server.repositories[0], "changed", 2.0)
    with pytest.raises(InferenceServerException, match=r"version 1 is not signed: it has no model\.sig"):
        client.load_model("changed")
    sign(model / "1", keys[0])
    client.load_model("changed")
    file = model / "1" / "model.onnx"
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(InferenceServerException, match="its files are not those that were signed"):
        client.load_model("changed")
    assert client.is_model_ready("changed")


def test_python_models_leave_nothing_beside_their_signed_files(
    server: ServerProcess, client: httpclient.InferenceServerClient, keys: tuple[Path, Path]
) -> None:
    model = python_scale(server.repositories[0], "code")
    (model / "1" / "helper.py").write_text("VALUE = 1\n")
    program = model / "1" / "model.py"
    program.write_text("from . import helper\n" + program.read_text())
    sign(model / "1", keys[0])
    for _ in range(2):
        client.load_model("code")
        client.unload_model("code")


def test_a_server_with_a_file_that_is_no_key_does_not_start(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "serving", f"--model-repository={tmp_path}", f"--model-signature-key={keys[0]}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is no public key of an elliptic curve in PEM" in done.stderr
