"""Compile the modules of a request's path with mypyc: `make compiled`. See serving.compiled.

The build is made in a folder of its own and renamed when it is whole; builds of other sources are removed.
"""

import os
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

from serving.compiled.loading import files_of
from serving.compiled.modules import MODULES, ROOT, build_folder


def main() -> None:
    header = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which(os.environ.get("CC", "gcc")) is None or not header.exists():
        sys.exit("a C compiler or Python's header files are missing: sudo apt-get install gcc python3-dev")
    folder = build_folder()
    if folder.is_dir():
        print(f"compiled already: {folder.relative_to(ROOT)}")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="slipway-compiled-") as place:
        _build(Path(place))
        whole = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
        shutil.copytree(Path(place, "lib"), whole, dirs_exist_ok=True)
        whole.chmod(0o755)
    missing = set(MODULES) - files_of(whole).keys()
    if missing or build_folder() != folder:
        shutil.rmtree(whole)
        sys.exit(f"not built: {', '.join(sorted(missing))}" if missing else "a source changed meanwhile: try again")
    for other in folder.parent.iterdir():
        if other != whole:
            shutil.rmtree(other)
    whole.rename(folder)
    print(f"compiled {len(MODULES)} modules: {folder.relative_to(ROOT)}")


def _build(place: Path) -> None:
    """Leave the extension modules in `place`/lib."""
    settings = place / "mypy.ini"
    settings.write_text(_mypy_settings())
    sources = [f"{module.replace('.', '/')}.py" for module in MODULES]
    extensions = mypycify([f"--config-file={settings}", *sources], opt_level="3", target_dir=str(place / "c"))
    command = build_ext(Distribution({"name": "slipway", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(place / "lib"), str(place / "objects")
    command.ensure_finalized()
    command.run()


def _mypy_settings() -> str:
    """mypy's settings for mypyc: those of pyproject.toml for packages without types, and none of Django's plugins."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    lines = ["[mypy]", f"python_version = {settings['python_version']}", "strict = True"]
    for override in settings["overrides"]:
        lines.append(f"[mypy-{','.join(override['module'])}]")
        lines += [f"{key} = {value}" for key, value in override.items() if key != "module"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
