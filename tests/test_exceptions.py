"""No exception object is raised twice: its traceback would keep the requests of all for whom it was raised."""

import ast
import builtins
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dashboard", "repository", "serving")
OTHERS = ("serving/torchserve/ts-path", "migrations")  # what models import, and what Django writes
# Functions that return an error.
MAKERS = {
    "invalid", "not_found", "unavailable", "unsupported", "already_exists", "cancelled", "internal", "unexpected",
}  # fmt: skip


@cache  # not a constant: each process of a run would parse the whole program when it collects the tests
def _modules() -> list[tuple[str, ast.Module]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    names = {path: str(path.relative_to(ROOT)) for path in paths}
    return [
        (name, ast.parse(path.read_text())) for path, name in names.items() if not any(part in name for part in OTHERS)
    ]


@cache
def _exceptions() -> set[str]:
    """The names of all classes that are exceptions: Python's, and what is derived from them anywhere."""
    known = {
        name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
    }
    classes = [node for _, tree in _modules() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    derived = [(one.name, {ast.unparse(base).split(".")[-1] for base in one.bases}) for one in classes]
    while more := {name for name, bases in derived if name not in known and bases & known}:
        known |= more
    return known


def _kept(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute | ast.Subscript)


def _raised_again(tree: ast.Module) -> Iterator[str]:
    """What is raised, or given to a future, out of an attribute, a list or a constant."""
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            raised = node.exc
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "set_exception":
            raised = node.args[0]
        else:
            continue
        if raised is not None and (_kept(raised) or (isinstance(raised, ast.Name) and raised.id in constants)):
            yield f"{node.lineno}: {ast.unparse(node)}"


def _keeps(tree: ast.Module) -> Iterator[str]:
    """Attributes that are annotated as exceptions, or are given one that was just made, and constants that are one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            named = {name.id for name in ast.walk(node.annotation) if isinstance(name, ast.Name)}
            if named & _exceptions() and "[" not in ast.unparse(node.annotation):
                yield f"{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            made = node.value.func.id in _exceptions() | MAKERS
            if made and any(isinstance(target, ast.Attribute) for target in node.targets):
                yield f"{node.lineno}: {ast.unparse(node)}"
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Assign) else None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _exceptions() | MAKERS:
            yield f"{statement.lineno}: {ast.unparse(statement)}"


def _shields(tree: ast.Module) -> Iterator[str]:
    """What several may await raises one object for all of them: `outcome_of` gives each its own."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("shield")
            and isinstance(node.args[0], ast.Attribute)
        ):
            yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("look", [_raised_again, _keeps, _shields], ids=["raised again", "kept", "shared"])
def test_no_exception_is_kept_to_be_raised_again(look) -> None:
    found = [f"{name}:{line}" for name, tree in _modules() for line in look(tree)]
    assert not found, "make the exception where it is raised, and keep its sentence:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("look", "source"),
    [
        (_raised_again, "def f(self):\n    raise self._failed"),
        (_raised_again, "def f(self):\n    self.future.set_exception(self.failures[0])"),
        (_raised_again, "GONE = make('gone')\ndef f():\n    raise GONE from None"),
        (_keeps, "class A:\n    def __init__(self):\n        self._failed: ServingError | None = None"),
        (_keeps, "class A:\n    def fail(self):\n        self._failed = unavailable('no')"),
        (_keeps, "REFUSED = ServingError(Code.INTERNAL, 'no')"),
        (_shields, "async def f(self):\n    await asyncio.shield(self._task)"),
    ],
)
def test_one_that_is_kept_is_found(look, source) -> None:
    assert list(look(ast.parse(source)))
