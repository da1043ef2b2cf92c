"""Dependencies point one way: dashboard -> repository <- serving, and downwards inside each. Read from the imports."""

import ast
import subprocess
import sys
from collections.abc import Container, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from repository.config.backends import KINDS, BackendKind
from tests.support.serving_process import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
# Modules of the repository for tensors, which only the programs' rooms for captures import.
TENSORS = ("repository.core.capture_files", "repository.core.comparison")
# Programs that the dashboard starts: none of its modules imports them.
PROGRAMS = ("dashboard.conversions.answers", "dashboard.conversions.recipes.")
FRAMEWORKS = {"torch", "onnxruntime", "tensorrt", "tensorflow", "onnx", "onnxscript", "sklearn"}
WEB = {"django", "rest_framework", "channels", "celery", "daphne", "drf_spectacular"}


def room_of(kind: BackendKind) -> str:
    """The room of a backend's class, in the package serving."""
    return kind.class_path.partition(":")[0].rpartition(".")[0].removeprefix("serving.")


# The rooms (packages) of a package from the bottom up; "" is the package itself, which puts its rooms together. A module
# imports only from its own room and from rooms that stand before it.
ROOMS: dict[str, list[str]] = {
    "dashboard": [
        "loads",
        "plugins",
        "shared",
        "confinement",
        "environments",
        "postgresql",
        "models",
        "access",
        "templatetags",
        "web.rest",
        "web",
        "servers",
        "kubernetes",
        "releases",
        "metrics",
        "jobs",
        "accounts",
        "usage",
        "catalog",
        "fleet",
        "configuration",
        "advice",
        "rollouts",
        "versions",
        "examples",
        "deployments",
        "playground",
        "conversions.recipes.python_steps",
        "conversions.recipes",
        "conversions",
        "uploads.sources",
        "uploads",
        "exports",
        "measurements",
        "tuning",
        "batches.formats",
        "batches.sending",
        "batches",
        "captures",
        "drift",
        "replays",
        "truth",
        "imports",
        "objectives",
        "alerts",
        "text",
        "overview",
        "watch",
        "supervisor",
        "doctor",
        "backups",
        "",
        "management",
        "management.commands",
        "imports.management",
        "imports.management.commands",
    ],
    "serving": [
        "plugins",
        "compiled",
        "core",
        "cli",
        "extensions",
        "resources",
        "usage",
        "telemetry.traces",
        "telemetry",
        "captures",
        "backends.base",
        "backends.channel",
        "backends.environments",
        "backends.child",
        *(room for kind in KINDS.values() if (room := room_of(kind)).startswith("backends.")),
        "backends",
        "execution",
        "scheduling",
        "repositories",
        "configuration",
        "traffic.remotes",
        "traffic",
        "models",
        "inspection",
        "server",
        "frontends.shared",
        "frontends.http1",
        "frontends.http2",
        "frontends.rest",
        "frontends.grpc",
        "frontends.openai",
        "frontends.metrics",
        "frontends",
        "child_program.link",
        "child_program.pb_utils",
        "child_program",
        "torchserve.ts-path.ts",
        "torchserve.ts-path.ts.utils",
        "torchserve.ts-path.ts.metrics",
        "torchserve.ts-path.ts.model_service",
        "torchserve.ts-path.ts.handler_utils",
        "torchserve.ts-path.ts.handler_utils.distributed",
        "torchserve.ts-path.ts.protocol",
        "torchserve.ts-path.ts.torch_handler",
        "torchserve.ts-path.ts.torch_handler.distributed",
        "torchserve.ts-path.ts.torch_handler.request_envelope",
        "torchserve.handlers",
        "torchserve.backend",
        "torchserve.registry",
        "torchserve.telemetry",
        "torchserve.apis",
        "torchserve",
        "workers.link",
        "workers.program",
        "workers",
        "",
    ],
    "repository": ["core", "agents", "config", "files", "remote", "torchserve", ""],
}


def sources(package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name; a folder's `__init__.py` is the module of the folder's name."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
        if "migrations" not in path.parts
    }


def imported(path: Path, modules: Container[str] = ()) -> Iterator[str]:
    """Every module a file imports, also inside functions. `from a.b import c` is a.b.c where that is one of `modules`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in names)


def imports_within(package: str) -> dict[str, set[str]]:
    """Module -> the modules of the same package that it imports."""
    modules = sources(package)
    return {
        module: {name for name in imported(path, modules) if name in modules and name != module}
        for module, path in modules.items()
    }


def rooms_of(package: str) -> dict[str, str]:
    """Module -> its room: "dashboard.web.rest.endpoint" -> "web.rest"; a module of the package itself is in room ""."""
    return {
        module: (module if path.name == "__init__.py" else module.rpartition(".")[0])[len(package) + 1 :]
        for module, path in sources(package).items()
    }


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("repository", {"dashboard", "serving", "numpy"} | WEB | FRAMEWORKS),
        ("serving", {"dashboard"} | WEB),
        ("dashboard", {"serving"} | FRAMEWORKS),
    ],
)
def test_packages_depend_only_on_the_repository_between_them(package: str, forbidden: set[str]) -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in sources(package).items()
        if not module.startswith(PROGRAMS)
        for name in imported(path)
        if name.partition(".")[0] in forbidden - ({"numpy"} if module in TENSORS else set())
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ROOMS)
def test_every_module_has_a_place_among_the_rooms(package: str) -> None:
    assert sorted(set(rooms_of(package).values())) == sorted(ROOMS[package])


@pytest.mark.parametrize("package", ROOMS)
def test_a_module_imports_only_from_its_own_room_or_a_lower_one(package: str) -> None:
    rooms, order = rooms_of(package), ROOMS[package]
    wrong = [
        f"{module} imports {name}, which stands above it"
        for module, names in imports_within(package).items()
        for name in names
        if order.index(rooms[name]) > order.index(rooms[module])
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ROOMS)
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    try:
        TopologicalSorter(imports_within(package)).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_says_at_its_door_what_lives_there(package: str) -> None:
    doors = {module: path for module, path in sources(package).items() if path.name == "__init__.py"}
    assert [module for module, path in doors.items() if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_a_server_without_models_loads_no_framework_and_no_reader_of_other_servers_settings() -> None:
    """Frameworks take seconds and hundreds of megabytes: each is imported when a model first needs it."""
    names = {"torch", "onnxruntime", "tensorrt", "tensorflow", "javaproperties", "yaml"}
    code = f"""
import sys, serving.program
from serving.cli.command_line import parse
parse(["--model-repository=."])
print(*sorted({names} & set(sys.modules)))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert result.stdout.split() == []


def test_every_folder_of_tests_is_a_package() -> None:
    """Otherwise tests/serving would shadow serving."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()] == []
