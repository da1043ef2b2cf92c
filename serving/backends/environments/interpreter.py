"""The Python that a child process runs under: the server's, or the model's own environment (EXECUTION_ENV_PATH).

Source: README of triton-inference-server/python_backend, "Creating Custom Execution Environments".
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.backends.environments.child_variables import child_variables
from serving.backends.environments.packed_environment import ENVIRONMENTS
from serving.core.errors import invalid, unsupported

_PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_EXPECTED = (
    f"{_PARAMETER} must name the folder of a Python environment, with bin/python in it, its python, or a packed one"
)
# The folder of an environment's scripts that a shell must source before its conda packages work.
_ACTIVATION = "etc/conda/activate.d"
_ACTIVATE = f'for script in "$CONDA_PREFIX"/{_ACTIVATION}/*.sh; do . "$script"; done; exec "$@"'


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter, by default the server's own. folder: its environment, or None for the server's interpreter."""

    python: str = sys.executable
    folder: Path | None = None

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs the interpreter with these arguments, after it activates an environment of conda."""
        command = [self.python, *arguments]
        if self.folder is None or not any((self.folder / _ACTIVATION).glob("*.sh")):
            return command
        shell = shutil.which("bash")
        if shell is None:
            raise unsupported("the environment of EXECUTION_ENV_PATH has scripts to activate it, which need bash")
        return [shell, "-c", _ACTIVATE, "activate", *command]

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables for the model, with the programs of the model's own environment first in PATH."""
        found = child_variables(given)
        if self.folder is not None:
            found["PATH"] = ":".join(filter(None, (str(self.folder / "bin"), found.get("PATH", ""))))
            found.pop("VIRTUAL_ENV", None)
            if (self.folder / "conda-meta").is_dir():
                found["CONDA_PREFIX"] = str(self.folder)
            elif (self.folder / "pyvenv.cfg").is_file():
                found["VIRTUAL_ENV"] = str(self.folder)
        return found


def model_interpreter(config: ModelConfig, model_dir: Path) -> Interpreter:
    """Return the Python of EXECUTION_ENV_PATH (a folder, its python, or a packed environment), or else the server's Python.

    A packed environment is unpacked first, which takes long: do not call this function on the event loop. Raises INVALID_ARG
    if the path is no environment.
    """
    value = config.parameters[_PARAMETER].string_value if _PARAMETER in config.parameters else ""
    if not value:
        return Interpreter()
    path = Path(os.path.normpath(value.replace(_MODEL_DIRECTORY, str(model_dir))))
    if value.startswith(_MODEL_DIRECTORY) and not path.is_relative_to(model_dir):
        raise invalid(f"{_PARAMETER} must not lead out of the model's folder")
    if path.is_file() and path.name.startswith("python") and path.parent.name == "bin":
        return Interpreter(str(path), path.parent.parent)
    folder = ENVIRONMENTS.unpacked(path) if path.is_file() else path
    python = folder / "bin" / "python"
    if not python.is_file():
        raise invalid(_EXPECTED)
    return Interpreter(str(python), folder)
