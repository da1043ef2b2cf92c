"""The report on a model file or folder: what it is, its signature, what is wrong, and a configuration for it.

A problem of severity `error` means that these files cannot be served with this configuration; a `warning` is for the person
who reviews the configuration.
"""

import re
from pathlib import Path
from typing import TypedDict

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config, validation
from repository.config.signature import Signature, SignatureObject
from repository.core.errors import RepositoryError
from repository.core.layout import CONFIG_FILE, parse_version
from serving.backends.onnxruntime.onnx_file import check_external_data, read_onnx
from serving.backends.pytorch.archive import read_archive
from serving.backends.table import backend_class
from serving.configuration.effective_config import auto_complete_backend
from serving.core.datatypes import BY_CONFIG, DATATYPES
from serving.core.errors import ServingError, not_found
from serving.inspection import formats
from serving.inspection.formats import Format, detect, find_model
from serving.inspection.python_model import read_python_model

_CHECK_LOADS_BELOW = (
    512 << 20
)  # bytes of an ONNX model with its weights: larger ones are not loaded to see whether they do
_NO_BACKEND = {
    "torchserve_archive": "a TorchServe archive is not served by any backend of this server",
    "safetensors": "the file holds weights without a model: export the model to ONNX, TorchScript or torch.export",
    "tensorflow_savedmodel": "a TensorFlow SavedModel is not inspected: copy its folder to <model>/1/model.savedmodel",
    "pickle": "a pickle is not loaded: save the model with torch.jit.save or torch.export.save",
    "zip": "the zip archive is no model file: upload what it holds",
    "text": "the file is text, not a model",
    "unknown": "the file is of no format that this server knows",
}


class TensorRow(TypedDict):
    """A tensor as model metadata shows it: -1 for the batch dimension in front. Datatype "" and no shape where unknown."""

    name: str
    datatype: str
    shape: list[int]


class ReportObject(TypedDict):
    """The report as it is printed, in JSON; see docs/server.md."""

    format: str
    backend: str
    filename: str
    inputs: list[TensorRow]
    outputs: list[TensorRow]
    signature: SignatureObject | None
    opset: int
    producer: str
    names: list[str]
    executes_code: bool
    problems: list[dict[str, str]]
    config: str


class Report:
    """Collects the answer; `as_object` is what is printed."""

    def __init__(self) -> None:
        self.format = formats.UNKNOWN
        self.inputs: list[TensorRow] = []
        self.outputs: list[TensorRow] = []
        self.signature: Signature | None = None  # what the file itself says, whatever a configuration makes of it
        self.opset = 0
        self.producer = ""
        self.names: list[str] = []  # files of the folder that the model file names as its weights
        self.problems: list[dict[str, str]] = []
        self.config = ""

    def error(self, message: str) -> None:
        self.problems.append({"severity": "error", "message": message})

    def warning(self, message: str) -> None:
        self.problems.append({"severity": "warning", "message": message})

    @property
    def sound(self) -> bool:
        return not any(problem["severity"] == "error" for problem in self.problems)

    def as_object(self) -> ReportObject:
        return {
            "format": self.format.name,
            "backend": self.format.backend,
            "filename": self.format.filename,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "signature": self.signature.to_json() if self.signature else None,
            "opset": self.opset,
            "producer": self.producer,
            "names": self.names,
            "executes_code": self.format.executes_code,
            "problems": self.problems,
            "config": self.config,
        }


def inspect(path: Path, name: str = "", config_file: Path | None = None) -> ReportObject:
    """Return the report on a file, a version folder or a model folder (its highest version). NOT_FOUND where there is none."""
    if not path.exists():
        raise not_found("there is no such file or folder")
    report = Report()
    given = _given_config(path, config_file, report)
    if given is not None and model_config.is_ensemble(given):
        report.format = Format("ensemble", executes_code=False)
        _finish(report, given, given)
        return report.as_object()
    folder = _version_folder(path)
    model = find_model(folder) if path.is_dir() else path
    report.format, problem = detect(model)
    config = ModelConfig(name=name or (given.name if given else "") or _name_from(path))
    if problem:
        report.error(problem)
    elif not report.format.backend:
        report.error(_NO_BACKEND[report.format.name])
    else:
        _read(report, model, folder, config)
    _leave_out_defaults(config)
    _finish(report, config, given)
    if given is not None and report.sound:
        _check_given(report, model, given, config.name)
    return report.as_object()


def _given_config(path: Path, config_file: Path | None, report: Report) -> ModelConfig | None:
    file = config_file or path / CONFIG_FILE
    if config_file is None and not (path.is_dir() and file.is_file()):
        return None
    try:
        return model_config.parse_bytes(file.read_bytes())
    except RepositoryError as error:
        report.error(f"{CONFIG_FILE}: {error}")
        return None


def _version_folder(path: Path) -> Path:
    """Return the folder itself, or the highest version in a model's folder; for a file the folder that holds it."""
    if not path.is_dir():
        return path.parent
    versions = [number for entry in path.iterdir() if entry.is_dir() and (number := parse_version(entry.name))]
    return path / str(max(versions)) if versions else path


def _name_from(path: Path) -> str:
    """Return a model name made of the file's or folder's: what may not be in one becomes '_'."""
    resolved = path.resolve()
    if path.is_dir() and parse_version(resolved.name):
        resolved = resolved.parent
    stem = resolved.name if path.is_dir() else resolved.stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", stem).lstrip(".")[:128] or "model"


# -- one reader for each format ----------------------------------------------------------------------------------------
def _read(report: Report, model: Path, folder: Path, config: ModelConfig) -> None:
    """Fill the report and complete `config` from the file alone."""
    config.backend = report.format.backend
    reader = {
        formats.ONNX: _read_onnx,
        formats.TORCHSCRIPT: _read_torchscript,
        formats.PYTHON: _read_python,
        formats.TENSORRT: _read_plan,
        formats.AOTINDUCTOR: _read_aotinductor,
    }.get(report.format, _complete)
    try:
        reader(report, model, folder, config)
        if report.sound:
            report.signature = backend_class(config.backend).file_signature(model)
    except ServingError as error:
        report.error(error.message)


def _complete(report: Report, model: Path, folder: Path, config: ModelConfig) -> None:
    """Complete what the server itself would complete, for a file under whatever name it has."""
    complete = ModelConfig()
    complete.CopyFrom(config)
    complete.default_model_filename = str(model.relative_to(folder))
    auto_complete_backend(complete, folder)
    backend_class(complete.backend).complete_config(complete, folder)
    config.CopyFrom(complete)


def _read_onnx(report: Report, model: Path, folder: Path, config: ModelConfig) -> None:
    from serving.backends.onnxruntime.backend import check_loads
    from serving.backends.onnxruntime.errors import unsupported_version

    onnx = read_onnx(model)
    report.opset, report.producer = onnx.opset, onnx.producer
    check_external_data(onnx, model.parent)
    inner = model.parent.relative_to(folder)
    report.names = sorted({(inner / entry.location).as_posix() for entry in onnx.external})
    _complete(report, model, folder, config)
    problem = unsupported_version(onnx)
    if problem:
        report.error(problem)
        return
    weights = {(model.parent / entry.location).resolve() for entry in onnx.external}
    if model.stat().st_size + sum(path.stat().st_size for path in weights) < _CHECK_LOADS_BELOW:
        check_loads(model)


def _read_torchscript(report: Report, model: Path, folder: Path, config: ModelConfig) -> None:
    from serving.backends.pytorch.torch_signature import torchscript_signature

    archive = read_archive(model)
    signature = torchscript_signature(model, archive)
    if all(tensor.datatype and tensor.shape is not None for tensor in (*signature.inputs, *signature.outputs)):
        _complete(report, model, folder, config)
        if config.max_batch_size:
            report.warning("the first dimension of the traced example is taken for the batch: see that it is")
        return
    _add_known(config, signature)
    report.warning(
        "TorchScript does not say the datatypes and shapes of this model's inputs and outputs: write them into the "
        "configuration, or save it with torch.jit.trace or torch.export"
    )


def _read_plan(report: Report, model: Path, folder: Path, config: ModelConfig) -> None:
    from serving.backends.tensorrt.engine import why_missing

    if not why_missing():
        _complete(report, model, folder, config)
        return
    report.warning(f"the plan cannot be read here, because {why_missing()}: write its inputs and outputs yourself")


def _read_aotinductor(report: Report, model: Path, folder: Path, config: ModelConfig) -> None:
    """Warn: the package's call specification is in compiled code, which inspection does not run."""
    config.platform = "torch_aoti"
    report.warning("an AOTInductor package does not say its inputs and outputs: write them into the configuration")


def _read_python(report: Report, model: Path, folder: Path, config: ModelConfig) -> None:
    source = read_python_model(model)
    for problem in source.problems:
        report.error(problem)
    config.max_batch_size = source.max_batch_size
    for entries, tensors in ((config.input, source.inputs), (config.output, source.outputs)):
        for tensor in tensors:
            data_type = mc.DataType.Value(tensor.data_type or "TYPE_INVALID")
            entries.add(name=tensor.name, data_type=data_type, dims=tensor.dims)
    if report.sound and not (config.input and config.output):
        report.warning("model.py does not say its inputs and outputs in a way that can be read: write them yourself")


def _add_known(config: ModelConfig, signature: Signature) -> None:
    """Add entries with as much as is known of each tensor."""
    for entries, tensors in ((config.input, signature.inputs), (config.output, signature.outputs)):
        for tensor in tensors:
            data_type = DATATYPES[tensor.datatype].config if tensor.datatype else mc.TYPE_INVALID
            entries.add(name=tensor.name, data_type=data_type, dims=tensor.shape or ())


def _leave_out_defaults(config: ModelConfig) -> None:
    """Clear what the server completes by itself: in the text it would bind later versions to this one's kind of file."""
    config.ClearField("default_model_filename")
    if config.platform != "torch_aoti":
        config.ClearField("platform")


# -- the given configuration, and the end ------------------------------------------------------------------------------
def _finish(report: Report, config: ModelConfig, given: ModelConfig | None) -> None:
    """Set signature and text as the file has them; a given configuration stays what it is unless it can be completed."""
    report.inputs = [_tensor(entry, config.max_batch_size) for entry in config.input]
    report.outputs = [_tensor(entry, config.max_batch_size) for entry in config.output]
    report.config = model_config.format(given if given is not None else config)


def _check_given(report: Report, model: Path, given: ModelConfig, name: str) -> None:
    """Complete a given configuration; report where it contradicts the file or breaks a rule."""
    completed = ModelConfig()
    completed.CopyFrom(given)
    completed.name = completed.name or name
    wanted = completed.default_model_filename
    if not model_config.backend_of(completed):
        completed.backend = report.format.backend
    try:
        completed.default_model_filename = model.name
        auto_complete_backend(completed, model.parent)
        if completed.backend != report.format.backend:
            report.error(
                f"the configuration's backend is '{completed.backend}', but the file is for {report.format.backend}"
            )
            return
        if report.format is not formats.PYTHON:  # its own code completes it, when it is loaded
            backend_class(completed.backend).complete_config(completed, model.parent)
    except ServingError as error:
        report.error(error.message)
        return
    completed.default_model_filename = wanted or report.format.filename
    for problem in validation.validate(completed, name=name, complete=report.format is not formats.PYTHON):
        report.error(str(problem))
    _finish(report, completed, completed)


def _tensor(entry: "mc.ModelInput | mc.ModelOutput", max_batch_size: int) -> TensorRow:
    row = BY_CONFIG.get(entry.data_type)
    shape = [-1, *entry.dims] if max_batch_size > 0 else list(entry.dims)
    return {"name": entry.name, "datatype": row.name if row else "", "shape": shape}
