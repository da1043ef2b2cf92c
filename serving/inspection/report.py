"""The report on a model file or folder: its format, signature, problems, and a configuration for it.

A problem of severity `error` means that these files cannot be served with this configuration. A `warning` is for the person
who reviews the configuration. A `note` describes outputs that are served in another form than the file has.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import class_names, model_config, validation, variable_batch
from repository.config.backends import BACKEND_OF_FILENAME
from repository.config.signature import Signature, SignatureObject
from repository.core.errors import RepositoryError
from repository.core.json_types import Json
from repository.core.layout import CONFIG_FILE, parse_version
from repository.files import foreign_formats
from serving.backends.base.backend import Review
from serving.backends.onnxruntime.onnx_file import (
    OnnxModel,
    check_external_data,
    missing_external_data,
    read_onnx,
)
from serving.backends.pytorch.archive import read_archive
from serving.backends.table import backend_class
from serving.configuration.effective_config import auto_complete_backend
from serving.core.datatypes import BY_CONFIG, DATATYPES
from serving.core.errors import ServingError, not_found
from serving.inspection import formats
from serving.inspection.formats import MEANT, Format, detect, find_model
from serving.inspection.python_model import read_python_model

# An ONNX model with fewer bytes than this, weights included, is loaded as a test.
_CHECK_LOADS_BELOW = 512 << 20
_MAX_POINTERS = 5  # how many pointers the problems name


class TensorRow(TypedDict):
    """A tensor as in model metadata, with -1 as the first dimension for the batch. An unknown datatype is "", an unknown shape
    is empty."""

    name: str
    datatype: str
    shape: list[int]


class ReportObject(TypedDict):
    """The report in the form that is printed as JSON; see docs/server.md."""

    format: str
    backend: str
    filename: str
    inputs: list[TensorRow]
    outputs: list[TensorRow]
    signature: SignatureObject | None
    opset: int
    producer: str
    names: list[str]
    missing: list[str]
    class_names: dict[str, list[str]]
    archive: Mapping[str, Json] | None  # the description of an archive, or None for other files
    executes_code: bool
    problems: list[dict[str, str]]
    config: str
    batching_config: str


class Report:
    """Collects the report; `as_object` returns the report for printing."""

    def __init__(self) -> None:
        self.format = formats.UNKNOWN
        self.inputs: list[TensorRow] = []
        self.outputs: list[TensorRow] = []
        self.signature: Signature | None = None  # the signature of the file itself, without any configuration
        self.opset = 0
        self.producer = ""
        self.names: list[str] = []  # files of weights that the model file names
        self.missing: list[str] = []  # files in `names` that are missing
        self.class_names: dict[str, list[str]] = {}  # output -> the names of its classes, if the file has them
        self.archive: Mapping[str, Json] | None = None
        self.problems: list[dict[str, str]] = []
        self.config = ""
        # The configuration with a variable first dimension for a model that was exported for one row, if a trial allows it.
        self.batching_config = ""

    def error(self, message: str, code: str = "") -> None:
        """Add a problem that prevents serving. code: lines for Python or a shell that solve the problem."""
        self._add("error", message, code)

    def warning(self, message: str, code: str = "") -> None:
        self._add("warning", message, code)

    def note(self, message: str) -> None:
        self._add("note", message, "")

    def add(self, review: Review) -> None:
        """Add the review by the file's backend."""
        self.archive = review.archive
        for error in review.errors:
            self.error(error)
        for warning in review.warnings:
            self.warning(warning)
        for note in review.notes:
            self.note(note)

    def _add(self, severity: str, message: str, code: str) -> None:
        self.problems.append({"severity": severity, "message": message, **({"code": code} if code else {})})

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
            "missing": self.missing,
            "class_names": self.class_names,
            "archive": self.archive,
            "executes_code": self.format.executes_code,
            "problems": self.problems,
            "config": self.config,
            "batching_config": self.batching_config,
        }


def inspect(path: Path, name: str = "", config_file: Path | None = None) -> ReportObject:
    """Return the report on a file, a version folder or a model folder (its highest version). Raises NOT_FOUND without it."""
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
    if given is not None and variable_batch.is_requested(given):
        config.parameters[variable_batch.KEY].string_value = "true"
    if problem:
        report.error(problem)
    elif not report.format.backend:
        kind = foreign_formats.BY_NAME[report.format.name]
        report.error(kind.sentence, kind.code)
    elif path.is_dir() and not _is_found(model, given):
        ending = Path(report.format.filename).suffix
        report.error(
            f"'{model.name}' is {report.format.name} by its content: give it the ending {ending}, as the server expects"
        )
    elif not (path.is_dir() and _say_pointers(report, folder)):
        _read(report, model, folder, config)
    _finish(report, config, given)
    if given is not None and report.sound:
        _check_given(report, model, given, config.name)
    return report.as_object()


def _say_pointers(report: Report, folder: Path) -> bool:
    """Report files that are Git LFS pointers, which the model's reader would misread. Return whether there are such files."""
    found = formats.pointers(folder)
    for path in found[:_MAX_POINTERS]:
        report.error(
            f"'{path.relative_to(folder).as_posix()}': {foreign_formats.LFS_POINTER.sentence}",
            foreign_formats.LFS_POINTER.code,
        )
    if len(found) > _MAX_POINTERS:
        report.error(f"{len(found) - _MAX_POINTERS} more files are pointers of Git LFS")
    return bool(found)


def _is_found(model: Path, given: ModelConfig | None) -> bool:
    """Return whether a server would find the model's file in a version folder by its name."""
    named = given is not None and given.default_model_filename == model.name
    return named or model.name in BACKEND_OF_FILENAME or model.suffix.lower() in MEANT


def _given_config(path: Path, config_file: Path | None, report: Report) -> ModelConfig | None:
    file = config_file or path / CONFIG_FILE
    if config_file is None and not (path.is_dir() and file.is_file()):
        return None
    try:
        return model_config.parse_bytes(file.read_bytes())
    except RepositoryError as error:
        downloaded = foreign_formats.stand_in(formats.head_of(file))
        report.error(f"{CONFIG_FILE}: {error if downloaded is None else downloaded.sentence}")
        return None


def _version_folder(path: Path) -> Path:
    """Return the folder itself, the highest version in a model's folder, or, for a file, the folder that contains it."""
    if not path.is_dir():
        return path.parent
    if any(
        (path / name).is_dir() for name in BACKEND_OF_FILENAME
    ):  # the model is a folder: the folders in it are no versions
        return path
    versions = [number for entry in path.iterdir() if entry.is_dir() and (number := parse_version(entry.name))]
    return path / str(max(versions)) if versions else path


def _name_from(path: Path) -> str:
    """Return a model name made from the name of the file or folder. Forbidden characters become '_'."""
    resolved = path.resolve()
    if path.is_dir() and parse_version(resolved.name):
        resolved = resolved.parent
    stem = resolved.name if path.is_dir() else resolved.stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", stem).lstrip(".")[:128] or "model"


# -- one reader for each format ----------------------------------------------------------------------------------------
def _read(report: Report, model: Path, folder: Path, config: ModelConfig) -> None:
    """Fill the report and complete `config`, only from the file."""
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
    """Complete the configuration as the server would. The file may have any name."""
    review = backend_class(config.backend).review(model)
    if review is not None:
        report.add(review)
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
    inner = model.parent.relative_to(folder)
    report.names = sorted({(inner / entry.location).as_posix() for entry in onnx.external})
    report.missing = [(inner / name).as_posix() for name in missing_external_data(onnx, model.parent)]
    if report.missing:
        names = ", ".join(f"'{name}'" for name in report.missing)
        report.error(
            f"the model's weights are in {names}, which is missing: add what the exporter wrote next to {model.name}"
        )
        return
    check_external_data(onnx, model.parent)
    _complete(report, model, folder, config)
    report.class_names = class_names.class_names(config)
    problem = unsupported_version(onnx)
    if problem:
        report.error(problem)
        return
    weights = {(model.parent / entry.location).resolve() for entry in onnx.external}
    if model.stat().st_size + sum(path.stat().st_size for path in weights) < _CHECK_LOADS_BELOW:
        check_loads(onnx, model)
    _say_outputs(report, onnx)
    _say_batching(report, onnx, model, folder, config)


def _say_outputs(report: Report, onnx: OnnxModel) -> None:
    """Report outputs that are served in another form, or not at all."""
    for name, classes in onnx.adaptations.class_names.items():
        shown = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
        report.note(
            f"output '{name}' is a map of classes in the file (ZipMap) and is served as a tensor of probabilities, "
            f"[rows, {len(classes)}], in the order {shown}"
        )
    for name in onnx.left_out:
        report.warning(f"output '{name}' is not served, because it is {onnx.why_left_out(name)}")


def _say_batching(report: Report, onnx: OnnxModel, model: Path, folder: Path, config: ModelConfig) -> None:
    """Report why a model does not batch, if a different export would batch."""
    tensors = [tensor for tensor in (*onnx.inputs, *onnx.outputs) if not tensor.optional and tensor.shape]
    single = [tensor for tensor in tensors if tensor.shape is not None and tensor.shape[0] == 1]
    if config.max_batch_size or not single or not onnx.inputs:
        return
    names = ", ".join(f"'{tensor.name}'" for tensor in single)
    if len(single) == len(tensors):
        matter = "the model takes one row at a time, because it was exported with a batch of 1"
    elif any(tensor in onnx.inputs for tensor in single):
        return  # an input of one element next to other inputs may be a setting, not a row
    else:
        matter = f"batching is off, because in the file {names} always has one row"
    from serving.backends.onnxruntime.batch_trial import answers_rows_alike

    matter += ": requests are not joined into batches"
    if len(single) == len(tensors) and answers_rows_alike(onnx, model):
        report.batching_config = _batching_config(report, model, folder, config)
        report.warning(
            f"{matter}. A trial with several rows gave the same answers as each row alone, so the model can be read with "
            "a variable first dimension (slipway.variable_batch), or exported again with one",
            _reexport(onnx),
        )
    else:
        report.warning(f"{matter}. Export it with a variable first dimension", _reexport(onnx))


def _batching_config(report: Report, model: Path, folder: Path, config: ModelConfig) -> str:
    """Return the text of a configuration in which a model that was exported for one row takes any number of rows."""
    batching = ModelConfig(name=config.name, backend=config.backend)
    batching.parameters[variable_batch.KEY].string_value = "true"
    _complete(report, model, folder, batching)
    return _text_of(report, batching)


def _reexport(onnx: OnnxModel) -> str:
    """Return the lines of code that export the model with a variable first dimension, for the exporter that made the file."""
    inputs = [tensor for tensor in onnx.inputs if not tensor.optional]
    if "pytorch" in onnx.producer:
        shapes = ", ".join('{0: torch.export.Dim("batch")}' for _ in inputs)
        return (
            "# example: inputs of two rows or more\n"
            'torch.onnx.export(model, example, "model.onnx", dynamo=True,\n'
            f"                  dynamic_shapes=({shapes},))"
        )
    if "tf2onnx" in onnx.producer:
        shapes = ",".join(f"{tensor.name}[{','.join(map(str, (-1, *(tensor.shape or ())[1:])))}]" for tensor in inputs)
        return f"python -m tf2onnx.convert --saved-model FOLDER --output model.onnx --inputs {shapes}"
    if "skl2onnx" in onnx.producer.lower() or "onnxmltools" in onnx.producer.lower():
        types = ", ".join(f'("{tensor.name}", FloatTensorType([None, n_features]))' for tensor in inputs)
        return f"onnx = to_onnx(model, initial_types=[{types}])"
    return ""


def _read_torchscript(report: Report, model: Path, folder: Path, config: ModelConfig) -> None:
    from serving.backends.pytorch.torch_signature import torchscript_signature

    archive = read_archive(model)
    signature = torchscript_signature(model, archive)
    if all(tensor.datatype and tensor.shape is not None for tensor in (*signature.inputs, *signature.outputs)):
        _complete(report, model, folder, config)
        if config.max_batch_size:
            report.warning("the first dimension of the traced example is used as the batch: check that this is right")
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
    """Warn that the tensors are unknown: only the package's compiled code knows them, and inspection does not run it."""
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
    """Add entries with the known fields of each tensor."""
    for entries, tensors in ((config.input, signature.inputs), (config.output, signature.outputs)):
        for tensor in tensors:
            data_type = DATATYPES[tensor.datatype].config if tensor.datatype else mc.TYPE_INVALID
            entries.add(name=tensor.name, data_type=data_type, dims=tensor.shape or ())


def _text_of(report: Report, config: ModelConfig) -> str:
    """Return the text of a configuration without the fields that the server completes, which would bind later versions to the
    file of this version."""
    left = ModelConfig()
    if report.archive is not None:
        left.name, left.backend = config.name, config.backend
        return model_config.format(left)
    left.CopyFrom(config)
    left.ClearField("default_model_filename")
    left.parameters.pop(class_names.KEY, None)
    if left.platform != "torch_aoti":
        left.ClearField("platform")
    return model_config.format(left)


# -- the given configuration, and the end ------------------------------------------------------------------------------
def _finish(report: Report, config: ModelConfig, given: ModelConfig | None) -> None:
    """Set the tensors and text of the report from the configuration. The text of a given configuration stays as given."""
    report.inputs = [_tensor(entry, config.max_batch_size) for entry in config.input]
    report.outputs = [_tensor(entry, config.max_batch_size) for entry in config.output]
    report.config = _text_of(report, config) if given is None else model_config.format(given)


def _check_given(report: Report, model: Path, given: ModelConfig, name: str) -> None:
    """Complete a given configuration, and report where it contradicts the file or breaks a rule."""
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
        if report.format is not formats.PYTHON:  # a Python model completes its configuration itself, at load
            backend_class(completed.backend).complete_config(completed, model.parent)
    except ServingError as error:
        report.error(error.message)
        return
    completed.default_model_filename = wanted or report.format.filename
    if class_names.KEY not in given.parameters:
        completed.parameters.pop(class_names.KEY, None)
    for problem in validation.validate(completed, name=name, complete=report.format is not formats.PYTHON):
        report.error(str(problem))
    _finish(report, completed, completed)


def _tensor(entry: "mc.ModelInput | mc.ModelOutput", max_batch_size: int) -> TensorRow:
    row = BY_CONFIG.get(entry.data_type)
    shape = [-1, *entry.dims] if max_batch_size > 0 else list(entry.dims)
    return {"name": entry.name, "datatype": row.name if row else "", "shape": shape}
