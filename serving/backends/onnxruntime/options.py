"""Makes ONNX Runtime's session options, run options and execution providers from config.pbtxt.

Names and values are as in the README of Triton's onnxruntime_backend. Raises INVALID_ARG, with the option's name, for a wrong
value.
"""

import functools
import logging
import re
from pathlib import PurePosixPath

import onnxruntime as ort
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelOptimizationPolicy

from serving.backends.base.backend import ModelSpec
from serving.backends.base.parameters import Parameters, default_threads
from serving.core.devices import Device, gpu_count
from serving.core.errors import invalid, unavailable, unsupported

log = logging.getLogger(__name__)

Provider = tuple[str, dict[str, str]]

_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_CONV_SEARCH = {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"}
_ARENA = {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"}
_ENTRY_PREFIXES = ("session.", "optimization.", "mlas.")
# Entries that name files. A model's configuration must not make the server read or write other files.
_NAMES_A_FILE = re.compile(r"path|file|folder|directory|library|_dir$|^load_config$")
_NAMES_MEMORY = re.compile(r"user_compute_stream|^gpu_external|^context$")
_ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_KNOWN = {
    "intra_op_thread_count",
    "inter_op_thread_count",
    "execution_mode",
    "enable_mem_arena",
    "enable_mem_pattern",
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "do_copy_in_default_stream",
    _ARENA_SHRINKAGE,
}

_TENSORRT_PRECISION = {"FP32": "", "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
_TENSORRT_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_INTEGERS = {
    "max_workspace_size_bytes",
    "trt_max_partition_iterations",
    "trt_min_subgraph_size",
    "trt_dla_core",
    "trt_builder_optimization_level",
    "trt_ep_context_embed_mode",
}
_TENSORRT_BOOLEANS = {
    "int8_use_native_calibration_table",
    "trt_dla_enable",
    "trt_engine_cache_enable",
    "trt_force_sequential_engine_build",
    "trt_context_memory_sharing_enable",
    "trt_layer_norm_fp32_fallback",
    "trt_timing_cache_enable",
    "trt_force_timing_cache",
    "trt_detailed_build_log",
    "trt_build_heuristics_enable",
    "trt_sparsity_enable",
    "trt_cuda_graph_enable",
}
_TENSORRT_STRINGS = {
    "int8_calibration_table_name",
    "trt_engine_cache_prefix",
    "trt_auxiliary_streams",
    "trt_tactic_sources",
    "trt_profile_min_shapes",
    "trt_profile_max_shapes",
    "trt_profile_opt_shapes",
}
_TENSORRT_CACHES = {"trt_engine_cache_path", "trt_timing_cache_path"}


def check_options(spec: ModelSpec) -> None:
    """Raise INVALID_ARG for any wrong option, even if only a GPU uses it."""
    config = spec.config
    parameters = Parameters.of(config)
    parameters.warn_of_unknown(_KNOWN, _ENTRY_PREFIXES)
    session_options(config)
    run_options(config)
    _cuda_options(spec, Device("gpu"))
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if accelerator.name == "tensorrt":
            _tensorrt_options(spec, dict(accelerator.parameters))
        elif accelerator.name != "cuda":
            raise invalid(f"unknown gpu_execution_accelerator '{accelerator.name}'; expected tensorrt or cuda")
    for accelerator in config.optimization.execution_accelerators.cpu_execution_accelerator:
        if accelerator.name != "openvino":
            raise invalid(f"unknown cpu_execution_accelerator '{accelerator.name}'; expected openvino")
    if config.model_operations.op_library_filename:
        raise unsupported(
            "custom operator libraries (model_operations) are not supported: an ONNX model must not bring code"
        )


def session_options(config: ModelConfig) -> ort.SessionOptions:
    parameters = Parameters.of(config)
    options = ort.SessionOptions()
    options.log_severity_level = 4  # ONNX Runtime's own lines have paths; the errors of this package have none
    options.graph_optimization_level = _graph_level(config)
    intra = parameters.integer("intra_op_thread_count", 0, maximum=1024)
    options.intra_op_num_threads = intra or default_threads(config)
    options.inter_op_num_threads = parameters.integer("inter_op_thread_count", 0, maximum=1024)
    parallel = parameters.choice("execution_mode", {"0": "", "1": "parallel"}, "")
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = parameters.boolean("enable_mem_arena", True)
    options.enable_mem_pattern = parameters.boolean("enable_mem_pattern", True) and not parallel
    # Otherwise idle pool threads would spin on cores that the event loop and other models need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    for key, value in parameters.values.items():
        if key.startswith(_ENTRY_PREFIXES):
            if _NAMES_A_FILE.search(key):
                raise invalid(f"parameter '{key}' is not allowed: it names a file on the server")
            options.add_session_config_entry(key, value)
    return options


def _graph_level(config: ModelConfig) -> ort.GraphOptimizationLevel:
    level = config.optimization.graph.level
    try:
        return _LEVELS[level]
    except KeyError:
        raise invalid(f"optimization graph level must be one of -1, 0, 1, 2, but is {level}") from None


def run_options(config: ModelConfig) -> ort.RunOptions:
    options = ort.RunOptions()
    options.log_severity_level = 4
    shrinkage = Parameters.of(config).values.get(_ARENA_SHRINKAGE)
    if shrinkage is not None:
        if not re.fullmatch(r"(cpu|gpu):\d+(;(cpu|gpu):\d+)*", shrinkage):
            raise invalid(f"parameter '{_ARENA_SHRINKAGE}' must read like 'cpu:0;gpu:0', but is '{shrinkage}'")
        options.add_run_config_entry(_ARENA_SHRINKAGE, shrinkage)
    return options


def session_is_exclusive(config: ModelConfig, device: Device) -> bool:
    """Return whether an instance needs its own session. TensorRT runs one batch at a time. A CUDA graph owns its buffers."""
    if device.kind != "gpu":
        return False
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    graphs = ("1", "true")  # values of enable_cuda_graph
    return any(
        a.name == "tensorrt" or a.parameters.get("enable_cuda_graph", "").lower() in graphs for a in accelerators
    )


def providers_for(spec: ModelSpec, device: Device) -> list[Provider]:
    """Return the execution providers of a session, in order of preference. The first provider must start."""
    cpu: Provider = ("CPUExecutionProvider", {})
    accelerators = spec.config.optimization.execution_accelerators
    if device.kind == "gpu":
        providers: list[Provider] = []
        for accelerator in accelerators.gpu_execution_accelerator:
            if accelerator.name == "tensorrt":
                options = _tensorrt_options(spec, dict(accelerator.parameters))
                providers.append(("TensorrtExecutionProvider", {"device_id": str(device.id), **options}))
        return [*providers, ("CUDAExecutionProvider", _cuda_options(spec, device)), cpu]
    for accelerator in accelerators.gpu_execution_accelerator:
        log.warning("execution accelerator '%s' of model '%s' is not used on the CPU", accelerator.name, spec.name)
    for accelerator in accelerators.cpu_execution_accelerator:
        if "OpenVINOExecutionProvider" not in ort.get_available_providers():
            raise unavailable(
                "the execution accelerator 'openvino' is missing: this onnxruntime package was built without OpenVINO"
            )
        return [("OpenVINOExecutionProvider", {"device_type": "CPU", **_passed_on(accelerator)}), cpu]
    return [cpu]


def _cuda_options(spec: ModelSpec, device: Device) -> dict[str, str]:
    parameters = Parameters.of(spec.config)
    options = {
        "device_id": str(device.id),
        "cudnn_conv_algo_search": parameters.choice("cudnn_conv_algo_search", _CONV_SEARCH, "EXHAUSTIVE"),
        "arena_extend_strategy": parameters.choice("arena_extend_strategy", _ARENA, "kNextPowerOfTwo"),
        "do_copy_in_default_stream": "1" if parameters.boolean("do_copy_in_default_stream", True) else "0",
    }
    limit = parameters.integer("gpu_mem_limit", 0, maximum=2**64 - 1)
    if limit:
        options["gpu_mem_limit"] = str(limit)
    for accelerator in spec.config.optimization.execution_accelerators.gpu_execution_accelerator:
        if accelerator.name == "cuda":
            options.update(_passed_on(accelerator))
    return options


def _passed_on(accelerator: ModelOptimizationPolicy.ExecutionAccelerators.Accelerator) -> dict[str, str]:
    """Return the parameters for the provider. Raises INVALID_ARG for a parameter that names a file or memory."""
    for key in accelerator.parameters:
        if _NAMES_A_FILE.search(key) or _NAMES_MEMORY.search(key):
            raise invalid(
                f"{accelerator.name} parameter '{key}' is not allowed: it names a file or memory of the server"
            )
    return dict(accelerator.parameters)


def _tensorrt_options(spec: ModelSpec, values: dict[str, str]) -> dict[str, str]:
    """Return the TensorRT provider's options from Triton's accelerator parameters."""
    parameters = Parameters(values, "tensorrt parameter")
    precision = parameters.choice("precision_mode", _TENSORRT_PRECISION, "")
    options = {precision: "1"} if precision else {}
    for key in values.keys() - {"precision_mode"}:
        name = _TENSORRT_RENAMED.get(key, key)
        if key in _TENSORRT_INTEGERS:
            options[name] = str(parameters.integer(key, 0))
        elif key in _TENSORRT_BOOLEANS:
            options[name] = "1" if parameters.boolean(key, False) else "0"
        elif key in _TENSORRT_STRINGS:
            options[name] = values[key]
        elif key in _TENSORRT_CACHES:
            options[name] = _inside_model(spec, key, values[key])
        else:
            raise invalid(f"tensorrt parameter '{key}' is unknown or names a file outside the model's folder")
    return options


def _inside_model(spec: ModelSpec, key: str, value: str) -> str:
    """Return a path inside the model's own folder. A cached engine is code, and must not come from elsewhere."""
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts:
        raise invalid(f"tensorrt parameter '{key}' must be a path inside the model's folder")
    return str(spec.version_dir.parent / path)


@functools.cache
def why_no_cuda() -> str:
    """Return why ONNX Runtime cannot use CUDA on this machine; "" if it can.

    A provider in the list of available providers may still fail. Only a session that has started with the provider proves that
    it works.
    """
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return "this onnxruntime package was built without CUDA"
    if not gpu_count():
        return "this machine has no CUDA device"
    ort.preload_dlls()  # CUDA and cuDNN from NVIDIA's Python packages, if these are installed
    try:
        session = ort.InferenceSession(_IDENTITY, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    except Exception:
        return _LIBRARIES_MISSING
    return "" if "CUDAExecutionProvider" in session.get_providers() else _LIBRARIES_MISSING


_LIBRARIES_MISSING = f"the libraries of CUDA {ort.cuda_version} and cuDNN that ONNX Runtime needs cannot be loaded"
# ModelProto of IR 8 and opset 13: y = Identity(x), FP32 [1].
_IDENTITY = (
    b'\x08\x08:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
