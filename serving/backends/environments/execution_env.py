"""EXECUTION_ENV_PATH: the Python environment that a model brings, as a folder, as its python, or packed.

Source: README of triton-inference-server/python_backend, "Creating Custom Execution Environments".
"""

import os
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.backends.environments.child_environment import Interpreter
from serving.backends.environments.packed_env import unpacked
from serving.core.errors import invalid

_PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_EXPECTED = (
    f"{_PARAMETER} must name the folder of a Python environment, with bin/python in it, its python, or a packed one"
)


def interpreter(config: ModelConfig, model_dir: Path) -> Interpreter:
    """The Python of the model's own environment, else the server's. A packed one is unpacked first: not on the event loop."""
    value = config.parameters[_PARAMETER].string_value if _PARAMETER in config.parameters else ""
    if not value:
        return Interpreter()
    path = Path(os.path.normpath(value.replace(_MODEL_DIRECTORY, str(model_dir))))
    if value.startswith(_MODEL_DIRECTORY) and not path.is_relative_to(model_dir):
        raise invalid(f"{_PARAMETER} must not lead out of the model's folder")
    if path.is_file() and path.name.startswith("python") and path.parent.name == "bin":
        return Interpreter(str(path), path.parent.parent)
    folder = unpacked(path) if path.is_file() else path
    python = folder / "bin" / "python"
    if not python.is_file():
        raise invalid(_EXPECTED)
    return Interpreter(str(python), folder)
