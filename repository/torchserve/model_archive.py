"""TorchServe's model archives (.mar): reads their manifest and model-config.yaml, and runs none of their code.

An archive is a zip file, a tar file (compressed or not), or the folder that either unpacks to. All contain
MAR-INF/MANIFEST.json; in a tar file and its folder, that file may be one folder deeper. Sources: pytorch/serve,
model-archiver/README.md and docs/configuration.md ("Config model"), and archives that torch-model-archiver 0.12 wrote.
"""

import ast
import json
import lzma
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import yaml

from repository.core.errors import InvalidArchive, NotFound, RepositoryError, UnsafeArchive, UnsafePath
from repository.core.json_types import Json
from repository.core.layout import OVERLAY_FILE, relative_path
from repository.core.python_source import syntax_tree
from repository.files import archive as zip_archive
from repository.files import storage
from repository.files.archive import Limits
from repository.files.tar_reading import TarReader, opened_tar
from repository.files.zip_reading import opened_zip

FOLDER = "MAR-INF"
MANIFEST = f"{FOLDER}/MANIFEST.json"
STREAMS = "send_intermediate_predict_response"  # a handler whose source uses this name answers in several parts

MAX_TEXT_BYTES = 4 << 20  # the largest size of a manifest, a model-config.yaml, or a source
_MAX_NODES = 100_000  # the most values in a model-config.yaml, whose aliases may repeat large parts
_MAX_WORKERS = 1024
_CHUNK = 1 << 20
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, NotImplementedError, UnicodeError, ValueError),
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """MANIFEST.json. File names are relative to the archive; "" if there is none. whole: the whole JSON, for handlers."""

    name: str
    version: str  # any text
    handler: str  # "handler.py", "module:function", or the name of a handler of TorchServe
    serialized_file: str = ""
    model_file: str = ""
    requirements_file: str = ""
    config_file: str = ""
    envelope: str = ""
    runtime: str = ""
    archiver_version: str = ""
    created_on: str = ""
    whole: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """model-config.yaml: the settings for serving the model, None or "" if absent. whole: the whole YAML, for the handler.

    unserved: keys that TorchServe supports and this server does not. unusable: keys whose values TorchServe and this server
    ignore, each with a sentence that says why.
    """

    min_workers: int | None = None
    max_workers: int | None = None
    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    response_timeout_s: int | None = None
    startup_timeout_s: int | None = None
    job_queue_size: int | None = None
    client_timeout_ms: int | None = None  # the longest time that a request waits for a worker; 0 for no limit
    device_type: str = ""  # "cpu" or "gpu"
    device_ids: tuple[int, ...] = ()
    parallel_type: str = ""
    unserved: tuple[str, ...] = ()
    unusable: Mapping[str, str] = field(default_factory=dict)
    whole: Mapping[str, Json] = field(default_factory=dict)


class ArchiveContents(NamedTuple):
    """files: name of a file in the archive -> its size. streams: whether a Python file of the archive uses the name
    `send_intermediate_predict_response` (STREAMS)."""

    manifest: Manifest
    settings: ModelSettings
    files: Mapping[str, int]
    streams: bool


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of an archive. Raises NotFound if there is no archive, InvalidArchive if its manifest is invalid."""
    with _opened(path) as archive:
        return _manifest(archive)


def read_description(path: Path) -> tuple[Manifest, ModelSettings]:
    """Return the manifest of an archive, and the settings of its model-config.yaml, which are empty if it has no such file.
    Raises the errors of `read_manifest`, and InvalidArchive if the model-config.yaml has too many values."""
    with _opened(path) as archive:
        return _description(archive)


def looks_like_one(path: Path) -> bool:
    """Return whether a path in a store is meant as an archive: it is a file, or a folder with a manifest."""
    return path.is_file() or (path / MANIFEST).is_file() or any(path.glob(f"*/{MANIFEST}"))


def is_other_tar(path: Path) -> bool:
    """Return whether an intact archive contains no manifest. Return False for a damaged file."""
    try:
        with _opened(path) as archive:
            return MANIFEST not in archive.sizes
    except RepositoryError:
        return False


def read_archive(path: Path) -> ArchiveContents:
    """Read an archive in one pass: to find a file in a compressed tar file, all data before it must be unpacked."""
    with _opened(path) as archive:
        return ArchiveContents(
            *_description(archive),
            dict(archive.sizes),
            any(
                _names(archive.read(file), STREAMS)
                for file, size in archive.sizes.items()
                if file.endswith(".py") and size <= MAX_TEXT_BYTES
            ),
        )


def read_file(path: Path, name: str) -> bytes:
    """Return the content of a file of an archive. Raises NotFound if it is missing, InvalidArchive if it is too large."""
    with _opened(path) as archive:
        return archive.read(name)


def _names(source: bytes, name: str) -> bool:
    """Return whether the code of a source uses a name; comments and strings do not count."""
    if name.encode() not in source:
        return False
    try:
        nodes = list(ast.walk(syntax_tree(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(
        name in (getattr(node, "id", None), getattr(node, "attr", None), getattr(node, "name", None)) for node in nodes
    )


def handler_file(manifest: Manifest, files: Iterable[str]) -> str:
    """Return the name of the handler's source in the archive; "" for a handler of TorchServe."""
    name = manifest.handler.partition(":")[0].removesuffix(".py").removeprefix("./")
    held = set(files)
    paths = (f"{name}.py", f"{name.replace('.', '/')}.py", f"{name}/__init__.py")
    return next((path for path in paths if path in held), "")


def unpack(path: Path, destination: Path, limits: Limits | None = None) -> None:
    """Unpack into `destination`, a folder that does not exist yet. If the archive is a folder, link its entries.

    Raises UnsafeArchive and NoSpace as `archive.extract` does. After an error nothing is left behind.
    """
    if path.is_file() and zipfile.is_zipfile(path):
        zip_archive.extract(path, destination, limits)
        return
    destination.mkdir(parents=True)
    try:
        with _opened(path) as archive, storage.full_disk_is_no_space(0, destination):
            archive.unpack(destination, limits or Limits())
    except BaseException:
        storage.remove_tree(destination)
        raise


# -- the three forms of an archive -------------------------------------------------------------------------------------
class _Archive(ABC):
    """An open archive. sizes: name of a file in the archive, without a folder around all files -> its size."""

    sizes: dict[str, int]

    @abstractmethod
    def _content(self, name: str) -> bytes:
        """Return the first MAX_TEXT_BYTES + 1 bytes of a file in `sizes`."""

    @abstractmethod
    def unpack(self, destination: Path, limits: Limits) -> None:
        """Write all files into an existing folder."""

    def read(self, name: str) -> bytes:
        if name not in self.sizes:
            raise NotFound(f"the archive has no '{name[:80]}'")
        content = self._content(name) if self.sizes[name] <= MAX_TEXT_BYTES else b""
        if (not content and self.sizes[name]) or len(content) > MAX_TEXT_BYTES:
            raise InvalidArchive(f"'{name[:80]}' of the archive is larger than {MAX_TEXT_BYTES >> 20} MiB")
        return content


@contextmanager
def _opened(path: Path) -> Iterator[_Archive]:
    """Open an archive of any form. Raises InvalidArchive if the archive is damaged, also while the caller reads it."""
    if not path.exists():
        raise NotFound(f"there is no archive '{path.name}'")
    try:
        if path.is_dir():
            yield _Folder(path)
        elif zipfile.is_zipfile(path):
            with opened_zip(path, Limits().max_files) as packed:
                yield _Zip(packed, path)
        else:
            with opened_tar(path) as packed_tar:
                yield _Tar(packed_tar, path)
    except _DAMAGED as error:
        if isinstance(error, tarfile.ReadError) and not _begins_as_zip(path):
            raise InvalidArchive(f"'{path.name}' is no model archive: expected a zip or a tar file") from error
        raise InvalidArchive(f"the archive '{path.name}' is damaged or cut off: pack or copy it again") from error


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


class _Zip(_Archive):
    def __init__(self, packed: zipfile.ZipFile, path: Path) -> None:
        self._packed = packed
        zip_archive.check_bounds(packed.infolist(), path.stat().st_size, Limits())  # it also refuses unsafe names
        self.sizes = {info.filename: info.file_size for info in packed.infolist() if not info.is_dir()}

    def _content(self, name: str) -> bytes:
        with self._packed.open(name) as file:
            return file.read(MAX_TEXT_BYTES + 1)

    def unpack(self, destination: Path, limits: Limits) -> None:
        raise AssertionError  # never called: repository.files.archive unpacks zip files


class _Tar(_Archive):
    def __init__(self, packed: TarReader, path: Path) -> None:
        self._packed = packed
        self._packed_size = max(path.stat().st_size, 1)
        self._members: dict[str, tarfile.TarInfo] = {}
        members = [member for member in self._bounded() if not member.isdir()]
        around = _folder_around([member.name for member in members])
        for member in members:
            name = _plain_name(member.name)[len(around) :]
            if not member.isreg():
                raise UnsafeArchive(f"'{name[:80]}' is a link or a device; only files and folders are unpacked")
            if name in self._members:
                raise UnsafeArchive(f"'{name[:80]}' is in the archive twice")
            self._members[name] = member
        self.sizes = {name: member.size for name, member in self._members.items()}

    def _bounded(self) -> Iterator[tarfile.TarInfo]:
        """Yield the members. Each is checked before the next one is read, which reads all bytes in between."""
        limits = Limits()
        for count, member in enumerate(self._packed.members(), 1):
            size = member.offset_data + member.size  # all bytes up to the end of this member, with headers
            if count > limits.max_files or size > limits.max_bytes:
                raise UnsafeArchive(
                    f"the archive holds more than {limits.max_files} files or {limits.max_bytes >> 20} MiB"
                )
            if size > (16 << 20) and size > limits.max_ratio * self._packed_size:
                raise UnsafeArchive(f"the archive unpacks to more than {limits.max_ratio} times its size")
            yield member

    def _content(self, name: str) -> bytes:
        with self._packed.content(self._members[name]) as source:
            return source.read(MAX_TEXT_BYTES + 1)

    def unpack(self, destination: Path, limits: Limits) -> None:
        storage.ensure_space(destination, sum(self.sizes.values()), limits.reserve)
        for name, member in self._members.items():
            target = destination / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with self._packed.content(member) as source, target.open("xb") as file:
                    while chunk := source.read(_CHUNK):
                        file.write(chunk)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise UnsafeArchive("the archive uses one name for a file and a folder") from error


class _Folder(_Archive):
    def __init__(self, path: Path) -> None:
        inner = [one for one in path.iterdir() if one.is_dir() and not one.is_symlink() and (one / MANIFEST).is_file()]
        self._path = inner[0] if len(inner) == 1 and not (path / MANIFEST).is_file() else path
        self.sizes = {
            name: (self._path / name).stat().st_size for name in storage.plain_files(self._path) if name != OVERLAY_FILE
        }

    def _content(self, name: str) -> bytes:
        with (self._path / name).open("rb") as file:
            return file.read(MAX_TEXT_BYTES + 1)

    def unpack(self, destination: Path, limits: Limits) -> None:
        for entry in self._path.iterdir():
            if entry.name != OVERLAY_FILE:
                (destination / entry.name).symlink_to(entry.resolve())


def _plain_name(name: str) -> str:
    """Return the name of a member as a plain relative name. Raises UnsafeArchive if it is not one."""
    plain = name.removeprefix("./")
    try:
        relative_path(plain)
    except UnsafePath:
        raise UnsafeArchive(f"'{name[:80]}' in the archive is not a plain relative file name") from None
    return plain


def _folder_around(names: list[str]) -> str:
    """Return the folder that surrounds all files in tar files of torch-model-archiver, with its slash; "" if there is none."""
    plain = [_plain_name(name) for name in names]
    if MANIFEST in plain:
        return ""
    tops = {PurePosixPath(name).parts[0] + "/" for name in plain}
    return tops.pop() if len(tops) == 1 else ""


# -- the manifest ------------------------------------------------------------------------------------------------------
def _description(archive: _Archive) -> tuple[Manifest, ModelSettings]:
    manifest = _manifest(archive)
    name = manifest.config_file
    return manifest, parse_settings(archive.read(name)) if name else ModelSettings()


def _manifest(archive: _Archive) -> Manifest:
    if MANIFEST not in archive.sizes:
        raise InvalidArchive(f"the archive has no {MANIFEST}: pack it with torch-model-archiver")
    try:
        whole = json.loads(archive.read(MANIFEST))
    except (ValueError, RecursionError):
        raise InvalidArchive(f"{MANIFEST} of the archive is not JSON") from None
    model = whole.get("model") if isinstance(whole, dict) else None
    if not isinstance(model, dict):
        raise InvalidArchive(f"{MANIFEST} of the archive has no 'model' object")
    manifest = Manifest(
        name=_text(model, "modelName"),
        version=_text(model, "modelVersion"),
        handler=_text(model, "handler"),
        serialized_file=_text(model, "serializedFile"),
        model_file=_text(model, "modelFile"),
        requirements_file=_text(model, "requirementsFile"),
        config_file=_text(model, "configFile"),
        envelope=_text(model, "envelope"),
        runtime=_text(whole, "runtime"),
        archiver_version=_text(whole, "archiverVersion"),
        created_on=_text(whole, "createdOn"),
        whole=whole,
    )
    if not manifest.handler:
        raise InvalidArchive(f"{MANIFEST} of the archive names no handler")
    for name in (manifest.serialized_file, manifest.model_file, manifest.requirements_file, manifest.config_file):
        if name and name not in archive.sizes:
            raise InvalidArchive(f"the archive has no '{name[:80]}', which its manifest names")
    return manifest


def _text(values: Mapping[str, Json], key: str) -> str:
    value = values.get(key)
    if value is None:
        return ""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise InvalidArchive(f"'{key}' in {MANIFEST} of the archive must be a text")
    return str(value)[:1000]


# -- model-config.yaml -------------------------------------------------------------------------------------------------
# Keys of model-config.yaml that TorchServe supports and this server does not.
_UNSERVED = (
    *("continuousBatching", "sequenceBatching", "sequenceMaxIdleMSec", "sequenceTimeoutMSec", "maxNumSequence"),
    *("maxSequenceJobQueueSize", "asyncCommunication", "useJobTicket", "rateLimiter", "torchrun", "parallelLevel"),
)


def parse_settings(text: bytes) -> ModelSettings:
    """Return the settings of a model-config.yaml. A file that cannot be read is ignored, as by TorchServe."""
    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        return ModelSettings(unusable={"": f"the model's configuration in YAML cannot be read{where}"})
    if loaded is None:
        return ModelSettings()
    if not isinstance(loaded, dict):
        return ModelSettings(unusable={"": "the model's configuration in YAML must be a mapping of keys to values"})
    whole = _as_json(loaded, [_MAX_NODES])
    unusable: dict[str, str] = {}
    return ModelSettings(
        min_workers=_number(whole, "minWorkers", 0, _MAX_WORKERS, unusable),
        max_workers=_number(whole, "maxWorkers", 0, _MAX_WORKERS, unusable),
        batch_size=_number(whole, "batchSize", 1, 1 << 20, unusable),
        max_batch_delay_ms=_number(whole, "maxBatchDelay", 0, 3_600_000, unusable),
        response_timeout_s=_number(whole, "responseTimeout", 1, 1 << 30, unusable),
        startup_timeout_s=_number(whole, "startupTimeout", 1, 1 << 30, unusable),
        job_queue_size=_number(whole, "jobQueueSize", 1, 1 << 30, unusable),
        client_timeout_ms=_number(whole, "clientTimeoutInMills", 0, 1 << 40, unusable),
        device_type=_device_type(whole.get("deviceType"), unusable),
        device_ids=_device_ids(whole.get("deviceIds"), unusable),
        parallel_type=str(whole.get("parallelType") or ""),
        unserved=tuple(key for key in _UNSERVED if whole.get(key)),
        unusable=unusable,
        whole=whole,
    )


def _number(values: Mapping[str, Json], key: str, minimum: int, maximum: int, unusable: dict[str, str]) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        unusable[key] = f"'{key}' must be a whole number from {minimum} to {maximum}, not {str(value)[:40]!r}"
        return None
    return value


def _device_type(value: Json, unusable: dict[str, str]) -> str:
    device_type = str(value or "").lower()
    if device_type in ("", "cpu", "gpu"):
        return device_type
    unusable["deviceType"] = f"'deviceType' must be cpu or gpu, not {device_type[:40]!r}"
    return ""


def _device_ids(value: Json, unusable: dict[str, str]) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 1024 for one in value):
        unusable["deviceIds"] = "'deviceIds' must be a list of numbers of GPUs"
        return ()
    return tuple(dict.fromkeys(one for one in value if isinstance(one, int)))


def _as_json(value: Any, left: list[int]) -> Any:
    """Return a value of YAML as a value of JSON. Raises InvalidArchive if it expands to more values than `left` allows."""
    left[0] -= 1
    if left[0] < 0:
        raise InvalidArchive(f"the model's configuration in YAML stands for more than {_MAX_NODES} values")
    if isinstance(value, dict):
        return {str(key): _as_json(one, left) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_as_json(one, left) for one in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
