"""The table of backends: the facts about each that both programs use.

`KINDS` has a `BackendKind` for each backend. It tells the server which class to import and which files are model files. The
inspection recognizes files with it, and the validation checks parameters. The dashboard uses it for uploads, permissions and
the names of formats.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Rule = tuple[re.Pattern[str], str]  # the pattern of a parameter's value, and a message that names the expected value


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """A format of model files that a backend reads.

    name: the name of the format in reports and in the database. filename: the name of the model file, or folder, in a version's
    folder. title: the name that people use. phrase: the title in a sentence, if that is not "a <title> file". suffixes: the
    extensions of uploaded files of this format; () if the format cannot be uploaded.
    content: the kind of content of every file of this format. starts: the first bytes of every file of this format, if no other
    format begins with them. holds: the name of a member that every archive of this format has, packed or not. packed:
    extensions of its archives that other formats have, too. platform: Triton's name.
    """

    name: str
    filename: str
    title: str = ""
    phrase: str = ""
    suffixes: tuple[str, ...] = ()
    content: Literal["binary", "text", "zip"] = "binary"
    starts: bytes = b""
    holds: str = ""
    packed: tuple[str, ...] = ()
    platform: str = ""


@dataclass(frozen=True, slots=True)
class ParameterControl:
    """A parameter of a backend that has an input on the configuration page.

    field: the name of the form's field. of_version: the name of the same setting for a single version; "" if there is none.
    """

    key: str
    field: str
    label: str
    hint: str
    kind: Literal["text", "number", "switch"] = "text"
    of_version: str = ""
    version_hint: str = ""


@dataclass(frozen=True, slots=True)
class BackendKind:
    """A backend.

    class_path: "<module>:<class>" of the Backend, which the server imports when a model first needs it. formats: the formats
    that the backend reads; the file of the first format is the default model file. folder: a folder of this name in a version's
    folder selects this backend, whatever other files the version has. platforms: Triton's platform names, in addition to those
    of the formats. parameters: the parameters that are numbers or switches, with their rules.
    runs: the parameters that make code run, each with a sentence that says how; a switch counts only if it is on.
    instance_counts: the parameters that set the number of instances, which changes without a reload. controls: the parameters
    with inputs on the configuration page, under `title`. settings_file: the file in a version's archive that gives the settings
    which the configuration leaves out. is_data: whether the model files are data; the files of any other backend count as code.
    own_process: whether the instances always run in separate processes. cpu_instances: the number of instances that Triton
    starts on the CPU if the configuration gives none.
    """

    name: str
    class_path: str
    formats: tuple[ModelFormat, ...]
    folder: str = ""
    platforms: tuple[str, ...] = ()
    parameters: Mapping[str, Rule] = field(default_factory=dict)
    runs: Mapping[str, str] = field(default_factory=dict)
    instance_counts: tuple[str, ...] = ()
    title: str = ""
    controls: tuple[ParameterControl, ...] = ()
    settings_file: str = ""
    is_data: bool = False
    own_process: bool = False
    cpu_instances: int = 1

    @property
    def filename(self) -> str:
        return self.formats[0].filename

    @property
    def all_platforms(self) -> tuple[str, ...]:
        return (*(one.platform for one in self.formats if one.platform), *self.platforms)


_COUNT = (re.compile(r"[0-9]{1,9}"), "expected a whole number (0 for the default)")
_BYTES = (re.compile(r"[0-9]{1,20}"), "expected a number of bytes")
_SECONDS = (re.compile(r"[1-9][0-9]{0,8}"), "expected a whole number of seconds from 1")
_ON_OFF = (re.compile(r"0|1|true|false|on|off", re.IGNORECASE), "expected true or false")
_SWITCH = (re.compile(r"0|1|true|false", re.IGNORECASE), "expected true or false")

# Parameters have the names from the README of Triton's backend.
_DECLARED = (
    BackendKind(
        "onnxruntime",
        "serving.backends.onnxruntime.backend:OnnxRuntimeBackend",
        formats=(ModelFormat("onnx", "model.onnx", "ONNX", "an ONNX model", (".onnx",), platform="onnxruntime_onnx"),),
        parameters={
            "intra_op_thread_count": _COUNT,
            "inter_op_thread_count": _COUNT,
            "execution_mode": (re.compile(r"[01]"), "expected 0 (sequential) or 1 (parallel)"),
            "gpu_mem_limit": _BYTES,
            "cudnn_conv_algo_search": (re.compile(r"[012]"), "expected 0 (exhaustive), 1 (heuristic) or 2 (default)"),
            "arena_extend_strategy": (re.compile(r"[01]"), "expected 0 (next power of two) or 1 (same as requested)"),
            "do_copy_in_default_stream": _SWITCH,
            "enable_mem_arena": _SWITCH,
            "enable_mem_pattern": _SWITCH,
        },
        is_data=True,
        cpu_instances=2,
    ),
    BackendKind(
        "pytorch",
        "serving.backends.pytorch.backend:PytorchBackend",
        formats=(
            ModelFormat(
                "torchscript",
                "model.pt",
                "TorchScript",
                "a TorchScript model",
                (".pt", ".pth", ".torchscript"),
                content="zip",
                platform="pytorch_libtorch",
            ),
            ModelFormat(
                "torch_export", "model.pt2", "torch.export", "a torch.export archive", (".pt2",), content="zip"
            ),
            ModelFormat("aotinductor", "model.pt2", "AOTInductor", content="zip"),
        ),
        platforms=("libtorch", "torch_aoti"),
        parameters={
            "INTRA_OP_THREAD_COUNT": _COUNT,
            "INTER_OP_THREAD_COUNT": _COUNT,
            "DISABLE_OPTIMIZED_EXECUTION": _SWITCH,
            "INFERENCE_MODE": _SWITCH,
            "DISABLE_CUDNN": _SWITCH,
            "ENABLE_WEIGHT_SHARING": _SWITCH,
            "ENABLE_CACHE_CLEANING": _SWITCH,
            "ENABLE_JIT_EXECUTOR": _SWITCH,
            "ENABLE_JIT_PROFILING": _SWITCH,
            "ENABLE_TENSOR_FUSER": _SWITCH,
        },
    ),
    BackendKind(
        "tensorrt",
        "serving.backends.tensorrt.backend:TensorrtBackend",
        formats=(
            ModelFormat(
                "tensorrt",
                "model.plan",
                "TensorRT plan",
                suffixes=(".plan", ".engine", ".trt"),
                starts=b"ftrt",
                platform="tensorrt_plan",
            ),
        ),
    ),
    BackendKind(
        "python",
        "serving.backends.python.backend:PythonBackend",
        formats=(ModelFormat("python", "model.py", "Python", suffixes=(".py",), content="text"),),
        own_process=True,
    ),
    BackendKind(
        "tensorflow",
        "serving.backends.tensorflow.backend:TensorflowBackend",
        formats=(ModelFormat("tensorflow_savedmodel", "model.savedmodel", platform="tensorflow_savedmodel"),),
        platforms=("tensorflow_graphdef",),
        own_process=True,
    ),
    BackendKind(
        "torchserve",
        "serving.torchserve.backend.backend:TorchserveBackend",
        formats=(
            ModelFormat(
                "torchserve",
                "model.mar",
                "TorchServe archive",
                suffixes=(".mar",),
                content="zip",
                holds="MAR-INF/MANIFEST.json",
                packed=(".tar.gz", ".tgz"),  # the archives that torch-model-archiver writes with --archive-format tgz
            ),
        ),
        folder="MAR-INF",  # an archive that was unpacked into the version's folder
        parameters={
            "torchserve.response_timeout_s": _SECONDS,
            "torchserve.startup_timeout_s": _SECONDS,
            "torchserve.min_workers": _COUNT,
            "torchserve.max_workers": _COUNT,
            "torchserve.install_py_dep_per_model": _ON_OFF,
            "torchserve.model_metrics_auto_detect": _ON_OFF,
            "torchserve.limit_max_image_pixels": _ON_OFF,
            "torchserve.parts": _ON_OFF,
            "torchserve.metrics_mode": (re.compile(r"log|prometheus|legacy"), "expected log, prometheus or legacy"),
        },
        runs={
            "torchserve.handler": "runs '{value}' as the handler of version {number}",
            "torchserve.install_py_dep_per_model": "installs the packages that version {number} names, for it to run",
        },
        instance_counts=("torchserve.min_workers", "torchserve.max_workers"),
        title="TorchServe",
        controls=(
            ParameterControl(
                "torchserve.response_timeout_s",
                "torchserve_response_timeout_s",
                "Longest answer",
                "seconds, then the worker is replaced (responseTimeout); empty = as the archive says, or 120",
                "number",
                "response_timeout_s",
                "Seconds, then the worker is replaced",
            ),
            ParameterControl(
                "torchserve.startup_timeout_s",
                "torchserve_startup_timeout_s",
                "Longest start",
                "seconds for a worker to load the model (startupTimeout); empty = as the archive says, or 120",
                "number",
                "startup_timeout_s",
                "Seconds for a worker to load the model",
            ),
            ParameterControl(
                "torchserve.handler",
                "torchserve_handler",
                "Handler",
                "such as handler.py or module:function; empty = the manifest’s",
            ),
            ParameterControl(
                "torchserve.install_py_dep_per_model",
                "torchserve_install",
                "Install the archive’s requirements",
                "Into an environment of the model’s own, when it loads. Takes the permission to upload code.",
                "switch",
            ),
        ),
        settings_file="model-config.yaml",
        own_process=True,
    ),
)
KINDS = {kind.name: kind for kind in _DECLARED}
FORMATS = {one.name: one for kind in KINDS.values() for one in kind.formats}

# platform -> the backend that runs it; "" if the server itself runs it.
PLATFORMS = {
    **{platform: kind.name for kind in KINDS.values() for platform in kind.all_platforms},
    "ensemble": "",
}
# The name of a file or folder in a version's folder -> the backend, if the configuration names none. The first name that the
# version has decides.
BACKEND_OF_FILENAME = {
    **{kind.folder: kind.name for kind in KINDS.values() if kind.folder},
    **{one.filename: kind.name for kind in KINDS.values() for one in kind.formats},
}
# The extension of an uploaded model file -> the name of the file in a version's folder.
FILENAME_OF_SUFFIX = {suffix: one.filename for one in FORMATS.values() for suffix in one.suffixes}
FILENAME_OF_PACKED = {end: one.filename for one in FORMATS.values() for end in one.packed}


def formats_text(is_data: bool) -> str:
    """Return the formats that can be uploaded, such as "ONNX (.onnx)", of all backends with this value of `is_data`."""
    kinds = [kind for kind in KINDS.values() if kind.is_data is is_data]
    return ", ".join(f"{one.title} ({one.suffixes[0]})" for kind in kinds for one in kind.formats if one.suffixes)
