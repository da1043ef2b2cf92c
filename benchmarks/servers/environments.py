"""Creates a virtual environment for each peer when it is first needed, and keeps it until its requirements change.

`python -m benchmarks.servers.environments torchserve` creates the environment of a peer in advance.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.folders import CACHE, REQUIREMENTS

# The lock of this peer lacks torch, because it is large. Its sys.path ends with the project's packages, which have it.
BORROWS_TORCH = "torchserve"
# These locks lack what the packages need for a use that is not ours.
ALONE = (BORROWS_TORCH, "kubernetes")


class CannotInstall(Exception):
    """The packages of an environment could not be installed. The text gives the reason."""


def made(name: str) -> Path:
    """Return the folder of a peer's environment, created if needed."""
    folder = CACHE / "environments" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may need the environment first at the same time
        _make(folder, REQUIREMENTS / f"{name}.txt")
    return folder


def _make(folder: Path, requirements: Path) -> None:
    borrows = folder.name == BORROWS_TORCH
    stamp = folder / "installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"{folder.name}: installing {requirements.name}; this takes a minute.", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder))
    # A lock contains all packages but those that pip would download: torch, or what the program does not need.
    alone = ["--no-deps"] if folder.name in ALONE else []
    _run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *alone, "-r", str(requirements))
    if borrows:
        packages = next(folder.glob("lib/python*/site-packages"))
        (packages / "torch_of_the_project.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    stamp.write_text(wanted)


def variables_of(folder: Path) -> dict[str, str]:
    """Return the variables for a process: PATH begins with the environment's programs, and this project's Python is removed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return kept | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(folder)}


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise CannotInstall(lines[-1] if lines else f"{command[0]} ended with status {done.returncode}")


if __name__ == "__main__":
    try:
        made(sys.argv[1])
    except CannotInstall as error:
        sys.exit(str(error))
