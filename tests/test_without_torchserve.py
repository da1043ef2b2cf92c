"""Neither program needs TorchServe: without its folders, all else is imported, lacks nothing, starts, answers, and says so."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import pytest

from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, ROOT, ServerProcess
from tests.support.tree_copies import copy_packages
from tests.test_architecture import imported, sources

TAKEN = ("repository/torchserve", "serving/torchserve", "dashboard/imports", "templates/imports")
# Outside of TorchServe's folders, a plugin's row and a backend's are all that name it.
ROWS = {"serving/plugins/table.py", "repository/config/backends.py", "repository/config/remote_protocols.py"}
# Formats that are told from its archives, and where a parameter comes from.
WORDS = {"repository/config/own_parameters.py", "repository/files/foreign_formats.py"}
IMPORT_ALL = """
import importlib, pathlib
for path in sorted([*pathlib.Path("repository").rglob("*.py"), *pathlib.Path("serving").rglob("*.py")]):
    if path.name not in ("__main__.py", "__init__.py"):
        importlib.import_module(".".join(path.with_suffix("").parts))
"""
# Where the dashboard says the word: its settings, and sentences for people.
DASHBOARD_WORDS = {
    "dashboard/settings.py",
    "dashboard/shared/environment.py",
}
RENDER_PAGES = """
import importlib, pathlib, django
django.setup()
from django.core.management import call_command
from django.test import Client
from django.contrib.auth import get_user_model
for path in sorted(pathlib.Path("dashboard").rglob("*.py")):
    apart = {"postgresql", "migrations", "recipes"} & set(path.parts)
    if path.name not in ("__init__.py", "__main__.py", "asgi.py") and not apart:
        importlib.import_module(".".join(path.with_suffix("").parts))
call_command("migrate", verbosity=0)
client = Client(SERVER_NAME="localhost")
client.force_login(get_user_model().objects.create_superuser("ada"))
from dashboard.models import Job
old = Job.objects.create(kind="import", title="Import", state="failed", result={"rows": [{}]})
pages = "/ /models/ /models/new /jobs/ /rollouts/ /servers/ /settings/ /activity/".split()
for address in (*pages, f"/jobs/{old.pk}/"):
    print(address, client.get(address).status_code)
assert b"Import a model store" not in client.get("/models/").content
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages of which TorchServe's folders were taken."""
    folder = tmp_path_factory.mktemp("tree")
    copy_packages(folder, "repository", "serving", "dashboard", "templates", "static")
    for taken in TAKEN:
        shutil.rmtree(folder / taken)
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


def test_pages_of_the_dashboard_are_shown(tree: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "dashboard.settings", "SLIPWAY_DATA": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", RENDER_PAGES],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines())
    assert set(said.values()) == {"200"}, said


def test_nothing_that_is_left_imports_what_was_taken(tree: Path) -> None:
    """So it type-checks as it does with all folders: types, too, come by imports, also by those of a function."""
    taken = {
        name
        for package in ("repository", "serving", "dashboard")
        for name, path in sources(package).items()
        if any(path.is_relative_to(ROOT / folder) for folder in TAKEN)
    }
    assert {"repository.torchserve", "serving.torchserve.backend", "dashboard.imports"} <= taken
    wrong = [
        f"{path.relative_to(tree)} imports {name}"
        for path in tree.rglob("*.py")
        for name in imported(path, taken)
        if name in taken or name.partition(".")[0] == "ts"
    ]
    assert wrong == []


def test_nothing_else_names_it(tree: Path) -> None:
    naming = {str(path.relative_to(tree)) for path in tree.rglob("*.py") if "torchserve" in path.read_text().lower()}
    assert naming == ROWS | WORDS | DASHBOARD_WORDS
