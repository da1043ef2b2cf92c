"""Tells what a model file is by its content; the name only says what was meant."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

from repository.config.model_config import DEFAULT_FILENAMES, FILENAME_OF_SUFFIX
from serving.backends.base.text import looks_like_text
from serving.backends.onnxruntime.onnx_file import read_onnx
from serving.backends.pytorch.archive import Kind, read_archive
from serving.core.errors import ServingError, invalid, not_found


@dataclass(frozen=True, slots=True)
class Format:
    """`filename` is what the file is called in a version folder; empty backend: no backend of this server runs it."""

    name: str
    backend: str = ""
    filename: str = ""
    executes_code: bool = True


ONNX = Format("onnx", "onnxruntime", "model.onnx", executes_code=False)
TORCHSCRIPT = Format("torchscript", "pytorch", "model.pt")
TORCH_EXPORT = Format("torch_export", "pytorch", "model.pt2")
AOTINDUCTOR = Format("aotinductor", "pytorch", "model.pt2")
TENSORRT = Format("tensorrt", "tensorrt", "model.plan")
PYTHON = Format("python", "python", "model.py")
TORCHSERVE = Format("torchserve_archive", filename="model.mar")
SAFETENSORS = Format("safetensors", executes_code=False)
SAVED_MODEL = Format("tensorflow_savedmodel")
ZIP = Format("zip")
PICKLE = Format("pickle")
TEXT = Format("text", executes_code=False)
UNKNOWN = Format("unknown")

_TORCH = {Kind.TORCHSCRIPT: TORCHSCRIPT, Kind.TORCH_EXPORT: TORCH_EXPORT, Kind.AOTINDUCTOR: AOTINDUCTOR}

_OF_FILENAME = {one.filename: one for one in (ONNX, TORCHSCRIPT, TORCH_EXPORT, TENSORRT, PYTHON, TORCHSERVE)}
# What a file is meant to be, by the end of its name.
MEANT = {suffix: _OF_FILENAME[filename] for suffix, filename in FILENAME_OF_SUFFIX.items()}

_PLAN_MAGIC = b"ftrt"
_MAX_SAFETENSORS_HEADER = 100 << 20


def find_model(folder: Path) -> Path:
    """Return the file of a version folder that is the model; NOT_FOUND or INVALID_ARG where that is not clear."""
    for name in DEFAULT_FILENAMES:
        if (folder / name).exists():
            if (folder / name / "saved_model.pb").is_file():
                return folder / name / "saved_model.pb"
            inner = folder / name / name  # an ONNX model may be a folder with its external data
            return inner if inner.is_file() else folder / name
    if (folder / "saved_model.pb").is_file():
        return folder / "saved_model.pb"
    meant = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix.lower() in MEANT)
    if len(meant) > 1:
        raise invalid(f"the folder holds several models: {', '.join(path.name for path in meant)}")
    if not meant:
        raise not_found(f"the folder holds no model file; expected one of {', '.join(DEFAULT_FILENAMES)}")
    return meant[0]


def detect(path: Path) -> tuple[Format, str]:
    """Return (format, what is wrong with the file as one); the second is empty for a sound file."""
    meant = MEANT.get(path.suffix.lower(), UNKNOWN)
    if path.name == "saved_model.pb":
        return SAVED_MODEL, ""
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        return meant, "the file is empty"
    if head.startswith(b"PK\x03\x04"):
        return _zip(path, meant)
    if meant is PYTHON:
        return PYTHON, ""
    if looks_like_text(head):
        return TEXT, f"expected {_article(meant)} by the name, but the file is text" if meant is not UNKNOWN else ""
    if head.startswith(_PLAN_MAGIC):
        return TENSORRT, ""
    if _is_safetensors(head, path.stat().st_size):
        return SAFETENSORS, ""
    return _binary(path, head, meant)


def _article(format_: Format) -> str:
    names = {"onnx": "an ONNX model", "torchscript": "a TorchScript model", "torch_export": "a torch.export archive"}
    return names.get(format_.name, f"a {format_.name} file")


def _zip(path: Path, meant: Format) -> tuple[Format, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return meant if meant is not UNKNOWN else ZIP, "the file is a zip archive that is truncated or damaged"
    if any(name.startswith("MAR-INF/") for name in names):
        return TORCHSERVE, ""
    escaping = next((name for name in names if name.startswith("/") or ".." in name.replace("\\", "/").split("/")), "")
    if escaping:
        return ZIP, f"the archive holds '{escaping[:100]}', which leads out of it"
    try:
        return _TORCH[read_archive(path).kind], ""
    except ServingError as error:
        return (meant, error.message) if meant.backend == "pytorch" else (ZIP, "")


def _is_safetensors(head: bytes, size: int) -> bool:
    """Whether the file begins with 8 bytes of header length, then the header as a JSON object."""
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and 2 <= length <= min(size - 8, _MAX_SAFETENSORS_HEADER)


def _binary(path: Path, head: bytes, meant: Format) -> tuple[Format, str]:
    if meant in (UNKNOWN, ONNX):
        try:
            read_onnx(path)
        except ServingError as error:
            if meant is ONNX:
                return ONNX, error.message
        else:
            return ONNX, ""
    if head.startswith(b"\x80"):
        return PICKLE, ""
    if meant.backend == "pytorch":
        return meant, "expected a TorchScript or torch.export model, but the file is no zip archive"
    return meant, ""
