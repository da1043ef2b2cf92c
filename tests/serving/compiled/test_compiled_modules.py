"""Compiled modules run only with a build of exactly these sources, and the server reports whether they do."""

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from repository.core.server_version import VERSION
from serving.compiled.loading import COMMON, SUFFIX, VARIABLE, in_use
from serving.compiled.modules import BUILDS, MODULES, build_folder, fingerprint
from tests.support.serving_process import PATIENCE_S, ROOT, ServerProcess
from tests.support.tree_copies import copy_packages
from tools import compile_serving

MODULE = "serving.core.varints"  # the only one that these trees compile
SAY = f"""
from serving.compiled import loading
loading.use()
import {MODULE} as module
print(loading.Compiled.used, loading.Compiled.sentence, module.__loader__.__class__.__name__, sep="|")
"""
VERSIONED = """
from serving.compiled import loading
loading.use()
from serving.server.inference_server import running_version
print(running_version())
"""
can_compile = pytest.mark.skipif(
    shutil.which("gcc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="no C compiler, or no header files of Python",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return packages_with_one_compiled_module(tmp_path)


def packages_with_one_compiled_module(folder: Path, *more: str) -> Path:
    """Copy the packages, and more folders, into a folder of their own, in which one small module is to be compiled."""
    copy_packages(folder, "serving", "repository", "tools", *more)
    shutil.copy(ROOT / "pyproject.toml", folder)
    modules = folder / "serving" / "compiled" / "modules.py"
    text, replaced = re.subn(r"^MODULES = \(.*?^\)", f'MODULES = ("{MODULE}",)', modules.read_text(), flags=re.M | re.S)
    assert replaced == 1
    modules.write_text(text)
    return folder


def run(tree: Path, *command: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 5,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def said(tree: Path, **variables: str) -> list[str]:
    """Whether compiled modules are used, the sentence in the log, and what has loaded the module."""
    return run(tree, "-c", SAY, **variables).split("|")


def test_every_module_that_is_compiled_is_there() -> None:
    assert [name for name in MODULES if not (ROOT / f"{name.replace('.', '/')}.py").is_file()] == []


def test_no_class_that_is_compiled_is_an_abstract_base_class() -> None:
    """Compiled ones share what ABC remembers of `isinstance`, so that one class would answer for another."""
    sources = {name: (ROOT / f"{name.replace('.', '/')}.py").read_text() for name in MODULES}
    found = [
        f"{name}.{node.name}"
        for name, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and "ABC" in ast.unparse(node).partition(":")[0]
    ]
    assert found == []


def test_interpreted_classes_have_compiled_ones_as_bases_only_where_these_allow_it() -> None:
    found = []
    for path in sorted((ROOT / "serving").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module in MODULES or "child_program" in module:  # no child process runs compiled modules
            continue
        tree = ast.parse(path.read_text())
        origins = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in MODULES
            for alias in node.names
        }
        for node in ast.walk(tree):
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                origin = origins.get(ast.unparse(base).partition("[")[0])
                if origin is not None and not _allows_subclasses(*origin):
                    found.append(f"{module}.{node.name} of {origin[1]}")
    assert found == []


def _allows_subclasses(module: str, name: str) -> bool:
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    (made,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    return "allow_interpreted_subclasses" in "".join(map(ast.unparse, made.decorator_list)) or (
        "Protocol" in map(ast.unparse, made.bases)
    )


@pytest.mark.parametrize("changed", ["serving/core/varints.py", "serving/cli/options.py", "repository/core/new.py"])
def test_a_change_of_any_source_asks_for_another_build(tree: Path, changed: str) -> None:
    before = fingerprint(tree)
    assert fingerprint(tree) == before
    path = tree / changed
    path.write_text("# changed\n" + path.read_text() if path.exists() else "# new\n")
    assert fingerprint(tree) != before


def test_a_source_that_is_renamed_asks_for_another_build(tree: Path) -> None:
    before = fingerprint(tree)
    (tree / "serving" / "inspect.py").rename(tree / "serving" / "inspects.py")
    assert fingerprint(tree) != before


def test_a_server_says_in_its_log_and_its_version_what_runs(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, environment={VARIABLE: "no"}) as server:
        assert server.get("/v2")[1]["version"] == VERSION
        assert f"the modules of a request's path run interpreted: {VARIABLE}=no" in server.log


def test_without_a_build_the_sources_run(tree: Path) -> None:
    assert said(tree) == ["False", "interpreted", "SourceFileLoader"]


def test_a_build_that_cannot_be_loaded_is_not_used_and_reported(tree: Path) -> None:
    folder = build_folder(tree)
    folder.mkdir(parents=True)
    (folder / f"damaged{COMMON}{SUFFIX}").write_bytes(b"no library")
    (folder / "serving" / "core").mkdir(parents=True)
    (folder / "serving" / "core" / f"varints{SUFFIX}").write_bytes(b"no library")
    used, sentence, loader = said(tree)
    assert (used, loader) == ("False", "SourceFileLoader")
    assert sentence.startswith("interpreted: the compiled modules cannot be loaded")
    assert "make compiled" in sentence


def test_a_build_that_lacks_modules_is_not_used_and_reported(tree: Path) -> None:
    build_folder(tree).mkdir(parents=True)
    assert said(tree)[::2] == ["False", "SourceFileLoader"]


def test_a_module_imported_before_its_compiled_form_is_an_error(tree: Path) -> None:
    build_folder(tree).mkdir(parents=True)
    code = (
        f"import {MODULE}\nfrom serving.compiled import loading\ntry: loading.use()\nexcept RuntimeError as e: print(e)"
    )
    assert run(tree, "-c", code) == f"{MODULE} was imported before its compiled form could be"


def test_a_build_that_a_process_uses_is_not_to_be_removed(tree: Path) -> None:
    folder = build_folder(tree)
    folder.mkdir(parents=True)
    assert not in_use(folder)
    command = [sys.executable, "-c", f"{SAY}\nprint(flush=True)\ninput()"]
    with subprocess.Popen(command, cwd=tree, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        assert in_use(folder)
        user.communicate(b"\n")
    assert not in_use(folder)


@can_compile
def test_a_build_is_used_until_a_source_changes(tree: Path) -> None:
    assert run(tree, "-m", "tools.compile_serving").splitlines()[-1].startswith("compiled 1 modules")
    (folder,) = (tree / BUILDS).iterdir()
    assert said(tree) == ["True", f"compiled: 1 modules, build {folder.name}", "ExtensionFileLoader"]
    assert run(tree, "-c", VERSIONED) == f"{VERSION}+compiled"
    assert said(tree, **{VARIABLE: "no"}) == ["False", f"interpreted: {VARIABLE}=no", "SourceFileLoader"]
    assert run(tree, "-m", "tools.compile_serving").startswith("compiled already")

    with (tree / "serving" / "core" / "errors.py").open("a") as file:
        file.write("# another module than the compiled one\n")
    used, sentence, loader = said(tree)
    assert (used, loader) == ("False", "SourceFileLoader")
    assert sentence.startswith("interpreted: the compiled modules are of other sources")


@can_compile
@pytest.mark.parametrize("compiler", ["gcc -pipe", "env gcc", ""])
def test_the_compiler_may_be_named_with_arguments(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler)
    compile_serving._check_compiler()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -pipe")
    with pytest.raises(SystemExit, match="a C compiler or Python's header files are missing"):
        compile_serving._check_compiler()
