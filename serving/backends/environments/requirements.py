"""Installs the packages of a model's requirements.txt into the model's own folder, from which its processes import first."""

import logging
import os
import subprocess
from pathlib import Path

from serving.backends.environments.interpreter import Interpreter
from serving.backends.environments.requirements_file import read_requirements
from serving.core.errors import internal, invalid, without_paths

log = logging.getLogger(__name__)

INSTALL_TIMEOUT_S = 1800.0
_PIP = "PIP_"  # the prefix of variables that set the sources of packages


def install(requirements: Path, folder: Path, target: Path, python: Interpreter) -> None:
    """Let pip install the packages of a file into `target`. Raises INVALID_ARG with pip's last error if pip fails.

    folder: the archive's folder, outside of which `requirements` must not name files. pip runs in the parent folder of
    `target`, which has no files of the archive that pip would import. This takes up to INSTALL_TIMEOUT_S: do not call it on
    the event loop.
    """
    wanted = read_requirements(requirements, folder)
    understood, constraints = target.with_name("requirements.txt"), target.with_name("constraints.txt")
    understood.write_text("".join(f"{line}\n" for line in wanted.packages), encoding="utf-8")
    constraints.write_text("".join(f"{line}\n" for line in wanted.constraints), encoding="utf-8")
    arguments = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--target", str(target)]
    variables = python.variables(os.environ) | {
        name: value for name, value in os.environ.items() if name.startswith(_PIP)
    }
    log.info("installing %s of the archive", requirements.name)
    try:
        done = subprocess.run(
            python.command(*arguments, "-r", str(understood), "-c", str(constraints)),
            env=variables,
            cwd=target.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise invalid(
            f"installing {requirements.name} of the archive took longer than {INSTALL_TIMEOUT_S:g} s"
        ) from None
    except OSError as error:
        raise internal(f"pip cannot be run to install {requirements.name}: {error.strerror}") from None
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    for line in lines[-50:]:
        log.info("pip: %s", line)
    if done.returncode:
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        last = without_paths(errors[-1].strip()) if errors else f"exit status {done.returncode}"
        raise invalid(f"{requirements.name} of the archive cannot be installed: {last}")
