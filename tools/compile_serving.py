"""Compile the modules that a request passes through, with mypyc: `make compiled`. See serving.compiled.

python -m tools.compile_serving [--background]

The build runs in a separate folder, which is renamed when the build is complete. Builds of other sources are removed, unless a
server uses them. Only one build runs at a time: a second call waits, and finds the build complete. mypyc is downloaded if the
environment lacks it. `manage.py up` runs the build in the background, at the lowest priority for CPU and disk.
"""

import argparse
import fcntl
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

from serving.compiled.loading import files_of, in_use
from serving.compiled.modules import MODULES, ROOT, build_folder

LOCK = Path(".cache", "compiled.lock")
SCRATCH = Path(".cache", "compiling")  # each build first removes the files that a killed build left behind
PACKAGES = Path(".cache", "compiler")  # mypyc, if the environment lacks it; a folder for each lock of its packages
REQUIREMENTS = Path("requirements", "compile.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--background", action="store_true", help="give way to everything else")
    background = parser.parse_args().background
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before it was done"))
    if background:
        _give_way()
    folder = build_folder()
    if folder.is_dir():  # an image has a build, and cannot be written
        print(f"compiled already: {folder.relative_to(ROOT)}")
        return
    _check_compiler()
    os.chdir(ROOT)
    try:
        with _alone():
            _make(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"not built: {error}")


def _give_way() -> None:
    """Run at the lowest priority, and be the first process that the kernel kills if memory runs out."""
    os.nice(19)
    with suppress(psutil.Error, OSError):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _check_compiler() -> None:
    header = Path(sysconfig.get_path("include"), "Python.h")
    compiler, *_ = shlex.split(os.environ.get("CC", "")) or ["gcc"]  # CC may have several words: "ccache gcc"
    if shutil.which(compiler) is None or not header.exists():
        sys.exit("a C compiler or Python's header files are missing: sudo apt-get install gcc python3-dev")


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other build of this checkout runs. The kernel releases the lock if the process dies."""
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(SCRATCH, ignore_errors=True)
        SCRATCH.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(SCRATCH.resolve())
        try:
            yield
        finally:
            shutil.rmtree(SCRATCH, ignore_errors=True)


def _make(folder: Path) -> None:
    if folder.is_dir():
        print(f"compiled already: {folder.relative_to(ROOT)}")
        return
    if find_spec("mypyc") is None:
        sys.path.insert(0, str(_fetched()))
    _compile(SCRATCH)
    whole = SCRATCH / "lib"
    missing = set(MODULES) - files_of(whole).keys()
    if missing or build_folder() != folder:
        sys.exit(f"not built: {', '.join(sorted(missing))}" if missing else "a source changed meanwhile: try again")
    folder.parent.mkdir(exist_ok=True)
    for other in folder.parent.iterdir():
        if not in_use(other):
            shutil.rmtree(other)
    whole.rename(folder)
    print(f"compiled {len(MODULES)} modules: {folder.relative_to(ROOT)}")


def _fetched() -> Path:
    """Return the folder with mypyc and its dependencies, in the versions and hashes of the lock. Download them if needed."""
    lock = hashlib.sha256(sys.version.encode() + REQUIREMENTS.read_bytes()).hexdigest()[:16]
    packages = (PACKAGES / lock).resolve()
    if not packages.is_dir():
        print("fetching mypyc", flush=True)
        options = ("--quiet", "--no-input", "--disable-pip-version-check", "--only-binary=:all:", "--require-hashes")
        target = SCRATCH / "packages"
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), "-r", str(REQUIREMENTS)]
        if subprocess.run(command).returncode:
            sys.exit(f"mypyc could not be fetched (`pip install -r {REQUIREMENTS}`)")
        shutil.rmtree(PACKAGES, ignore_errors=True)
        packages.parent.mkdir()
        target.rename(packages)
    return packages


def _compile(place: Path) -> None:
    """Write the extension modules to `place`/lib."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    settings = place / "mypy.ini"
    settings.write_text(_mypy_settings())
    sources = [f"{module.replace('.', '/')}.py" for module in MODULES]
    extensions = mypycify([f"--config-file={settings}", *sources], opt_level="3", target_dir=str(place / "c"))
    command = build_ext(Distribution({"name": "slipway", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(place / "lib"), str(place / "objects")
    command.ensure_finalized()
    command.run()


def _mypy_settings() -> str:
    """Return mypy's settings for mypyc: the settings of pyproject.toml for packages without types, without Django's plugins."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    lines = ["[mypy]", f"python_version = {settings['python_version']}", "strict = True"]
    for override in settings["overrides"]:
        lines.append(f"[mypy-{','.join(override['module'])}]")
        lines += [f"{key} = {value}" for key, value in override.items() if key != "module"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
