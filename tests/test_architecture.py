"""Dependencies point one way: dashboard -> repository <- serving, and downwards inside each. Read from the imports."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving_process import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORKS = {"torch", "onnxruntime", "tensorrt", "onnx", "onnxscript", "sklearn"}
WEB = {"django", "rest_framework", "channels", "celery", "daphne", "whitenoise", "drf_spectacular"}


def sources(package: str) -> list[Path]:
    return [path for path in sorted((ROOT / package).rglob("*.py")) if "migrations" not in path.parts]


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, also inside functions; of `from a.b import c` both a.b and a.b.c."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def breaches(package: str, forbidden: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        for name in imported(path)
        if name.partition(".")[0] in forbidden
    ]


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("repository", {"dashboard", "serving", "numpy"} | WEB | FRAMEWORKS),
        ("serving", {"dashboard"} | WEB),
        ("dashboard", {"serving"} | FRAMEWORKS),
    ],
)
def test_packages_depend_only_on_the_repository_between_them(package: str, forbidden: set[str]) -> None:
    assert breaches(package, forbidden) == []


def test_a_server_without_models_loads_no_framework() -> None:
    """They take seconds and hundreds of megabytes: each is imported when a model first needs it."""
    code = "import sys, serving.__main__; print(*sorted({'torch', 'onnxruntime', 'tensorrt'} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert result.stdout.split() == []


def test_every_folder_of_tests_is_a_package() -> None:
    """Otherwise tests/serving would shadow serving."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()] == []
