"""Reads the description of a model in an ONNX file, without the weights.

The file is mapped, and its protobuf fields are skipped by their lengths. So the time for a file of 2 GB depends only on its
number of nodes. The field numbers are the ones of onnx.proto3 (ONNX IR specification).
"""

import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from repository.config.signature import Signature, TensorSignature
from repository.files.foreign_formats import HEAD_BYTES, by_head, stand_in
from serving.backends.base.text import looks_like_text
from serving.backends.onnxruntime.adaptations import Adaptations, adaptations_of
from serving.backends.onnxruntime.protobuf_walk import Source, Truncated, fields, signed, text
from serving.core.errors import invalid

# TensorProto.DataType -> KServe datatype
_DATATYPES = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "BYTES",
    9: "BOOL", 10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip

# Types of ONNX that have no KServe datatype, for error messages.
_OTHER_TYPES = {
    14: "COMPLEX64", 15: "COMPLEX128", 17: "FLOAT8E4M3FN", 18: "FLOAT8E4M3FNUZ", 19: "FLOAT8E5M2", 20: "FLOAT8E5M2FNUZ",
    21: "UINT4", 22: "INT4", 23: "FLOAT4E2M1",
}  # fmt: skip

_SEQUENCE, _SEQUENCE_OF_MAPS = "a sequence", "a sequence of maps"
_KINDS = {4: _SEQUENCE, 5: "a map", 8: "a sparse tensor", 9: "an optional"}  # TypeProto's fields other than tensor_type
# Advice for messages about an output that is not a tensor.
_REMEDIES = {
    _SEQUENCE_OF_MAPS: "export the model without maps, from scikit-learn with to_onnx(model, X[:1], options={'zipmap': False})",
    _SEQUENCE: "export the model with the tensors in it as outputs of their own, or publish a model for each",
}
_REMEDY = "export the model with tensors as its outputs"

# The fields that lead to tensors: message -> {field number: message}. Any tensor may have external data.
_TENSOR_PATHS: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 20: "TrainingInfo", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "TrainingInfo": {1: "Graph", 2: "Graph"},
}
_MAX_DEPTH = 100  # protobuf has the same limit for nested messages
_MAX_PROTOBUF = 2**31 - 1


@dataclass(slots=True)
class ExternalData:
    location: str
    offset: int = 0
    length: int = 0  # 0 means up to the end of the file


@dataclass(slots=True)
class OnnxModel:
    """The description in the file. unsupported: inputs and outputs without a KServe datatype, each with the reason."""

    ir_version: int = 0
    producer: str = ""
    opsets: dict[str, int] = field(default_factory=dict)  # domain ("" is ai.onnx) -> version
    inputs: list[TensorSignature] = field(default_factory=list)
    outputs: list[TensorSignature] = field(default_factory=list)
    unsupported: dict[str, str] = field(default_factory=dict)
    adaptations: Adaptations = field(default_factory=Adaptations)
    external: list[ExternalData] = field(default_factory=list)

    @property
    def opset(self) -> int:
        return self.opsets.get("", 0)

    @property
    def left_out(self) -> list[str]:
        """Return the outputs that the protocol cannot carry and that no adaptation replaces."""
        return [
            tensor.name
            for tensor in self.outputs
            if tensor.name in self.unsupported.keys() - self.adaptations.class_names
        ]

    def why_left_out(self, name: str) -> str:
        """Return the type of an output that the protocol cannot carry, such as "a map", and advice on how to export it."""
        kind = self.unsupported[name]
        return f"{kind}: {_REMEDIES.get(kind, _REMEDY)}"

    def adapt_batch(self) -> None:
        """Make a first dimension of 1 variable in every input and output, except inputs with a default value."""
        tensors = (*self.inputs, *self.outputs)
        found = {tensor.name for tensor in tensors if tensor.shape and tensor.shape[0] == 1 and not tensor.optional}
        self.adaptations.one_row = found - self.adaptations.row_labels

    def signature(self) -> Signature:
        """Return the signature that clients see.

        An output without a KServe datatype (such as a sequence of tensors) is left out. Raises INVALID_ARG for an input without
        a KServe datatype.
        """
        for tensor in self.inputs:
            if tensor.name in self.unsupported:
                raise invalid(
                    f"input '{tensor.name}' is {self.unsupported[tensor.name]}, which the protocol cannot carry: "
                    "export the model with tensors as its inputs, one for each column"
                )
        left_out = self.left_out
        outputs = tuple(self._served(tensor) for tensor in self.outputs if tensor.name not in left_out)
        if not outputs:
            kinds = "; ".join(f"'{name}' is {self.why_left_out(name)}" for name in left_out)
            raise invalid(f"none of the model's outputs is a tensor that the protocol can carry: {kinds}")
        return Signature(tuple(self.inputs), outputs)

    def _served(self, tensor: TensorSignature) -> TensorSignature:
        names = self.adaptations.class_names.get(tensor.name)
        if names is not None:
            return TensorSignature(tensor.name, "FP32", (-1, len(names)))
        return tensor._replace(shape=(-1,)) if tensor.name in self.adaptations.row_labels else tensor


def read_onnx(path: Path) -> OnnxModel:
    """Parse an ONNX file. Raises INVALID_ARG for any other file."""
    size = path.stat().st_size
    if size == 0:
        raise invalid("the ONNX file is empty")
    if size > _MAX_PROTOBUF:
        raise invalid(
            f"the ONNX file has {size} bytes, but protobuf ends at 2 GB: "
            "save its weights as external data in the same folder"
        )
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        head = data[:512]
        try:
            model = _model(Source(data), size)
        except Truncated:
            raise invalid(_why_unreadable(head, size)) from None
    if not model.ir_version or not (model.inputs or model.outputs):
        raise invalid(_why_unreadable(head, size))
    return model


def _why_unreadable(head: bytes, size: int) -> str:
    foreign = by_head(head)
    if foreign is not None:
        return f"expected an ONNX model, but {foreign.sentence}"
    if looks_like_text(head):
        return "expected an ONNX model, but the file is text"
    if head.startswith(b"\x08"):  # ir_version, the first field of every ONNX file
        return f"the ONNX file is truncated or damaged: its {size} bytes end in the middle of the model"
    return "expected an ONNX model, but the file is no ONNX protobuf"


def _model(source: Source, size: int) -> OnnxModel:
    model = OnnxModel()
    graph = (0, 0)
    for number, value, start, end in fields(source, 0, size):
        if number == 1:
            model.ir_version = value
        elif number in (2, 3) and end > start:
            model.producer = f"{model.producer} {_one_line(text(source, start, end))}".strip()
        elif number == 7:
            graph = (start, end)
        elif number == 8:
            domain, version = _opset(source, start, end)
            model.opsets["" if domain == "ai.onnx" else domain] = version
    _graph_signature(source, *graph, model)
    _adapt(source, *graph, model)
    model.external = list(_external_data(source, 0, size, "Model", 0))
    return model


def _one_line(text_of_file: str) -> str:
    """Return the producer in a file, or "" for a text of several lines, which some producers write."""
    return text_of_file.strip()[:100] if len(text_of_file.strip().splitlines()) == 1 else ""


def _opset(source: Source, start: int, end: int) -> tuple[str, int]:
    domain, version = "", 0
    for number, value, first, last in fields(source, start, end):
        if number == 1:
            domain = text(source, first, last)
        elif number == 2:
            version = value
    return domain, version


def _graph_signature(source: Source, start: int, end: int, model: OnnxModel) -> None:
    initializers = set()
    inputs = []
    for number, _, first, last in fields(source, start, end):
        if number == 11:
            inputs.append(_value_info(source, first, last, model))
        elif number == 12:
            model.outputs.append(_value_info(source, first, last, model))
        elif number == 5:
            initializers.add(_name_of_tensor(source, first, last))
    for tensor in inputs:
        if tensor.name not in initializers:
            model.inputs.append(tensor)
        elif model.ir_version >= 4:  # a default value; before IR 4 every initialiser was listed as an input
            model.inputs.append(tensor._replace(optional=True))


def _adapt(source: Source, start: int, end: int, model: OnnxModel) -> None:
    """Search the nodes for adaptations if the model may need them. Most models need none."""
    maps = [tensor.name for tensor in model.outputs if tensor.name in model.unsupported]
    batches = any(tensor.shape is not None and tensor.shape[:1] == (-1,) for tensor in model.inputs)
    single = [tensor.name for tensor in model.outputs if batches and tensor.shape == (1,)]
    text_in = any(tensor.datatype == "BYTES" for tensor in model.inputs)
    if maps or single or text_in:
        model.adaptations = adaptations_of(source, start, end, maps, single)


def _name_of_tensor(source: Source, start: int, end: int) -> str:
    for number, _, first, last in fields(source, start, end):
        if number == 8:
            return text(source, first, last)
    return ""


def _value_info(source: Source, start: int, end: int, model: OnnxModel) -> TensorSignature:
    name, datatype, shape = "", "", None
    problem = ""  # empty if the file has no type, because the type may be inferred
    for number, _, first, last in fields(source, start, end):
        if number == 1:
            name = text(source, first, last)
        elif number == 2:
            for kind, _, type_start, type_end in fields(source, first, last):
                if kind == 1:
                    element, shape = _tensor_type(source, type_start, type_end)
                    datatype = _DATATYPES.get(element, "")
                    problem = f"a tensor of ONNX type {_OTHER_TYPES.get(element, element)}" if element else ""
                else:
                    problem = _kind(source, kind, type_start, type_end) or problem
    if problem and not datatype:
        model.unsupported[name] = problem
    return TensorSignature(name, datatype, shape)


def _kind(source: Source, kind: int, start: int, end: int) -> str:
    """Return the type that a field of a TypeProto stands for; "" if there is none. Field 1 of a sequence is the type of its
    elements."""
    if kind != 4:
        return _KINDS.get(kind, "")
    elements = [span for number, _, *span in fields(source, start, end) if number == 1]
    inner = [number for first, last in elements for number, *_ in fields(source, first, last)]
    return _SEQUENCE_OF_MAPS if 5 in inner else _SEQUENCE


def _tensor_type(source: Source, start: int, end: int) -> tuple[int, tuple[int, ...] | None]:
    element, shape = 0, None
    for number, value, first, last in fields(source, start, end):
        if number == 1:
            element = value
        elif number == 2:
            shape = tuple(
                _dimension(source, begin, stop) for field_, _, begin, stop in fields(source, first, last) if field_ == 1
            )
    return element, shape


def _dimension(source: Source, start: int, end: int) -> int:
    for number, value, _, _ in fields(source, start, end):
        if number == 1 and signed(value) >= 0:
            return value
    return -1  # the dimension is a symbol, or has no value


def _external_data(source: Source, start: int, end: int, message: str, depth: int) -> Iterator[ExternalData]:
    """Yield every external_data entry (TensorProto field 13) in the model, at any depth."""
    if depth > _MAX_DEPTH:
        raise Truncated
    if message == "Tensor":
        found = _external_entry(source, start, end)
        if found is not None:
            yield found
        return
    inner = _TENSOR_PATHS[message]
    for number, _, first, last in fields(source, start, end):
        if number in inner:
            yield from _external_data(source, first, last, inner[number], depth + 1)


def _external_entry(source: Source, start: int, end: int) -> ExternalData | None:
    entries: dict[str, str] = {}
    for number, _, first, last in fields(source, start, end):
        if number == 13:
            pair = {key: text(source, begin, stop) for key, _, begin, stop in fields(source, first, last)}
            entries[pair.get(1, "")] = pair.get(2, "")
    if not entries:
        return None
    try:
        return ExternalData(entries.get("location", ""), int(entries.get("offset", 0)), int(entries.get("length", 0)))
    except ValueError:
        raise invalid("the ONNX file's external data has an offset or length that is no number") from None


def check_external_data(model: OnnxModel, folder: Path) -> None:
    """Refuse weights outside the model's own folder, by path or by symbolic link, and weights that are missing or too short.

    Without this check a model could read any file of the server; see onnx#3991 and CVE-2026-27489.
    """
    sizes: dict[str, int] = {}
    for entry in model.external:
        if entry.location not in sizes:
            sizes[entry.location] = _size_inside(entry.location, folder)
            _refuse_stand_in(folder / entry.location)
        size = sizes[entry.location]
        if entry.offset < 0 or entry.length < 0 or entry.offset + entry.length > size:
            raise invalid(
                f"external data '{PurePosixPath(entry.location).name}' has {size} bytes, "
                f"but the model expects {entry.length} bytes at {entry.offset}"
            )


def _refuse_stand_in(path: Path) -> None:
    """Refuse a download page or a pointer instead of weights, because ONNX Runtime would read its bytes as numbers."""
    with path.open("rb") as file:
        downloaded = stand_in(file.read(HEAD_BYTES))
    if downloaded is not None:
        raise invalid(f"external data '{path.name}' is not the model's weights: {downloaded.sentence}")


def missing_external_data(model: OnnxModel, folder: Path) -> list[str]:
    """Return the missing files of weights that the model expects inside the folder. Other paths are ignored."""
    locations = sorted({entry.location for entry in model.external})
    return [
        location for location in locations if _leads_nowhere_else(location) and not os.path.lexists(folder / location)
    ]


def _leads_nowhere_else(location: str) -> bool:
    """Return whether a location is inside the model's folder. ONNX Runtime reads a location with a leading '*' as a memory
    address."""
    path = PurePosixPath(location)
    strange = "\\" in location or "\0" in location or location.startswith("*")
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and not strange


def _size_inside(location: str, folder: Path) -> int:
    relative = PurePosixPath(location)
    name = relative.name
    if not _leads_nowhere_else(location):
        raise invalid(
            f"external data '{name}' must lie in the model's version folder, but its location leads out of it"
        )
    path = folder
    for part in relative.parts:
        path = path / part
        try:
            mode = path.lstat().st_mode
        except OSError:
            raise invalid(f"external data '{name}' is missing from the model's version folder") from None
        if stat.S_ISLNK(mode):
            raise invalid(
                f"external data '{name}' must be a file in the model's version folder, but is a symbolic link"
            )
    if not stat.S_ISREG(mode):
        raise invalid(f"external data '{name}' must be a regular file in the model's version folder")
    return path.stat().st_size
