"""The server needs nothing of TorchServe's: without its folders, all else is imported, starts, answers, and says so."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import pytest

from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, ROOT, ServerProcess

# Outside of TorchServe's folders, a plugin's row and a backend's are all that name it.
ROWS = {"serving/plugins/table.py", "repository/config/backends.py"}
# A protocol of rollouts, formats that are told from its archives, and where a parameter comes from.
WORDS = {"repository/config/own_parameters.py", "repository/config/traffic.py", "repository/files/foreign_formats.py"}
IMPORT_ALL = """
import importlib, pathlib
for path in sorted([*pathlib.Path("repository").rglob("*.py"), *pathlib.Path("serving").rglob("*.py")]):
    if path.name not in ("__main__.py", "__init__.py"):
        importlib.import_module(".".join(path.with_suffix("").parts))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the server's packages of which TorchServe's folders were taken."""
    folder = tmp_path_factory.mktemp("tree")
    for package in ("repository", "serving"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.rmtree(folder / package / "torchserve")
    return folder


@pytest.fixture(scope="module")
def server(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("repository")
    model_factory.onnx_scale(repository)
    model_factory.python_scale(repository, "in_a_process")
    (repository / "archive" / "1").mkdir(parents=True)
    (repository / "archive" / "1" / "model.mar").write_bytes(b"PK")
    flags = ("--model-control-mode=explicit", "--load-model=scale", "--load-model=in_a_process")
    environment = {"PYTHONPATH": str(tree), "SERVING_COMPILED": "no"}
    with ServerProcess(repository, *flags, cwd=tree, environment=environment) as running:
        yield running


@pytest.mark.parametrize("model", ["scale", "in_a_process"])
def test_models_are_served(server: ServerProcess, model: str) -> None:
    _, said = server.get(f"/v2/models/{model}")
    (tensor,) = said["inputs"]
    shape = [abs(size) for size in tensor["shape"]]
    data = {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": [1] * prod(shape)}
    status, answer = server.post(f"/v2/models/{model}/infer", {"inputs": [data]})
    assert (status, answer["outputs"][0]["shape"]) == (200, shape)


def test_a_model_of_its_backend_is_refused_in_one_sentence(server: ServerProcess) -> None:
    status, answer = server.post("/v2/repository/models/archive/load")
    assert status == 501
    assert "this server was installed without the backend 'torchserve'" in answer["error"]


def test_its_flags_are_unknown(tree: Path) -> None:
    command = [sys.executable, "-m", "serving", f"--model-repository={tree}", "--torchserve"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "unrecognized arguments: --torchserve" in done.stderr


def test_every_other_module_is_imported(tree: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], cwd=tree, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr


def test_nothing_else_of_the_server_names_it(tree: Path) -> None:
    naming = {str(path.relative_to(tree)) for path in tree.rglob("*.py") if "torchserve" in path.read_text().lower()}
    assert naming == ROWS | WORDS
