"""Every third-party module that is imported comes from a pinned requirement, and every requirement from a hashed lock."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
# `ts` is the package that handlers of TorchServe's import (serving/torchserve/ts-path).
OWN = {"dashboard", "serving", "repository", "tests", "benchmarks", "examples", "tools", "ts"}
# Made by the Python backend for the code it runs; a file beside that code; NVIDIA's, TensorFlow and OpenTelemetry,
# from files of their own; what TorchServe's handlers of images and texts need, and bring; a search that ours is compared with;
# Swift, which is Debian's and runs with Debian's Python.
NOT_INSTALLED = {
    *("triton_python_backend_utils", "ink", "tensorrt", "tensorflow", "opentelemetry"),
    *("PIL", "torchvision", "torchtext", "captum", "transformers", "optuna", "swift", "eventlet"),
}
# They run in environments of their own, from requirements/bench and requirements/convert, or are served.
APART = (
    ROOT / "benchmarks" / "servers" / "programs",
    ROOT / "tools" / "formats" / "makers",
    ROOT / "dashboard" / "conversions" / "recipes",
    ROOT / "dashboard" / "conversions" / "recipes" / "python_steps",
    ROOT / "tests" / "dashboard" / "conversions" / "makers",
    ROOT / "tests" / "e2e" / "torchserve" / "handlers",
    ROOT / "tests" / "e2e" / "torchserve" / "seed",
)
BESIDE = {path.stem for path in (ROOT / "examples").glob("*.py")}  # the training scripts import each other
LOCKED = ["server", "dashboard", "examples", "cloud", "opentelemetry", "parquet", "drift", "signing", "dev"]
INSTALLED = ["server.in", "torch.txt", "dashboard.in", "examples.in", "dev.in"]
SERVER = ["server.in", "torch.txt"]


def read(path: Path) -> Iterator[Requirement]:
    """Yield the requirements of a file and of those it names with `-r`, without those for other machines."""
    for line in path.read_text().replace("\\\n", " ").splitlines():
        text = line.partition(" --hash")[0].strip()
        if text.startswith("-r "):
            yield from read(path.parent / text[3:])
        elif text and text[0] != "#":
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate():
                yield requirement


def pins(name: str) -> dict[str, str]:
    """Return package -> version of a file in requirements/; each must be pinned to one version."""
    found = {}
    for requirement in read(REQUIREMENTS / name):
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], requirement
        found[canonicalize_name(requirement.name)] = next(iter(requirement.specifier)).version
    return found


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node of a module that runs: what stands under `if TYPE_CHECKING` is for mypy, which development brings."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from run_time_nodes(child)


def imported(folders: list[str]) -> dict[str, str]:
    """Third-party top-level module -> a file that imports it."""
    found: dict[str, str] = {}
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.parent not in APART]
    for path in paths:
        for node in run_time_nodes(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found |= {name.partition(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return {
        name: path for name, path in found.items() if name not in OWN | BESIDE | NOT_INSTALLED | sys.stdlib_module_names
    }


@pytest.mark.parametrize(
    ("folders", "files"),
    [
        (["serving", "repository"], [*SERVER, "parquet.in"]),
        (["dashboard"], [*SERVER, "dashboard.in", "parquet.in", "drift.in"]),
        (["examples/models"], [*SERVER, "examples.in"]),
        (["tests", "benchmarks", "examples", "tools"], INSTALLED),
    ],
    ids=["server", "dashboard", "examples", "development"],
)
def test_every_import_is_a_requirement_of_its_part(folders: list[str], files: list[str]) -> None:
    known = {name for file in files for name in pins(file)}
    providers = packages_distributions()
    missing = {
        module: path
        for module, path in imported(folders).items()
        if not any(canonicalize_name(name) in known for name in providers.get(module, []))
    }
    assert missing == {}


@pytest.mark.parametrize("name", [*INSTALLED, "server.txt", "dashboard.txt", "examples.txt", "dev.txt"])
def test_what_is_pinned_is_installed(name: str) -> None:
    assert {package: version(package).partition("+")[0] for package in pins(name)} == pins(name)


@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_has_what_is_asked_for_and_a_hash_for_every_package(name: str) -> None:
    locked = pins(f"{name}.txt")
    assert pins(f"{name}.in").items() <= locked.items(), "run `make lock`"
    entries = re.findall(r"^[a-z].*(?:\n {4}--hash.*)*", (REQUIREMENTS / f"{name}.txt").read_text(), re.MULTILINE)
    assert len(entries) >= len(locked)
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_compiling_needs_no_types_of_the_development_packages() -> None:
    """mypyc refuses a package whose types it knows of and does not find."""
    providers = packages_distributions()
    needed = {
        canonicalize_name(name)
        for module in imported(["serving", "repository"])
        for name in providers.get(f"{module}-stubs", [])
    }
    assert needed <= pins("compile.in").keys()
    assert "types-pyyaml" in needed


def test_no_two_locks_differ_in_a_version() -> None:
    versions: dict[str, set[str]] = {}
    for name in LOCKED:
        for package, pinned in pins(f"{name}.txt").items():
            versions.setdefault(package, set()).add(pinned)
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


def test_the_server_needs_nothing_of_the_dashboard() -> None:
    assert pins("server.txt").keys() & pins("dashboard.in").keys() == set()


def test_the_lock_is_made_with_what_the_pinned_pytorch_needs() -> None:
    (told,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["dependency-metadata"]
    assert {told["name"]: told["version"]} == pins("torch.txt")
    needed = {canonicalize_name(Requirement(line).name) for line in told["requires-dist"]}
    assert needed == {canonicalize_name(one.name) for one in torchs_needs()}
    assert needed <= pins("server.txt").keys()


def torchs_needs() -> list[Requirement]:
    """Return what the installed PyTorch needs here, without CUDA's packages and Triton, its compiler for them."""
    found = [Requirement(line) for line in requires("torch") or []]
    cuda = re.compile(r"nvidia-|cuda-|triton")
    return [
        one for one in found if (one.marker is None or one.marker.evaluate({"extra": ""})) and not cuda.match(one.name)
    ]


def test_requirements_txt_is_what_make_run_installs() -> None:
    everything = {package for file in [*SERVER, "dashboard.in", "examples.in"] for package in pins(file)}
    assert {canonicalize_name(requirement.name) for requirement in read(ROOT / "requirements.txt")} == everything


@pytest.mark.parametrize("path", sorted(REQUIREMENTS.glob("bench/*.in")), ids=lambda path: path.stem)
def test_a_peer_is_measured_with_the_servers_own_version_of_onnx_runtime(path: Path) -> None:
    locked = pins(f"bench/{path.stem}.txt")
    assert pins(f"bench/{path.name}").items() <= locked.items(), "run `make lock`"
    own = pins("server.in")["onnxruntime-gpu"]
    assert locked.get("onnxruntime", own) == own  # the tools that look at manifests are no peers
