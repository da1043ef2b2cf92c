"""Finds the format of a model file by its content; the file's name only shows the intended format."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

from repository.config.backends import BACKEND_OF_FILENAME, KINDS, ModelFormat
from repository.core.errors import UnsafeArchive
from repository.files import foreign_formats
from repository.files.foreign_formats import POINTER_BYTES, ForeignFormat
from repository.files.zip_reading import opened_zip
from serving.backends.base.text import looks_like_text
from serving.backends.onnxruntime.onnx_file import read_onnx
from serving.backends.pytorch.archive import Kind, read_archive
from serving.core.errors import ServingError, invalid, not_found

_UNDECLARED = ModelFormat("", "")


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files. `backend` is "" if no backend of this server runs it. declared: details of a format with a backend."""

    name: str
    backend: str = ""
    filename: str = ""
    executes_code: bool = True
    declared: ModelFormat = _UNDECLARED

    @property
    def phrase(self) -> str:
        return self.declared.phrase or f"a {self.declared.title} file"


_SERVED = {
    one.name: Format(one.name, kind.name, one.filename, not kind.is_data, one)
    for kind in KINDS.values()
    for one in kind.formats
}
ONNX, TORCHSCRIPT, TORCH_EXPORT, AOTINDUCTOR, TENSORRT, PYTHON = (
    _SERVED[name] for name in ("onnx", "torchscript", "torch_export", "aotinductor", "tensorrt", "python")
)
_ARCHIVES = [one for one in _SERVED.values() if one.declared.holds]


def _foreign(kind: ForeignFormat) -> Format:
    return Format(kind.name, executes_code=kind.executes_code)


SAVED_MODEL = _foreign(foreign_formats.SAVED_MODEL)
PICKLE = _foreign(foreign_formats.PICKLE)
ZIP = _foreign(foreign_formats.ZIP)
TEXT = _foreign(foreign_formats.TEXT)
UNKNOWN = Format(foreign_formats.UNKNOWN.name)  # an unknown file may be code

_TORCH = {Kind.TORCHSCRIPT: TORCHSCRIPT, Kind.TORCH_EXPORT: TORCH_EXPORT, Kind.AOTINDUCTOR: AOTINDUCTOR}

# The intended format of a file, by the end of its name.
MEANT = {suffix: one for one in _SERVED.values() for suffix in one.declared.suffixes}


def find_model(folder: Path) -> Path:
    """Return the model's file in a version folder. Raises NOT_FOUND if there is none, and INVALID_ARG if there are several."""
    for name in BACKEND_OF_FILENAME:
        if (folder / name).exists():
            if (folder / name / "saved_model.pb").is_file():
                return folder / name / "saved_model.pb"
            inner = folder / name / name  # an ONNX model may be a folder that also has its external data
            return inner if inner.is_file() else folder / name
    if (folder / "saved_model.pb").is_file():
        return folder / "saved_model.pb"
    files = sorted(path for path in folder.iterdir() if path.is_file())
    meant = [path for path in files if path.suffix.lower() in MEANT]
    if len(meant) > 1:
        names = ", ".join(path.name for path in meant)
        raise invalid(
            f"the folder contains several models: {names}; publish each as its own model, or rename the one to serve to "
            f"{MEANT[meant[0].suffix.lower()].filename}"
        )
    found = meant or _telling(files)
    if not found:
        raise not_found(f"the folder holds no model file; expected one of {', '.join(BACKEND_OF_FILENAME)}")
    return found[0]


def _telling(files: list[Path]) -> list[Path]:
    """Return the file that best shows what a folder without a model contains: its only file, or a file of a known kind."""
    if len(files) == 1:
        return files
    by_name = foreign_formats.by_names(path.name for path in files)
    if by_name is not None:
        return [path for path in files if path.name == by_name[0]]
    return [path for path in files if foreign_formats.by_head(head_of(path)) is not None][:1]


def pointers(folder: Path) -> list[Path]:
    """Return the files of a folder, at any depth, that are pointers of Git LFS."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size <= POINTER_BYTES)
    return [path for path in files if foreign_formats.stand_in(head_of(path)) is foreign_formats.LFS_POINTER]


def head_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(foreign_formats.HEAD_BYTES)


def detect(path: Path) -> tuple[Format, str]:
    """Return the format of a file, and why it is no valid file of this format; "" if it is valid."""
    meant = MEANT.get(path.suffix.lower(), UNKNOWN)
    if path.name == "saved_model.pb":
        return SAVED_MODEL, ""
    if path.is_dir():
        return next(iter(_ARCHIVES), UNKNOWN), ""
    head = head_of(path)
    downloaded = foreign_formats.stand_in(head)
    if downloaded is not None:
        return _foreign(downloaded), ""
    if meant in _ARCHIVES:
        return meant, ""  # the format's reader will find problems
    if not head:
        return meant, "the file is empty"
    if head.startswith(b"PK\x03\x04"):
        return _zip(path, meant)
    if meant.declared.content == "text":
        return meant, ""
    kind = foreign_formats.by_head(head)
    if kind is not None:
        return _foreign(kind), ""
    if looks_like_text(head):
        return _text(path, meant)
    for one in _SERVED.values():
        if one.declared.starts and head.startswith(one.declared.starts):
            return one, ""
    return _binary(path, meant)


def _text(path: Path, meant: Format) -> tuple[Format, str]:
    if meant is not UNKNOWN:
        return TEXT, f"expected {meant.phrase} by the name, but the file is text"
    kind = foreign_formats.by_ending(path.name)
    return _foreign(kind) if kind else TEXT, ""


def _zip(path: Path, meant: Format) -> tuple[Format, str]:
    try:
        with opened_zip(path) as archive:
            names = archive.namelist()
    except UnsafeArchive as error:
        return meant if meant is not UNKNOWN else ZIP, error.message
    except (zipfile.BadZipFile, OSError, ValueError):
        return meant if meant is not UNKNOWN else ZIP, "the file is a zip archive that is truncated or damaged"
    escaping = next((name for name in names if name.startswith("/") or ".." in name.replace("\\", "/").split("/")), "")
    if escaping:
        return ZIP, f"the archive holds '{escaping[:100]}', which leads out of it"
    for one in _ARCHIVES:
        if one.declared.holds in names:
            return one, ""
    kind = foreign_formats.by_zip_names(names) or foreign_formats.by_ending(path.name)
    if kind is not None:
        return _foreign(kind), ""
    try:
        return _TORCH[read_archive(path).kind], ""
    except ServingError as error:
        if meant.backend == "pytorch":
            return meant, error.message
        return (meant if meant.declared.content == "zip" else ZIP), ""


def _binary(path: Path, meant: Format) -> tuple[Format, str]:
    kind = foreign_formats.by_ending(path.name)
    if kind is not None:
        return _foreign(kind), ""
    if meant in (UNKNOWN, ONNX):
        try:
            read_onnx(path)
        except ServingError as error:
            if meant is ONNX:
                return ONNX, error.message
        else:
            return ONNX, ""
    if meant.declared.content == "zip":
        return meant, f"expected {meant.phrase}, but the file is no zip archive"
    return meant, ""
