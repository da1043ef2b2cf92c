"""The ONNX Runtime backend: all instances on one device share one session.

A session may run on many threads at the same time, so instances share its weights, its arena and its thread pool. More
instances therefore cost nothing. Sessions of the TensorRT provider, and sessions with CUDA graphs, cannot run concurrently, so
each of them belongs to one instance.
"""

import copy
import ctypes
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime as ort
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import class_names, variable_batch
from repository.config.signature import Signature, TensorSignature, complete
from serving.backends.base.backend import ArrayInstance, Backend, ModelSpec, Outputs
from serving.backends.base.signature import complete_config
from serving.backends.onnxruntime.adaptations import adapt
from serving.backends.onnxruntime.errors import run_error, session_error, unsupported_version
from serving.backends.onnxruntime.onnx_file import OnnxModel, check_external_data, read_onnx
from serving.backends.onnxruntime.options import (
    Provider,
    check_options,
    providers_for,
    run_options,
    session_is_exclusive,
    session_options,
    why_no_cuda,
)
from serving.backends.onnxruntime.output_buffers import OutputBuffers, PreallocatedOutputs, bind
from serving.core.batch import Batch
from serving.core.datatypes import Tensor
from serving.core.device_tensor import DeviceTensor, host_array
from serving.core.devices import Device
from serving.core.errors import ServingError, invalid, not_found, unavailable

# Errors reach the client and the log as ServingError. ONNX Runtime's own lines would repeat them, with paths.
ort.set_default_logger_severity(4)

_BF16 = np.dtype(ml_dtypes.bfloat16)
_ONNX_BF16 = 16  # TensorProto.BFLOAT16

# Dims that a configuration may have for a tensor whose shape is not in the file.
_ANY_SIZE = frozenset((1, -1))
_ORT_TYPES = {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(bool)": "BOOL",
    "tensor(string)": "BYTES",
} | {f"tensor({sign}int{bits})": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)}

Results = Sequence[Tensor | DeviceTensor]
Run = Callable[[list[str], dict[str, Tensor], ort.RunOptions], Results]
"""Returns the outputs of these names for the inputs."""


class OnnxRuntimeBackend(Backend):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._sessions: dict[Device, ort.InferenceSession] = {}
        self._model: OnnxModel | None = None
        self._scalars: list[str] = []  # inputs without dimensions, which are [1] in the configuration
        self._lock = threading.Lock()  # each instance is made on its own thread

    @classmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        model_file = version_dir / config.default_model_filename
        model, folder = _read(model_file, config)
        complete_config(config, _signature(config, model, folder, model_file))
        _name_classes(config, model)

    @classmethod
    def file_signature(cls, model_file: Path) -> Signature:
        model, folder = _read(model_file)
        return _signature(ModelConfig(), model, folder, model_file, unknown=None)

    def load(self) -> None:
        """Check the file and every setting, so that errors come before any weight is read."""
        self._model, folder = _read(self.spec.model_file, self.spec.config)
        model = self._model
        check_external_data(model, folder)
        problem = unsupported_version(model)
        if problem:
            raise invalid(problem)
        check_options(self.spec)
        signature = model.signature()
        if _may_fit_inferred(self.spec.config, signature):
            signature = _inferred(self.spec.config, signature, model, _onnx_file(self.spec.model_file), ())
        # The configuration is complete, so this only checks it against the file.
        complete_config(copy.deepcopy(self.spec.config), signature)
        if not self.spec.config.max_batch_size:
            self._scalars = [tensor.name for tensor in signature.inputs if tensor.shape == ()]

    def create_instance(self, device: Device, name: str) -> "OnnxRuntimeInstance":
        if session_is_exclusive(self.spec.config, device):
            return OnnxRuntimeInstance(self.spec, device, self._start_session(device), self._scalars)
        with self._lock:
            session = self._sessions.get(device)
            if session is None:
                session = self._sessions[device] = self._start_session(device)
        return OnnxRuntimeInstance(self.spec, device, session, self._scalars)

    def unload(self) -> None:
        self._sessions.clear()

    def _start_session(self, device: Device) -> ort.InferenceSession:
        if device.kind == "gpu" and why_no_cuda():
            raise unavailable(f"model '{self.spec.name}' cannot run on {device}: {why_no_cuda()}")
        assert self._model is not None
        providers = providers_for(self.spec, device)
        options = session_options(self.spec.config)
        session = _session(self._model, _onnx_file(self.spec.model_file), options, providers)
        wanted = providers[0][0]
        if wanted not in session.get_providers():
            # ONNX Runtime silently uses the next provider if a library is missing.
            raise unavailable(f"ONNX Runtime could not start {wanted} on {device}: one of its libraries is missing")
        return session

    @classmethod
    def gpu_available(cls) -> tuple[bool, str]:
        return not why_no_cuda(), why_no_cuda()


class OnnxRuntimeInstance(ArrayInstance):
    """Runs a session. The device and the datatypes decide, once, how inputs and outputs are passed.

    On the CPU, with plain numpy types, a session's `run` is the fastest way (2.9 us for a tiny model; I/O binding takes 4.6 us,
    OrtValues 30 us). On a GPU, I/O binding takes inputs on the device by reference (DLPack). BF16 uses binding too, because
    ONNX Runtime cannot exchange BF16 as numpy arrays.
    """

    def __init__(self, spec: ModelSpec, device: Device, session: ort.InferenceSession, scalars: list[str]) -> None:
        super().__init__(spec, device)
        self._options = run_options(spec.config)
        self._session: ort.InferenceSession | None = session
        types = {node.type for node in (*session.get_inputs(), *session.get_outputs())}
        self._on_gpu = device.kind == "gpu"
        self.any_thread = not self._on_gpu
        self._stay_on_device = False
        # InferenceSession.run wraps this method. Its checks are not needed here, and take a fifth of the time of a small run.
        # If a provider fails, the wrapper also silently uses another one.
        run: Run = session._sess.run
        self._run: Run = self._run_bound if self._on_gpu or "tensor(bfloat16)" in types else run
        self._shapes_vary = any(-1 in entry.dims for entry in spec.config.input)
        self._scalar_inputs = scalars
        self._batches = spec.config.max_batch_size > 0
        # A scalar has no dims in the model, but at least one in the configuration.
        self._scalar_shapes = {
            entry.name: (1,) * max(1, len(entry.reshape.shape if entry.HasField("reshape") else entry.dims))
            for entry in spec.config.output
        }
        self._text_inputs = [node.name for node in session.get_inputs() if node.type == "tensor(string)"]
        self._text_outputs = {node.name for node in session.get_outputs() if node.type == "tensor(string)"}
        self._converts_inputs = bool(scalars or self._text_inputs)
        self._converts_outputs = bool(self._text_outputs) or not self._batches
        usual = not (self._on_gpu or self._ragged or self._text_inputs)
        self._preallocated = PreallocatedOutputs(spec.config, session) if usual else None
        self._buffers: OutputBuffers | None = None  # the buffers of the running batch

    def execute(self, batch: Batch) -> None:
        self._stay_on_device = self._on_gpu and all(request.asked.device_outputs for request in batch.requests)
        self._buffers = None if self._preallocated is None else self._preallocated.buffers(batch)
        super().execute(batch)

    def run(self, inputs: dict[str, Tensor], outputs: list[str]) -> Outputs:
        if self._converts_inputs:
            inputs = self._as_session_takes(inputs)
        run = self._run if self._buffers is None else self._run_into_buffers
        try:
            results = run(outputs, inputs, self._options)
        except Exception as error:
            raise run_error(error, self._shapes_vary) from None
        named = dict(zip(outputs, results, strict=True))
        return self._as_clients_take(named) if self._converts_outputs else named

    def _as_session_takes(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        converted = dict(inputs)
        for name in self._scalar_inputs:
            if name in inputs:
                converted[name] = inputs[name].reshape(())
        for name in self._text_inputs:
            if name in inputs:
                converted[name] = _decoded(converted[name], name)
        return converted

    def _as_clients_take(self, outputs: dict[str, "Tensor | DeviceTensor"]) -> dict[str, "Tensor | DeviceTensor"]:
        for name in self._text_outputs & outputs.keys():
            outputs[name] = _encoded(host_array(outputs[name]))
        if not self._batches:
            for name, array in outputs.items():
                if not array.shape:
                    outputs[name] = array.reshape(self._scalar_shapes[name])
        return outputs

    def close(self) -> None:
        """Release the session. A session's memory is freed when the last instance and the backend have released the session."""
        self._session = None
        self._run = _closed

    def _run_into_buffers(
        self, outputs: list[str], inputs: dict[str, Tensor], options: ort.RunOptions
    ) -> Sequence[Tensor | DeviceTensor]:
        assert self._session is not None
        assert self._buffers is not None
        buffers, self._buffers = self._buffers, None
        binding = self._session.io_binding()
        for name, tensor in inputs.items():
            binding.bind_ortvalue_input(name, _ort_value(tensor))
        bind(binding, buffers)
        try:
            self._session.run_with_iobinding(binding, options)
        except Exception:
            # Outputs have other shapes than the file declares, or the request is wrong. `_run` gives a better error message.
            return self._run(outputs, inputs, options)
        return [buffers[name] for name in outputs]

    def _run_bound(
        self, outputs: list[str], inputs: dict[str, Tensor], options: ort.RunOptions
    ) -> Sequence[Tensor | DeviceTensor]:
        assert self._session is not None
        binding = self._session.io_binding()
        for name, tensor in inputs.items():
            binding.bind_ortvalue_input(name, _ort_value(tensor))
        for name in outputs:
            if self._stay_on_device and name not in self._text_outputs:
                binding.bind_output(name, "cuda", self.device.id)
            else:
                binding.bind_output(name)  # ONNX Runtime copies to the host and waits for the copy
        self._session.run_with_iobinding(binding, options)
        binding.synchronize_outputs()
        values = binding.get_outputs()
        return (
            [self._device_tensor(value) for value in values] if self._stay_on_device else list(map(_host_array, values))
        )

    def _device_tensor(self, value: ort.OrtValue) -> DeviceTensor | Tensor:
        """Return a tensor over the same memory, which the session frees. Strings are always on the host."""
        if value.data_type() == "tensor(string)":
            return _host_array(value)
        import torch

        tensor = torch.from_dlpack(value)
        is_bool = value.data_type() == "tensor(bool)"  # DLPack tensors of booleans are bytes
        return DeviceTensor.of(tensor.view(torch.bool) if is_bool else tensor, owner=self._session)


def _signature(
    config: ModelConfig, model: OnnxModel, folder: Path, model_file: Path, unknown: tuple[int, ...] | None = ()
) -> Signature:
    """Return the signature of a file, with the shapes and datatypes that ONNX Runtime infers if the configuration depends on
    them. unknown: the shape to use for a tensor whose shape remains unknown."""
    signature = model.signature()
    if _depends_on_inference(config, signature) or _may_fit_inferred(config, signature):
        check_external_data(model, folder)
        return _inferred(config, signature, model, _onnx_file(model_file), unknown)
    return signature


def _may_fit_inferred(config: ModelConfig, signature: Signature) -> bool:
    """Return whether ONNX Runtime should infer sizes of outputs that the file leaves open, because the configuration lacks them
    or differs from the file. Triton uses the shapes of outputs that ONNX Runtime infers."""
    open_sizes = any(-1 in (output.shape or ())[1:] for output in signature.outputs)
    open_rows = any(-1 in (output.shape or ()) for output in signature.outputs)
    configured = config.output and all(output.dims for output in config.output)
    return open_sizes if not configured else open_rows and bool(complete(copy.deepcopy(config), signature))


def _depends_on_inference(config: ModelConfig, signature: Signature) -> bool:
    """Return whether the configuration depends on shapes that the file lacks, which need a session to infer."""
    unknown = {tensor.name for tensor in (*signature.inputs, *signature.outputs) if tensor.shape is None}
    entries = [entry for entry in (*config.input, *config.output) if entry.name in unknown]
    if not unknown or (entries and config.input and config.output):
        return any(not entry.dims or not _ANY_SIZE.issuperset(entry.dims) for entry in entries)
    return True


def _name_classes(config: ModelConfig, model: OnnxModel) -> None:
    """Write the file's class names into the configuration, unless it already has class names."""
    served = {output.name for output in config.output}
    names = {name: found for name, found in model.adaptations.class_names.items() if name in served}
    if names and class_names.KEY not in config.parameters:
        config.parameters[class_names.KEY].string_value = json.dumps(names, ensure_ascii=False)


def _inferred(
    config: ModelConfig,
    signature: Signature,
    model: OnnxModel,
    path: Path,
    unknown: tuple[int, ...] | None,
) -> Signature:
    """Return the signature, completed with the datatypes and shapes that ONNX Runtime infers.

    As in Triton, a tensor of unknown shape is [1] unless the configuration gives its dims. For these dims Triton accepts only
    [1], but this server accepts -1 too. Outputs without a datatype of the protocol are left out. unknown: the shape to use for
    a tensor whose shape remains unknown.
    """
    session = check_loads(model, path)
    found = {node.name: node for node in (*session.get_inputs(), *session.get_outputs())}
    given = {entry.name: list(entry.dims) for entry in (*config.input, *config.output)}

    def known(tensor: TensorSignature) -> TensorSignature:
        node, dims, shape = found[tensor.name], given.get(tensor.name), tensor.shape
        if shape is None and node.shape:
            shape = tuple(size if isinstance(size, int) else -1 for size in node.shape)
        elif shape is None and not dims:
            shape = unknown
        elif shape is None and not _ANY_SIZE.issuperset(dims or ()):
            raise invalid(
                f"'{tensor.name}' has dims {dims}, but the file does not say its shape: expected 1 or -1 in each"
            )
        return tensor._replace(shape=shape, datatype=tensor.datatype or _ORT_TYPES.get(node.type, ""))

    inputs, outputs = (tuple(map(known, tensors)) for tensors in (signature.inputs, signature.outputs))
    served = tuple(_with_inferred(tensor, found[tensor.name].shape) for tensor in outputs if tensor.datatype)
    return replace(signature, inputs=inputs, outputs=served)


def _with_inferred(output: TensorSignature, shape: Sequence[int | str | None]) -> TensorSignature:
    """Return an output with sizes that ONNX Runtime infers in place of sizes that the file leaves open."""
    if output.shape is None or len(shape) != len(output.shape):
        return output
    sizes = zip(output.shape, shape, strict=True)
    inferred = tuple(found if own == -1 and isinstance(found, int) and found >= 0 else own for own, found in sizes)
    return output if inferred == output.shape else output._replace(inferred=inferred)


def check_loads(model: OnnxModel, path: Path) -> ort.InferenceSession:
    """Start a session without optimisation, on the CPU, or on a GPU if the CPU lacks an operator. Raises INVALID_ARG if ONNX
    Runtime refuses the model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    cpu: Provider = ("CPUExecutionProvider", {})
    try:
        return _session(model, path, options, [cpu])
    except ServingError:
        if why_no_cuda():
            raise
    return _session(model, path, options, [("CUDAExecutionProvider", {}), cpu])


def _session(
    model: OnnxModel, path: Path, options: ort.SessionOptions, providers: Sequence[Provider]
) -> ort.InferenceSession:
    """Start a session of a file, or of the model changed in memory. Raises INVALID_ARG if ONNX Runtime refuses the model."""
    source: str | bytes = str(path)
    if model.adaptations.in_memory:
        source = adapt(path, model.adaptations, bool(model.opset))
        if model.external:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    try:
        return ort.InferenceSession(source, options, providers=providers)
    except Exception as error:
        raise session_error(error) from None


def _closed(outputs: list[str], inputs: dict[str, Tensor], options: ort.RunOptions) -> Results:
    raise unavailable("this instance is closed")


def _ort_value(tensor: Tensor | DeviceTensor) -> ort.OrtValue:
    """Return an OrtValue over an array on the host or a tensor on a GPU, without a copy."""
    if isinstance(tensor, DeviceTensor):
        return ort.OrtValue.from_dlpack(tensor)
    tensor = np.ascontiguousarray(tensor)
    if tensor.dtype == _BF16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(tensor.view(np.uint16), _ONNX_BF16)
    return ort.OrtValue.ortvalue_from_numpy(tensor)


def _host_array(value: ort.OrtValue) -> Tensor:
    if value.data_type() != "tensor(bfloat16)":
        array: Tensor = value.numpy()
        return array
    size = value.tensor_size_in_bytes()
    if size == 0:
        return np.empty(value.shape(), _BF16)
    memory = (ctypes.c_char * size).from_address(value.data_ptr())
    memory.owner = value  # keeps the tensor while there are views of it
    return np.frombuffer(memory, _BF16).reshape(value.shape())


def _decoded(array: Tensor, name: str) -> Tensor:
    """Return BYTES elements as str, for ONNX Runtime. Raises INVALID_ARG if an element is not UTF-8."""
    decoded = np.empty(array.shape, np.object_)
    try:
        decoded.reshape(-1)[:] = [e.decode() if isinstance(e, bytes) else str(e) for e in array.reshape(-1).tolist()]
    except UnicodeDecodeError:
        raise invalid(
            f"input '{name}' has an element that is not UTF-8 text, which is all that ONNX strings can hold"
        ) from None
    return decoded


def _encoded(array: Tensor) -> Tensor:
    encoded = np.empty(array.shape, np.object_)
    encoded.reshape(-1)[:] = [str(element).encode() for element in array.reshape(-1).tolist()]
    return encoded


def _onnx_file(path: Path) -> Path:
    """Return the file of a model. As in Triton, a model may be a folder with model.onnx and its external data."""
    return path / "model.onnx" if path.is_dir() else path


def _read(model_file: Path, config: ModelConfig | None = None) -> tuple[OnnxModel, Path]:
    """Read a file, apply the changes that the configuration asks for, and return the model and the file's folder."""
    path = _onnx_file(model_file)
    if not path.is_file():
        raise not_found(f"the version folder has no '{model_file.name}'")
    model = read_onnx(path)
    if config is not None and variable_batch.is_requested(config):
        model.adapt_batch()
    return model, path.parent
