"""Runs TensorFlow SavedModels, always in child processes, because TensorFlow's libraries conflict with other libraries.

This backend is optional: it needs requirements/tensorflow.txt in the server's environment, or in the environment that
EXECUTION_ENV_PATH names. In the server, the class imports nothing of TensorFlow. `load` and later calls run in the child.
"""

import importlib
import importlib.util
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.signature import Signature, TensorSignature
from serving.backends.base import signature
from serving.backends.base.backend import ArrayInstance, Backend, BackendInstance, ModelSpec, Outputs
from serving.backends.base.parameters import Parameters, default_threads
from serving.backends.child.codec import decode_failed
from serving.backends.child.completion import complete_in_child
from serving.backends.child.isolation import STUB
from serving.backends.environments.interpreter import Interpreter, model_interpreter
from serving.core.datatypes import BY_DTYPE, Tensor
from serving.core.devices import Device
from serving.core.errors import ServingError, internal, invalid, not_found, unavailable

MISSING = (
    "TensorFlow is not installed: run pip install -r requirements/tensorflow.txt in the server's environment, or name an "
    "environment that has it in the model's parameter EXECUTION_ENV_PATH"
)


class TensorflowBackend(Backend):
    @classmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        """Complete the configuration from the signature in a child process, because only TensorFlow can read the signature."""
        folder = version_dir / config.default_model_filename
        if not (folder / "saved_model.pb").is_file():
            raise invalid(f"'{folder.name}' is no SavedModel: expected a folder with a saved_model.pb in it")
        python = model_interpreter(config, version_dir.parent)
        if python.folder is None and importlib.util.find_spec("tensorflow") is None:
            raise unavailable(MISSING)
        config.CopyFrom(_completed(config, folder, python))

    @classmethod
    def complete_here(cls, config: ModelConfig, folder: Path) -> None:
        """Complete the configuration from the signature. Called in the child, where TensorFlow may be imported."""
        signature.complete_config(config, _signature(_serving_function(_load(folder), config)))

    def load(self) -> None:
        tensorflow = _tensorflow()
        tensorflow.config.set_visible_devices([], "GPU")
        tensorflow.config.threading.set_intra_op_parallelism_threads(default_threads(self.spec.config))
        tensorflow.config.threading.set_inter_op_parallelism_threads(1)
        self._model = _load(self.spec.model_file)
        self._function = _serving_function(self._model, self.spec.config)
        config = ModelConfig()
        config.CopyFrom(self.spec.config)
        # Refuses a configuration that contradicts the file.
        signature.complete_config(config, _signature(self._function))

    def create_instance(self, device: Device, name: str) -> BackendInstance:
        return TensorflowInstance(self.spec, device, self._function)


class TensorflowInstance(ArrayInstance):
    def __init__(self, spec: ModelSpec, device: Device, function: "ServingFunction") -> None:
        super().__init__(spec, device)
        self._function = function
        self._constant = _tensorflow().constant

    def run(self, inputs: dict[str, Tensor], outputs: list[str]) -> Outputs:
        errors = _tensorflow().errors
        try:
            found = self._function(**{name: self._constant(array) for name, array in inputs.items()})
        except (errors.InvalidArgumentError, ValueError) as error:
            raise invalid(f"TensorFlow refused the request: {_first_line(error)}") from None
        except errors.OpError as error:
            raise internal(f"TensorFlow failed: {_first_line(error)}") from None
        return {name: np.asarray(found[name].numpy()) for name in outputs}


class TensorSpec(Protocol):
    """The part of tf.TensorSpec that this module uses."""

    @property
    def shape(self) -> "TensorShape": ...

    @property
    def dtype(self) -> "TensorflowType": ...


class TensorShape(Protocol):
    """tf.TensorShape. An unknown rank or size is None."""

    @property
    def rank(self) -> int | None: ...

    def __iter__(self) -> Iterator[int | None]: ...


class TensorflowType(Protocol):
    """tf.DType."""

    @property
    def name(self) -> str: ...

    @property
    def as_numpy_dtype(self) -> type: ...


class EagerTensor(Protocol):
    """tf.Tensor with its value."""

    def numpy(self) -> object: ...


class ServingFunction(Protocol):
    """A signature of a SavedModel: TensorFlow's ConcreteFunction, which takes inputs by name and returns tensors by name."""

    structured_input_signature: tuple[tuple[()], Mapping[str, TensorSpec]]
    structured_outputs: Mapping[str, TensorSpec]

    def __call__(self, **inputs: object) -> Mapping[str, "EagerTensor"]: ...


class SavedModel(Protocol):
    signatures: Mapping[str, ServingFunction]


# -- in the server ----------------------------------------------------------------------------------------------
def _completed(config: ModelConfig, folder: Path, python: Interpreter) -> ModelConfig:
    given = b64encode(config.SerializeToString()).decode()
    place, work = "while it read the SavedModel", "reading the SavedModel"
    answer = complete_in_child(config.name, python, STUB, folder, given, place, work)
    if answer.get("op") != "completed":
        raise decode_failed(answer)
    return ModelConfig.FromString(b64decode(str(answer["config"])))


# -- in the child ------------------------------------------------------------------------------------------------------
def _tensorflow() -> ModuleType:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return importlib.import_module("tensorflow")
    except ImportError:
        raise unavailable(MISSING) from None


def _load(folder: Path) -> SavedModel:
    if not (folder / "saved_model.pb").is_file():
        raise not_found(f"the version folder has no SavedModel '{folder.name}'")
    try:
        model: SavedModel = _tensorflow().saved_model.load(str(folder))
    except ServingError:
        raise
    except Exception as error:  # TensorFlow has no common type for damaged files
        raise invalid(f"the SavedModel cannot be loaded: {_first_line(error)}") from None

    return model


def _serving_function(model: SavedModel, config: ModelConfig) -> ServingFunction:
    name = Parameters.of(config).values.get("TF_SIGNATURE_DEF", "serving_default")
    found = dict(model.signatures)
    if name not in found:
        there = ", ".join(sorted(found)) or "none"
        raise invalid(f"the SavedModel has no signature '{name}'; it has {there}")
    return found[name]


def _signature(function: ServingFunction) -> Signature:
    """Return the keyword inputs and the outputs of a function, by name."""
    inputs = tuple(_tensor(name, spec) for name, spec in function.structured_input_signature[1].items())
    outputs = tuple(_tensor(name, spec) for name, spec in function.structured_outputs.items())
    return Signature(inputs, outputs)


def _tensor(name: str, spec: TensorSpec) -> TensorSignature:
    shape = None if spec.shape.rank is None else tuple(-1 if size is None else int(size) for size in spec.shape)
    if spec.dtype.name == "string":
        return TensorSignature(name, "BYTES", shape)
    row = BY_DTYPE.get(np.dtype(spec.dtype.as_numpy_dtype))
    if row is None:
        raise invalid(f"tensor '{name}' is of TensorFlow's type {spec.dtype.name}, which the protocol does not have")
    return TensorSignature(name, row.name, shape)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
