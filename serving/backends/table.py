"""The table of backends: a name in config.pbtxt -> the class, imported when a model first needs it.

A new backend is one folder beside this file and one line here; where its file's name, or a `platform` of Triton, tells it, one
in repository/config/model_config.py too. CONTRIBUTING.md has the recipe.
"""

import importlib
from typing import TYPE_CHECKING

from serving.core.errors import invalid

if TYPE_CHECKING:
    from serving.backends.base.backend import Backend, ModelSpec

BACKENDS: dict[str, str] = {
    "onnxruntime": "serving.backends.onnxruntime.backend:OnnxRuntimeBackend",
    "pytorch": "serving.backends.pytorch.backend:PytorchBackend",
    "tensorrt": "serving.backends.tensorrt.backend:TensorrtBackend",
    "python": "serving.backends.python.backend:PythonBackend",
    "torchserve": "serving.torchserve.backend.backend:TorchserveBackend",
    "tensorflow": "serving.backends.tensorflow.backend:TensorflowBackend",
}


def backend_class(name: str) -> "type[Backend]":
    """Return the class of a backend; INVALID_ARG, with the known names, for an unknown one."""
    try:
        module, _, attribute = BACKENDS[name].partition(":")
    except KeyError:
        raise invalid(f"unknown backend '{name}'; expected one of {', '.join(BACKENDS)}, ensemble") from None
    found: type[Backend] = getattr(importlib.import_module(module), attribute)
    return found


def make_backend(spec: "ModelSpec") -> "Backend":
    """Make the backend of one model version, not yet loaded; in processes of its own where it asks for them."""
    from serving.backends.child.isolation import isolated, wants_process

    backend = backend_class(spec.config.backend)
    apart = wants_process(spec.config) or backend.own_process
    return isolated(backend, spec) if apart and not backend.runs_user_code else backend(spec)
