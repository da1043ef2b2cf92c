"""The managed repository in a bucket: content under its SHA-256, and for each model a pointer that names its files.

<prefix>/slipway.json            {"format": 1, "owner": the installation that writes here}
<prefix>/objects/<sha256>        the content of a file, however many versions and models have it
<prefix>/models/<name>.json      {"format": 1, "model": name, "files": {path: {"sha256", "size"}}, "versions": [...],
                                  "archived": {version: files}, "record": what restores the database}

Objects are sent first, and the pointer last: a reader sees all files of a change or none. A process that dies leaves objects
that no pointer names, and `collect` removes them. A pointer is replaced only if it is the one that was read (If-Match); an ETag
is never taken for a hash. A store without conditional writes relies on the caller's lock on the model.
"""

import json
import math
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Protocol, cast

from repository.core.errors import Conflict, Unreachable
from repository.core.json_types import JsonObject
from repository.core.layout import check_name
from repository.files.progress import SILENT, Progress
from repository.files.storage import FileEntry, hash_file, locked
from repository.remote.address import RemoteAddress
from repository.remote.repository import explained, file_system, object_size

FORMAT = 1
GARBAGE_AGE_S = 24 * 3600.0
# An object without a pointer is used again only while it is this young, so that `collect` cannot remove it meanwhile.
_FRESH_S = GARBAGE_AGE_S / 2
# A caller holds a lock on the model while it waits, so a store that hangs is given up after two attempts.
_WAITING = {"connect_timeout": 3, "read_timeout": 8, "retries": {"max_attempts": 0}}
_PART_BYTES, _MOST_PARTS, _PARTS_AT_ONCE = 8 << 20, 9_000, 2
_POLL_S = 0.2
_TIMES = ("LastModified", "last_modified", "updated", "created")
_LOST_RACE = ("PreconditionFailed", "ConditionalRequestConflict")


class FileSystem(Protocol):
    """The methods of fsspec's file systems that this module uses."""

    def find(self, path: str, *, detail: bool) -> Mapping[str, Mapping[str, object]]: ...

    def info(self, path: str) -> Mapping[str, object]: ...

    def cat_file(self, path: str) -> bytes: ...

    def pipe_file(self, path: str, value: bytes, **more: object) -> object: ...

    def put_file(self, lpath: str, rpath: str, **more: object) -> object: ...

    def rm_file(self, path: str) -> object: ...

    def open(self, path: str, mode: str, *, block_size: int) -> IO[bytes]: ...


@dataclass(frozen=True, slots=True)
class Pointer:
    """A model's pointer as it was read. etag: names this writing of it, "" if the store gives none."""

    document: JsonObject
    etag: str

    @property
    def files(self) -> dict[str, FileEntry]:
        """Return the model's files, without archived versions."""
        return _entries(self.document["files"])

    @property
    def archived(self) -> dict[int, dict[str, FileEntry]]:
        """Return the files of each archived version."""
        groups: Any = self.document.get("archived", {})
        return {int(number): _entries(files) for number, files in groups.items()}

    @property
    def digests(self) -> set[str]:
        """Return the SHA-256 of every object that the pointer names."""
        groups = (self.files, *self.archived.values())
        return {entry.sha256 for files in groups for entry in files.values()}


class _Sent:
    """Counts the bytes of a file that is being sent (fsspec's callback), and stops the sending."""

    def __init__(self) -> None:
        self.bytes = 0
        self.stopped = False

    def set_size(self, size: int) -> None:
        """Do nothing: the size is known."""

    def relative_update(self, size: int = 1) -> None:
        if self.stopped:
            raise InterruptedError
        self.bytes += size


class ManagedBucket:
    """One prefix of a bucket. Every method asks the store, and raises Unreachable, in one sentence, if it does not answer."""

    def __init__(self, address: RemoteAddress, lock: Path) -> None:
        """lock: a file, common to all processes, whose lock `collect` holds while it looks at an object and removes it."""
        self._address, self._lock = address, lock
        self._what = f"{address.text.partition('://')[0]} repository (SLIPWAY_REPOSITORY)"
        self._opened: dict[bool, tuple[FileSystem, str]] = {}

    # -- owner -------------------------------------------------------------------------------------------------------
    def owner(self) -> str:
        """Return the installation that writes here, "" for a new prefix."""
        found = self._read("slipway.json")
        return str(found.document.get("owner", "")) if found else ""

    def take(self, owner: str, *, over: bool = False) -> None:
        """Become the owner of a new prefix. over: also of one that another installation owns."""
        found = self._read("slipway.json")
        if found is None or over:
            self._write("slipway.json", {"format": FORMAT, "owner": owner}, found)

    # -- pointers ----------------------------------------------------------------------------------------------------
    def models(self) -> list[str]:
        """Return the names of all models that have a pointer, sorted."""
        paths = self._list("models")
        return sorted(path.removesuffix(".json") for path in paths if path.endswith(".json"))

    def pointer(self, name: str) -> Pointer | None:
        return self._read(f"models/{check_name(name)}.json")

    def point(self, name: str, document: JsonObject, before: Pointer | None) -> None:
        """Replace a model's pointer, whose objects have been sent. before: the present pointer, None if there is none.

        Raises Conflict if somebody else has replaced it since it was read.
        """
        self._write(f"models/{check_name(name)}.json", {"format": FORMAT, "model": name, **document}, before)

    def remove(self, name: str) -> None:
        """Remove a model's pointer, if there is one."""
        self._remove(f"models/{check_name(name)}.json")

    # -- objects -----------------------------------------------------------------------------------------------------
    def send(self, objects: Mapping[FileEntry, Path | bytes], progress: Progress = SILENT) -> None:
        """Send the contents that the bucket lacks. Raises Conflict if a file has not the content of its entry."""
        for entry, source in objects.items():
            if self._has(entry):
                progress.advance(entry.size)
                continue
            if isinstance(source, Path) and (not source.is_file() or hash_file(source) != entry):
                raise Conflict(f"file '{source.name}' was changed or removed by hand, so the bucket cannot have it")
            self._put(entry, source, progress)
            # A `collect` that saw an earlier object of this name may have removed this one.
            with self._locked():
                there = self._has(entry)
            if not there:
                self._put(entry, source, SILENT)

    def fetch(self, entry: FileEntry, target: Path) -> None:
        """Write an object's content into a new file. Raises Unreachable if it is not the content of that hash."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._asked():
            system, path = self._path(f"objects/{entry.sha256}", long=True)
            with system.open(path, "rb", block_size=_PART_BYTES) as source, target.open("xb") as file:
                while chunk := source.read(_PART_BYTES):
                    file.write(chunk)
        if hash_file(target) != entry:
            raise Unreachable(f"an object of the {self._what} is damaged: {entry.sha256}")

    def collect(self, *, models: Collection[str], keep: Collection[str], older_than_s: float = GARBAGE_AGE_S) -> int:
        """Remove objects that no pointer names, and parts of broken-off uploads; return the number of objects.

        models: those that must have a pointer; an incomplete list removes nothing. keep: more hashes to keep.
        """
        limit = time.time() - older_than_s
        objects = self._list("objects")
        found = self.models()
        if missing := sorted(set(models) - set(found)):
            raise Unreachable(f"the {self._what} lists no pointer of '{missing[0]}', so nothing is removed from it")
        with ThreadPoolExecutor(8) as pool:
            pointers = list(pool.map(self.pointer, found))
        kept = {*keep, *(digest for pointer in pointers if pointer for digest in pointer.digests)}
        removed = sum(
            self._remove_old(f"objects/{name}", limit)
            for name, details in objects.items()
            if name not in kept and _modified(details) < limit
        )
        self._abort_uploads(limit)
        return removed

    def _remove_old(self, name: str, limit: float) -> bool:
        with self._locked():
            details = self._info(name)
            old = details is not None and _modified(details) < limit
            if old:
                self._remove(name)
        return old

    def _abort_uploads(self, limit: float) -> None:
        """Abort uploads in parts whose process died. They occupy space, but are in no list."""
        if self._address.protocol != "s3":
            return
        with self._asked():
            system, path = self._path("objects/")
            bucket, _, prefix = path.partition("/")
            call = system.call_s3  # type: ignore[attr-defined]  # only s3fs has it
            for upload in call("list_multipart_uploads", Bucket=bucket, Prefix=prefix).get("Uploads", []):
                if upload["Initiated"].timestamp() < limit:
                    call("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def _has(self, entry: FileEntry) -> bool:
        """Return whether an object is there, whole, and too young for `collect` to remove it."""
        details = self._info(f"objects/{entry.sha256}")
        if details is None or object_size(details) != entry.size:
            return False
        return time.time() - _modified(details) < _FRESH_S

    def _put(self, entry: FileEntry, source: Path | bytes, progress: Progress) -> None:
        """Send one object with bounded memory. If `progress` raises, the sending stops at the next part."""
        with self._asked():
            system, path = self._path(f"objects/{entry.sha256}", long=True)
            if isinstance(source, bytes):
                system.pipe_file(path, source)
                return
        sent, counted = _Sent(), 0
        with ThreadPoolExecutor(1) as pool:  # fsspec calls back on its own thread, where no progress can be written
            job = pool.submit(system.put_file, str(source), path, callback=sent, **self._parts(entry.size))
            try:
                while not wait([job], _POLL_S).done:
                    progress.advance(sent.bytes - counted)
                    counted = sent.bytes
            except BaseException:
                sent.stopped = True
                raise
        with self._asked():
            # The answer to the last part may be lost: then a second attempt fails although the object is there.
            if job.exception() is not None and not self._has(entry):
                job.result()
        progress.advance(entry.size - counted)

    def _parts(self, size: int) -> dict[str, object]:
        if self._address.protocol != "s3":
            return {}
        return {"chunksize": max(_PART_BYTES, math.ceil(size / _MOST_PARTS)), "max_concurrency": _PARTS_AT_ONCE}

    # -- the store ---------------------------------------------------------------------------------------------------
    def _read(self, name: str) -> Pointer | None:
        details = self._info(name)  # its ETag is read first: a pointer that is replaced now cannot be overwritten
        if details is None:
            return None
        with self._asked():
            system, path = self._path(name)
            content = system.cat_file(path)
        try:
            document = json.loads(content)
            if document["format"] == FORMAT:
                return Pointer(document, str(details.get("ETag", "")))
        except (ValueError, KeyError, TypeError):
            pass
        raise Unreachable(f"'{name}' in the {self._what} is damaged, or of a newer release")

    def _write(self, name: str, document: JsonObject, before: Pointer | None) -> None:
        content = json.dumps(document, sort_keys=True).encode()
        condition = {"IfMatch": before.etag} if before else {"IfNoneMatch": "*"}
        with self._asked():
            system, path = self._path(name)
            try:
                system.pipe_file(path, content, **(condition if self._address.protocol == "s3" else {}))
            except OSError as error:
                code = _code(error)
                if code in _LOST_RACE or (before and isinstance(error, FileNotFoundError)):
                    raise Conflict(f"'{name}' in the {self._what} was changed by another process; try again") from error
                if code != "NotImplemented":
                    raise
                system.pipe_file(path, content)

    def _remove(self, name: str) -> None:
        with self._asked():
            system, path = self._path(name)
            try:
                system.rm_file(path)
            except FileNotFoundError:
                return

    def _list(self, folder: str) -> dict[str, Mapping[str, object]]:
        """Return the descriptions of the objects in a folder, by name."""
        with self._asked():
            system, path = self._path(folder)
            try:
                found = system.find(path, detail=True)
            except FileNotFoundError:  # an empty prefix of some stores
                return {}
        return {key.rpartition(f"{path}/")[2]: details for key, details in found.items()}

    def _info(self, name: str) -> Mapping[str, object] | None:
        with self._asked():
            system, path = self._path(name)
            try:
                return system.info(path)
            except FileNotFoundError:
                return None

    def _path(self, name: str, *, long: bool = False) -> tuple[FileSystem, str]:
        """Return fsspec's file system and a path in it. long: wait long, for the content of files."""
        if long not in self._opened:
            opened, root = file_system(self._address)
            if not long and isinstance(config := getattr(opened, "config_kwargs", None), dict):
                config |= _WAITING
            self._opened[long] = cast(FileSystem, opened), root  # the protocol there has no methods that write
        system, root = self._opened[long]
        return system, f"{root}/{name}"

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Raise an error of the store as one sentence."""
        try:
            yield
        except Exception as error:
            raise explained(error, self._what) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with locked(self._lock, "the repository's bucket"):
            yield


def _entries(files: Any) -> dict[str, FileEntry]:
    return {name: FileEntry(int(one["size"]), str(one["sha256"])) for name, one in files.items()}


def _code(error: OSError) -> str:
    """Return the store's code of an error that s3fs has translated."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _modified(details: Mapping[str, object]) -> float:
    """Return the time of an object in s since 1970. One without a time is new for ever, so that it is never removed."""
    for key in _TIMES:
        value = details.get(key)
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
    return math.inf
