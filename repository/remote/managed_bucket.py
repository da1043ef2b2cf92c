"""The managed repository in a bucket: content under its SHA-256, and for each model a pointer that names its files.

<prefix>/slipway.json            {"format": 1, "owner": the installation that writes here}
<prefix>/objects/<sha256>        the content of a file, however many versions and models have it
<prefix>/models/<name>.json      {"format": 1, "model": name, "files": {path: {"sha256", "size"}}, "versions": [...],
                                  "archived": {version: files}, "record": what restores the database,
                                  "writing": another text each time, and so another ETag}

Objects are sent first, and the pointer last: a reader sees all files of a change or none. A process that dies leaves objects
that no pointer names, and `collect` removes them. A pointer is replaced only if it is the one that was read (If-Match); an ETag
is never taken for a hash. Whether the store heeds such conditions is tried (`conditional`); if not, the caller needs a lease.
"""

import json
import logging
import math
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Protocol, cast

from repository.core.errors import Conflict, InvalidConfig, Unreachable
from repository.core.json_types import JsonObject
from repository.core.layout import check_name
from repository.files.progress import SILENT, Progress
from repository.files.storage import FileEntry, hash_file, locked
from repository.remote.address import RemoteAddress
from repository.remote.pointers import FORMAT, MARKER, MODELS, OBJECTS, SUFFIX, check_format
from repository.remote.repository import explained, file_system, object_size

log = logging.getLogger(__name__)

ANSWER_S = 15.0  # how long an answer without the content of files is waited for, if no lock is held
GARBAGE_AGE_S = 24 * 3600.0
# An object without a pointer is used again only while it is this young, so that `collect` cannot remove it meanwhile.
_FRESH_S = GARBAGE_AGE_S / 2
_SEEN_S = 600.0  # how long a thread relies on an object that it has sent or found fresh
_PART_BYTES, _MOST_PARTS, _PARTS_AT_ONCE = 8 << 20, 9_000, 2
_POLL_S = 0.2
_TIMES = ("LastModified", "last_modified", "updated", "created")
_LOST_RACE = ("PreconditionFailed", "ConditionalRequestConflict")
_NO_CONDITIONS = ("NotImplemented", "InvalidRequest", "InvalidArgument")


class FileSystem(Protocol):
    """The methods of fsspec's file systems that this module uses."""

    def find(self, path: str, *, detail: bool) -> Mapping[str, Mapping[str, object]]: ...

    def info(self, path: str, **more: object) -> Mapping[str, object]: ...

    def cat_file(self, path: str, **more: object) -> bytes: ...

    def pipe_file(self, path: str, value: bytes, **more: object) -> object: ...

    def put_file(self, lpath: str, rpath: str, **more: object) -> object: ...

    def rm_file(self, path: str, **more: object) -> object: ...

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


class _Thread(threading.local):
    """What one thread knows. until: when its requests must end. seen: the hashes of objects, each with the end of its trust."""

    def __init__(self) -> None:
        self.until = math.inf
        self.seen: dict[str, float] = {}


class _NoConditions(Unreachable):
    """The store refuses every conditional write."""


class ManagedBucket:
    """One prefix of a bucket. Every method asks the store, and raises Unreachable, in one sentence, if it does not answer."""

    def __init__(self, address: RemoteAddress, lock: Path) -> None:
        """lock: a file, common to all processes, whose lock `collect` holds while it looks at an object and removes it."""
        self._address, self._lock = address, lock
        self._what = f"{address.text.partition('://')[0]} repository (SLIPWAY_REPOSITORY)"
        self._opened: tuple[FileSystem, str] | None = None
        self._conditional: bool | None = None  # None: not tried yet
        self._thread = _Thread()

    # -- owner -------------------------------------------------------------------------------------------------------
    def owner(self) -> str:
        """Return the installation that writes here, "" for a new prefix."""
        found = self._read(MARKER)
        return str(found.get("owner", "")) if found else ""

    def take(self, owner: str, *, over: bool = False) -> None:
        """Become the owner of a new prefix. over: also of one that another installation owns."""
        found = self._pointer(MARKER)
        if found is None or over:
            self._write(MARKER, {"format": FORMAT, "owner": owner}, found)

    # -- how the store answers ---------------------------------------------------------------------------------------
    @property
    def conditional(self) -> bool:
        """Return whether the store refuses a write whose condition is not met. The first call of a process tries it."""
        if self._conditional is None:
            self._conditional = self._address.protocol == "s3" and self._heeds_conditions()
            by = "conditional writes" if self._conditional else "a lease, because the store has no conditional writes"
            log.info("pointers of the %s are kept from late writers by %s", self._what, by)
        return self._conditional

    def _heeds_conditions(self) -> bool:
        name = f"trial-{uuid.uuid4().hex}"
        try:
            self._pipe(name, b"")
            refused = [self._refuses(name, condition) for condition in ({"IfNoneMatch": "*"}, {"IfMatch": '"0"'})]
        finally:
            self._remove(name)
        return all(refused)

    def _refuses(self, name: str, condition: dict[str, str]) -> bool:
        """Return whether a write is refused because its condition, which is not met, was heeded."""
        try:
            self._pipe(name, b"", **condition)
        except Conflict:
            return True
        except _NoConditions:
            pass
        return False

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give all requests that this thread makes in the block this time together. Then they raise Unreachable."""
        with self._asked():
            self._path("")  # the first one imports packages
        before, self._thread.until = self._thread.until, time.monotonic() + seconds
        try:
            yield
        finally:
            self._thread.until = before

    # -- pointers ----------------------------------------------------------------------------------------------------
    def models(self) -> list[str]:
        """Return the names of all models that have a pointer, sorted."""
        return sorted(path.removesuffix(SUFFIX) for path in self._list(MODELS) if path.endswith(SUFFIX))

    def pointer(self, name: str) -> Pointer | None:
        return self._pointer(_place(name))

    def point(self, name: str, document: JsonObject, before: Pointer | None) -> None:
        """Replace a model's pointer, whose objects have been sent. before: the present pointer, None if there is none.

        Raises Conflict if somebody else has replaced it since it was read.
        """
        self._write(_place(name), {"format": FORMAT, "model": name, **document}, before)

    def remove(self, name: str) -> None:
        """Remove a model's pointer, if there is one."""
        self._remove(_place(name))

    # -- objects -----------------------------------------------------------------------------------------------------
    def send(
        self, objects: Mapping[FileEntry, Path | bytes], progress: Progress = SILENT, *, relying: bool = False
    ) -> None:
        """Send the contents that the bucket lacks. Raises Conflict if a file has not the content of its entry.

        relying: ask nothing about those that this thread has sent or found in the last ten minutes.
        """
        for entry, source in objects.items():
            known = relying and self._thread.seen.get(entry.sha256, 0.0) > time.monotonic()
            if known or self._has(entry):
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
            system, path = self._path(f"{OBJECTS}/{entry.sha256}")
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
        objects = self._list(OBJECTS)
        found = self.models()
        if missing := sorted(set(models) - set(found)):
            raise Unreachable(f"the {self._what} lists no pointer of '{missing[0]}', so nothing is removed from it")
        with ThreadPoolExecutor(8) as pool:
            pointers = list(pool.map(self.pointer, found))
        kept = {*keep, *(digest for pointer in pointers if pointer for digest in pointer.digests)}
        removed = sum(
            self._remove_old(f"{OBJECTS}/{name}", limit)
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
            system, path = self._path(f"{OBJECTS}/")
            bucket, _, prefix = path.partition("/")
            call = system.call_s3  # type: ignore[attr-defined]  # only s3fs has it
            for upload in call("list_multipart_uploads", Bucket=bucket, Prefix=prefix).get("Uploads", []):
                if upload["Initiated"].timestamp() < limit:
                    call("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def _has(self, entry: FileEntry) -> bool:
        """Return whether an object is there, whole, and too young for `collect` to remove it."""
        details = self._info(f"{OBJECTS}/{entry.sha256}")
        if details is None or object_size(details) != entry.size or time.time() - _modified(details) >= _FRESH_S:
            return False
        self._thread.seen[entry.sha256] = time.monotonic() + _SEEN_S
        return True

    def _put(self, entry: FileEntry, source: Path | bytes, progress: Progress) -> None:
        """Send one object with bounded memory. If `progress` raises, the sending stops at the next part."""
        if isinstance(source, bytes):
            self._pipe(f"{OBJECTS}/{entry.sha256}", source)
            return
        with self._asked():
            system, path = self._path(f"{OBJECTS}/{entry.sha256}")
            how = self._parts(entry.size) | self._patience(system, math.inf)
        sent, counted = _Sent(), 0
        with ThreadPoolExecutor(1) as pool:  # fsspec calls back on its own thread, where no progress can be written
            job = pool.submit(system.put_file, str(source), path, callback=sent, **how)
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
    def _pointer(self, name: str) -> Pointer | None:
        details = self._info(name)  # its ETag is read first: a pointer that is replaced now cannot be overwritten
        document = self._read(name) if details is not None else None
        return Pointer(document, str(details.get("ETag", ""))) if details is not None and document is not None else None

    def _read(self, name: str) -> JsonObject | None:
        with self._asked():
            system, path = self._path(name)
            try:
                content = system.cat_file(path, **self._patience(system))
            except FileNotFoundError:
                return None
        try:
            return cast(JsonObject, check_format(content, f"'{name}' in the {self._what}"))
        except InvalidConfig as error:
            raise Unreachable(error.message) from error

    def _write(self, name: str, document: JsonObject, before: Pointer | None) -> None:
        condition = {"IfMatch": before.etag} if before else {"IfNoneMatch": "*"}
        content = json.dumps(document, sort_keys=True).encode()
        self._pipe(name, content, **(condition if self.conditional else {}))

    def _pipe(self, name: str, content: bytes, **condition: str) -> None:
        with self._asked():
            system, path = self._path(name)
            try:
                system.pipe_file(path, content, **condition, **self._patience(system))
            except OSError as error:
                code = _code(error)
                if code in _LOST_RACE or ("IfMatch" in condition and isinstance(error, FileNotFoundError)):
                    raise Conflict(f"'{name}' in the {self._what} was changed by another process; try again") from error
                if condition and code in _NO_CONDITIONS:
                    raise _NoConditions(f"the {self._what} has no conditional writes any more") from error
                raise

    def _remove(self, name: str) -> None:
        with self._asked():
            system, path = self._path(name)
            try:
                system.rm_file(path, **self._patience(system))
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
                return system.info(path, **self._patience(system))
            except FileNotFoundError:
                return None

    def _path(self, name: str) -> tuple[FileSystem, str]:
        """Return fsspec's file system and a path in it."""
        if self._opened is None:
            opened, root = file_system(self._address)
            self._opened = cast(FileSystem, opened), root  # the protocol there has no methods that write
        system, root = self._opened
        return system, f"{root}/{name}"

    def _patience(self, system: FileSystem, most_s: float | None = None) -> dict[str, object]:
        """Return when fsspec gives a request up and cancels it, as an option that systems without a network do not know."""
        left = min(ANSWER_S if most_s is None else most_s, self._thread.until - time.monotonic())
        if left <= 0:
            raise Unreachable(f"the {self._what} answers too slowly")
        return {"timeout": left} if left < math.inf and getattr(system, "async_impl", False) else {}

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


def _place(name: str) -> str:
    """Return the place of a model's pointer."""
    return f"{MODELS}/{check_name(name)}{SUFFIX}"


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
