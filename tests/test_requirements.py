"""Every third-party module that is imported comes from a pinned requirement."""

import ast
import re
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
OWN = {"dashboard", "serving", "repository", "tests", "benchmarks", "examples", "tools"}
# Made by the Python backend for the code it runs; a file beside that code; NVIDIA's, TensorFlow and OpenTelemetry,
# from files of their own.
NOT_INSTALLED = {"triton_python_backend_utils", "ink", "tensorrt", "tensorflow", "opentelemetry"}
BESIDE = {path.stem for path in (ROOT / "examples").glob("*.py")}  # the training scripts import each other
RUNTIME = ["dashboard", "serving", "repository"]
DEVELOPMENT = ["tests", "benchmarks", "examples", "tools"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(*names: str) -> dict[str, Requirement]:
    """Name -> requirement of the given files, those for other machines left out."""
    lines = [line for name in names for line in (ROOT / name).read_text().splitlines()]
    parsed = [Requirement(line) for line in lines if line.strip() and line[0] not in "#-"]
    return {normal(one.name): one for one in parsed if one.marker is None or one.marker.evaluate()}


def imported(folders: list[str]) -> dict[str, str]:
    """Third-party top-level module -> a file that imports it."""
    found: dict[str, str] = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found |= {name.partition(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return {
        name: path for name, path in found.items() if name not in OWN | BESIDE | NOT_INSTALLED | sys.stdlib_module_names
    }


@pytest.mark.parametrize(
    ("folders", "files"),
    [(RUNTIME, ["requirements.txt"]), (RUNTIME + DEVELOPMENT, ["requirements.txt", "requirements-dev.txt"])],
)
def test_every_import_is_a_requirement(folders: list[str], files: list[str]) -> None:
    known = requirements(*files)
    providers = packages_distributions()
    missing = {
        module: path
        for module, path in imported(folders).items()
        if not any(normal(name) in known for name in providers.get(module, []))
    }
    assert missing == {}


def test_every_requirement_is_pinned_and_installed_as_pinned() -> None:
    for name, requirement in requirements("requirements.txt", "requirements-dev.txt").items():
        pins = [specifier.version for specifier in requirement.specifier if specifier.operator == "=="]
        assert len(pins) == 1, name
        assert version(name).partition("+")[0] == pins[0], name
