"""Finds the kind of a PyTorch file, and the signature of a torch.export archive, without torch and without running code.

torch.jit.save, torch.export.save, AOTInductor and torch.save all write zip archives:
    TorchScript     <root>/code/..., <root>/constants.pkl
    torch.export    <root>/archive_format, <root>/models/<name>.json   (schema: torch/_export/serde/schema.py)
    AOTInductor     <root>/archive_format, <root>/data/aotinductor/<name>/*.so
    only weights    <root>/data.pkl without code
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from repository.config.signature import Signature, TensorSignature
from repository.core.errors import UnsafeArchive
from repository.files.foreign_formats import stand_in
from repository.files.zip_reading import opened_zip
from serving.backends.base.text import looks_like_text
from serving.core.errors import invalid

Json = Mapping[str, Any]
"""A JSON object in the layout of torch.export's schema."""

_MAX_JSON_BYTES = 512 << 20
_INFINITE = 2**31 - 1

# torch._export.serde.schema.ScalarType -> KServe datatype
_SCALAR_TYPES = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64", 12: "BOOL", 13: "BF16",
    28: "UINT16", 34: "UINT32", 35: "UINT64",
}  # fmt: skip


class Kind(Enum):
    TORCHSCRIPT = "torchscript"
    TORCH_EXPORT = "torch_export"
    AOTINDUCTOR = "aotinductor"


@dataclass(frozen=True, slots=True)
class Archive:
    """device: the device that an AOTInductor package was compiled for. has_example: a traced module kept its example inputs."""

    kind: Kind
    names: tuple[str, ...]
    device: str = ""
    has_example: bool = False


def read_archive(path: Path) -> Archive:
    """Return the kind of a file. Raises INVALID_ARG if the file is no model for PyTorch."""
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise invalid("the PyTorch file is empty")
    try:
        with opened_zip(path) as archive:
            return _classified(archive)
    except UnsafeArchive as error:
        raise invalid(error.message) from None
    except zipfile.BadZipFile:
        raise invalid(_why_no_zip(head)) from None


def _why_no_zip(head: bytes) -> str:
    if head.startswith(b"PK\x03\x04"):
        return "the PyTorch file is truncated or damaged: it begins as a zip archive, but does not end as one"
    downloaded = stand_in(head)
    if downloaded is not None:
        return f"expected a TorchScript or torch.export model, but {downloaded.sentence}"
    if looks_like_text(head):
        return "expected a TorchScript or torch.export model, but the file is text"
    if head.startswith(b"\x80"):
        return "the file is a pickle, which is not loaded: save the model with torch.jit.save or torch.export.save"
    return "expected a TorchScript or torch.export model, but the file is no zip archive"


def _classified(archive: zipfile.ZipFile) -> Archive:
    names = tuple(archive.namelist())
    inner = [name.split("/", 1)[-1] for name in names]
    if any(name.startswith("data/aotinductor/") and name.endswith(".so") for name in inner):
        return Archive(Kind.AOTINDUCTOR, names, device=_aoti_device(archive, names))
    if any(name.startswith("models/") and name.endswith(".json") for name in inner):
        return Archive(Kind.TORCH_EXPORT, names)
    if "serialized_exported_program.json" in names or "serialized_exported_program.json" in inner:
        raise invalid(
            "the torch.export archive was written by a PyTorch older than 2.8: save it again with a newer one"
        )
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return Archive(Kind.TORCHSCRIPT, names, has_example="traced_inputs.pkl" in inner)
    if "data.pkl" in inner:
        raise invalid(
            "the file holds weights without a model (torch.save): save the model with torch.jit.save or torch.export.save"
        )
    raise invalid("expected a TorchScript or torch.export model, but the zip archive holds neither")


def _aoti_device(archive: zipfile.ZipFile, names: tuple[str, ...]) -> str:
    for name in names:
        if name.endswith("_metadata.json"):
            device = _json(archive, name).get("AOTI_DEVICE_KEY", "")
            if device:
                return str(device)
    return ""


def export_signature(path: Path) -> Signature:
    """Return the signature of a torch.export archive from its models/<name>.json."""
    with opened_zip(path) as archive:
        name = next(name for name in archive.namelist() if "/models/" in name and name.endswith(".json"))
        program = _json(archive, name)
    try:
        return _signature(program)
    except (KeyError, TypeError, AttributeError, ValueError):
        version = program.get("torch_version", "another version")
        raise invalid(
            f"the torch.export archive, written by PyTorch {version}, has a layout that is not known"
        ) from None


def _json(archive: zipfile.ZipFile, name: str) -> Json:
    if archive.getinfo(name).file_size > _MAX_JSON_BYTES:
        raise invalid(f"the archive's '{name.rsplit('/', 1)[-1]}' is larger than {_MAX_JSON_BYTES >> 20} MiB")
    try:
        value = json.loads(archive.read(name))
    except (ValueError, zipfile.BadZipFile, NotImplementedError, EOFError):
        raise invalid("the PyTorch file is damaged: its description cannot be read") from None
    if not isinstance(value, dict):
        raise invalid("the PyTorch file is damaged: its description is no JSON object")
    return value


def _signature(program: Json) -> Signature:
    graph = program["graph_module"]["graph"]
    signature = program["graph_module"]["signature"]
    values, ranges = graph["tensor_values"], program.get("range_constraints", {})
    inputs = [spec["user_input"]["arg"] for spec in signature["input_specs"] if "user_input" in spec]
    outputs = [spec["user_output"]["arg"] for spec in signature["output_specs"] if "user_output" in spec]
    call = program["graph_module"]["module_call_graph"][0]["signature"]
    results = _result_names(call["out_spec"], len(outputs))
    arguments = call.get("forward_arg_names") or ()
    if len(arguments) != len(inputs):  # an argument is a tuple or dict of tensors
        arguments = [_tensor_name(arg) for arg in inputs]
    input_tensors = [_tensor(name, _tensor_name(arg), values) for name, arg in zip(arguments, inputs, strict=True)]
    output_tensors = [_tensor(name, _tensor_name(arg), values) for name, arg in zip(results, outputs, strict=True)]
    limit = min((_upper_bound(_tensor_name(arg), values, ranges) for arg in inputs), default=_INFINITE)
    return Signature(
        tuple(input_tensors),
        tuple(output_tensors),
        batch_limit=0 if limit == _INFINITE else limit,
        ordered=True,
    )


def _tensor_name(argument: Json) -> str:
    if "as_tensor" not in argument:
        raise invalid("the torch.export archive has an input or output that is no tensor")
    return str(argument["as_tensor"]["name"])


def _tensor(public_name: str, name: str, values: Json) -> TensorSignature:
    meta = values[name]
    shape = tuple(size.get("as_int", -1) for size in meta["sizes"])
    return TensorSignature(public_name, _SCALAR_TYPES.get(meta["dtype"], ""), shape)


def _upper_bound(name: str, values: Json, ranges: Json) -> int:
    """Return the largest first dimension that the model was exported for."""
    sizes = values[name]["sizes"]
    if not sizes or "as_expr" not in sizes[0]:
        return _INFINITE
    expression = sizes[0]["as_expr"]["expr_str"]
    bounds = [limits.get("max_val") for symbol, limits in ranges.items() if f"Symbol('{symbol}'" in expression]
    return min((bound for bound in bounds if bound is not None and bound > 0), default=_INFINITE)


def _result_names(out_spec: str, count: int) -> list[str]:
    """Return the keys of a dict, or else Triton's names, OUTPUT__0, ... out_spec: a serialised TreeSpec of torch's pytree."""
    _, spec = json.loads(out_spec)
    if spec["type"] == "builtins.dict":
        keys = json.loads(spec["context"])
        if len(keys) == count:
            return [str(key) for key in keys]
    return [f"OUTPUT__{index}" for index in range(count)]
