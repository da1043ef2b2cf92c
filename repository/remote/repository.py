"""A model repository in the cloud, copied model by model into a local folder.

A listing has the name, size, and ETag or time of each object. A model is copied to a staging folder, by way of a cache of
content (`content_cache`), and listed again: the copy is used only if both listings are equal. Entries of a model's folder (a
version, config.pbtxt) that have not changed are not copied again. A repository with pointers (`pointers`) has a hash in place
of the ETag. While the store does not answer a new process, the models
are those that the cache has whole.
"""

import logging
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, Protocol, TypeVar

from repository.core import layout
from repository.core.errors import InvalidConfig, InvalidName, NotFound, RepositoryError, Unreachable, UnsafePath
from repository.remote import pointers
from repository.remote.address import RemoteAddress, storage_options
from repository.remote.content_cache import CHUNK_BYTES, SHA256, ContentCache, WrongContent, name_of

log = logging.getLogger(__name__)

# (path inside the model, size, token that changes with the content); a path that ends with "/" is an empty folder
Row = tuple[str, int, str]
Listing = tuple[Row, ...]

T = TypeVar("T")

COPY_ATTEMPTS = 3
READ_ATTEMPTS = 2  # without progress
WRONG_CONTENT_S = 60.0  # how long content with a wrong hash is not downloaded again
READERS = 4  # objects that are read at a time, each through at most two chunks of memory
_TOKENS = ("ETag", "etag", "md5Hash", "generation", "mtime", "LastModified", "last_modified", "updated", "created")
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs"}


class FileSystem(Protocol):
    """The methods of fsspec's file systems that this module uses."""

    def invalidate_cache(self) -> None: ...

    def find(self, path: str, *, detail: bool) -> Mapping[str, Mapping[str, object]]: ...

    def info(self, path: str) -> Mapping[str, object]: ...

    def size(self, path: str) -> int | None: ...

    def cat_file(self, path: str) -> bytes: ...

    def open(self, path: str, mode: str, **options: object) -> IO[bytes]: ...


class RemoteRepository:
    """A repository in the cloud. Methods that use the network block and belong on a worker thread; all others do not block."""

    def __init__(
        self, address: RemoteAddress, folder: Path, content: ContentCache, *, may_be_empty: bool = True
    ) -> None:
        """folder: a folder of this object alone, on the disk of the cache. may_be_empty: whether a list without models is an
        answer. If not, it is a failure, because a wrong prefix and a store that lost its data give the same list."""
        self.address = address
        self.from_cache = False  # whether the models are the kept ones, because the store never answered this process
        self.may_be_empty = may_be_empty  # until the repository has a model again
        self.empty = False  # whether the last listing failed because it had no model
        self._content = content
        self._name = name_of(address.endpoint, address.account, address.protocol, address.url)  # in the cache
        self._readers = threading.BoundedSemaphore(READERS)
        self._local = layout.ModelRepository(folder / "models")
        self._staging = folder / "staging"
        self._lock = threading.Lock()
        self._fetching: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._listed: dict[str, Listing] = {}
        self._last: dict[str, Listing] = {}  # the last listing, stable or not
        self._copied: dict[str, Listing] = {}
        self._until_stable = False
        self._has_pointers: bool | None = None  # None: not known yet
        self._marker: str | None = None  # the token of the marker that was read
        self._pointers: dict[str, _Pointer] = {}
        self._refused: dict[str, tuple[Listing, float, str]] = {}  # with the time of the next attempt, and the reason
        self._opened: tuple[FileSystem, str] | None = None

    # -- the last listing ---------------------------------------------------------------------------------------------
    def models(self) -> list[str]:
        return sorted(self._listed)

    def has_model(self, name: str) -> bool:
        return layout.check_name(name) in self._listed

    def model_dir(self, name: str) -> Path:
        """Return the folder of the copy, which may not exist yet."""
        return self._local.model_dir(name)

    def listing(self, name: str) -> Listing:
        return self._listed.get(name, ())

    def is_copied(self, name: str) -> bool:
        """Return whether the copy matches the last listing."""
        return name in self._copied and self._copied[name] == self._listed.get(name)

    # -- the network -------------------------------------------------------------------------------------------------
    def list_models(self, *, until_stable: bool = False) -> None:
        """List all models. On a failure, raise Unreachable with the reason and keep the last listing.

        With `until_stable`, a change counts only after two equal listings in a row, because an upload may still be under way.
        """
        found = self._list("")
        with self._lock:
            last, self._last, self._until_stable = self._last, found, until_stable
            self.empty = not found and not self.may_be_empty
            if self.empty:
                raise Unreachable(f"the {self._kind} has no model: check its address")
            self.may_be_empty = self.may_be_empty and not found
            if until_stable:
                found = {
                    name: listing
                    for name in found.keys() | self._listed.keys()
                    if (listing := self._stable(found.get(name), last.get(name), self._listed.get(name))) is not None
                }
            changed = found.keys() != self._listed.keys() or self.from_cache or not last
            self._listed, self.from_cache = found, False
            names = sorted(found)
        if changed:
            self._keep(partial(self._content.keep_names, self._name, names))

    def use_kept(self) -> bool:
        """Take the models that the cache has whole, because the store does not answer this process. Return whether these are
        all models that were listed last. A process that has listed the models keeps its own list."""
        names, kept = self._content.kept(self._name)
        with self._lock:
            if not kept or (self._listed and not self.from_cache):
                return False
            whole = {name: tuple(rows) for name, rows in kept.items()}
            self._listed = {name: rows for name, rows in whole.items() if not self._missing_rows(name, rows)}
            self.from_cache = bool(self._listed)
            return self._listed.keys() == set(names)

    @staticmethod
    def _keep(keep: Callable[[], None]) -> None:
        """Keep a listing for a later process. Without room for it, this process serves as well."""
        with suppress(OSError):
            keep()

    @staticmethod
    def _stable(now: Listing | None, before: Listing | None, known: Listing | None) -> Listing | None:
        return now if now == before else known

    def list_model(self, name: str) -> None:
        """List one model again."""
        self._note(name, self._list(layout.check_name(name)).get(name))

    def _note(self, name: str, listing: Listing | None) -> None:
        with self._lock:
            others = {other: known for other, known in self._listed.items() if other != name}
            self._listed = others if listing is None else others | {name: listing}

    def fetch(self, name: str) -> Path:
        """Return the folder with a complete copy of the model. Raises Unreachable or NotFound if it cannot make one."""
        with self._fetching[name]:
            for _ in range(1 if self._until_stable else COPY_ATTEMPTS):
                wanted = self._listed.get(name)
                if wanted is None:
                    raise NotFound(f"there is no model '{name}' in the {self._kind}")
                if self._copied.get(name) == wanted:
                    return self.model_dir(name)
                refused, until, reason = self._refused.get(name, ((), 0.0, ""))
                if refused == wanted and time.monotonic() < until:
                    raise WrongContent(reason)
                try:
                    if self._copy(name, wanted):
                        return self.model_dir(name)
                except WrongContent as wrong:
                    self._refused[name] = wanted, time.monotonic() + WRONG_CONTENT_S, wrong.message
                    raise
            raise Unreachable(f"model '{name}' changed in the {self._kind} while it was copied; it is tried again")

    def forget(self, name: str) -> None:
        """Delete the copy of a model that was removed."""
        with self._fetching[name]:
            self._copied.pop(name, None)
            shutil.rmtree(self.model_dir(name), ignore_errors=True)

    # -- copying -----------------------------------------------------------------------------------------------------
    def _copy(self, name: str, wanted: Listing) -> bool:
        """Copy changed entries. Return False, and keep the new listing, if the model changed during the copy."""
        old, new = _entries(self._copied.get(name, ())), _entries(wanted)
        changed = {entry for entry in new if old.get(entry) != new[entry]}
        staging = self._staging / name
        shutil.rmtree(staging, ignore_errors=True)
        try:
            rows = [row for row in wanted if _entry(row[0]) in changed]
            missing = self._missing_rows(name, rows)
            self._content.make_room(sum(size for _, size, _ in missing))
            whole = self._download(name, rows, staging)
            now = wanted if self.from_cache and not missing else self._list(name).get(name)
            if not whole or now != wanted:
                if not self._until_stable:
                    self._note(name, now)
                return False
            self._copied.pop(name, None)
            self._install(self.model_dir(name), staging, changed, old.keys() - new.keys())
            self._copied[name] = wanted
            self._keep(partial(self._content.keep_listing, self._name, name, wanted))
        except OSError as error:
            raise Unreachable(
                f"model '{name}' could not be copied: {error.strerror or type(error).__name__}"
            ) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return True

    def _missing_rows(self, name: str, rows: Sequence[Row]) -> list[Row]:
        """Return the objects of a model that the cache does not have."""
        return [row for row in rows if not row[0].endswith("/") and not self._content.has(self._key(name, row))]

    def _key(self, name: str, row: Row) -> str:
        if row[2].startswith(SHA256):
            return row[2]
        return name_of(self._name, name, *row) if row[2] else ""

    def _download(self, name: str, rows: list[Row], staging: Path) -> bool:
        """Put each object into the staging folder. Return whether every object was still the listed one."""
        staging.mkdir(parents=True)
        files = []
        for row in rows:
            target = staging / layout.relative_path(row[0].rstrip("/"))
            folder = target if row[0].endswith("/") else target.parent
            folder.mkdir(parents=True, exist_ok=True)
            if not row[0].endswith("/"):
                files.append((row, target))
        try:
            _on_threads(lambda file: self._place(name, *file), files)
        except _Changed:
            return False
        return True

    def _place(self, name: str, row: Row, target: Path) -> None:
        path, size, token = row
        sha256 = token.removeprefix(SHA256) if token.startswith(SHA256) else ""
        place = f"{pointers.OBJECTS}/{sha256}" if sha256 else f"{name}/{path}"
        read = partial(self._read, place, size, "" if sha256 else token)
        try:
            self._content.place(target, self._key(name, row), size, read, sha256)
        except _Changed:
            if sha256:  # a pointer names only content that is there before it
                raise Unreachable(f"content of model '{name}' is missing in the {self._kind}") from None
            raise

    def _read(self, path: str, size: int, token: str, start: int) -> Iterator[bytes]:
        """Yield an object in chunks, from this byte to its end. A read that fails is tried again from where it broke off.

        Raises _Changed if the object is not the listed one, else Unreachable."""
        failed = 0
        with self._readers:
            while start < size:
                try:
                    for chunk in self._chunks(path, start, size, token):
                        start, failed = start + len(chunk), 0
                        yield chunk
                except (FileNotFoundError, _Changed):
                    raise _Changed from None
                except Exception as error:
                    if type(error).__name__ == "FileExpired":  # s3fs: the object has another ETag
                        raise _Changed from error
                    failed += 1
                    if failed == READ_ATTEMPTS or isinstance(error, PermissionError):
                        raise self._explained(error) from error

    def _chunks(self, path: str, start: int, size: int, token: str) -> Iterator[bytes]:
        system, root = self._system()
        # Without a cache of fsspec each read asks for its own bytes. s3fs asks for the ETag that it saw when it opened.
        with closing(system.open(f"{root}/{path}", "rb", block_size=CHUNK_BYTES, cache_type="none")) as file:
            etag = content_token({"ETag": _details(file).get("ETag") or _details(file).get("etag")}).strip('"')
            if etag and token and etag != token.strip('"'):
                raise _Changed
            file.seek(start)
            while start < size:
                chunk = file.read(min(CHUNK_BYTES, size - start))
                if not chunk:
                    raise Unreachable(f"the {self._kind} ended an object after {start:,} of {size:,} bytes")
                start += len(chunk)
                yield chunk

    @staticmethod
    def _install(model_dir: Path, staging: Path, changed: set[str], gone: set[str]) -> None:
        """Replace each changed entry by a rename. Loads of this model wait meanwhile."""
        model_dir.mkdir(parents=True, exist_ok=True)
        for entry in sorted(changed | gone):
            target = model_dir / entry
            if target.exists() and (entry in gone or target.is_dir() or (staging / entry).is_dir()):
                target.rename(staging / f".old-{entry}")
            if entry in changed:
                os.replace(staging / entry, target)

    # -- listing -----------------------------------------------------------------------------------------------------
    def _list(self, name: str) -> dict[str, Listing]:
        """List the objects in the folder of one model, or of all models (""), by model."""
        root = self._system()[1]
        if not self._has_pointers:
            alone = name if self._has_pointers is False else ""  # only the whole list tells the layout
            objects = self._find(alone)
            if not alone:
                self._has_pointers = f"{root}/{pointers.MARKER}" in objects
        if self._has_pointers:
            return self._list_pointers(name)
        found: defaultdict[str, list[tuple[str, int, str]]] = defaultdict(list)
        for path, details in objects.items():
            model, slash, inside = path.removeprefix(root).lstrip("/").partition("/")
            if slash and inside and _may_be_model(model):
                found[model].append((inside, object_size(details), content_token(details)))
        return {model: tuple(sorted(rows)) for model, rows in found.items()}

    def _find(self, path: str) -> Mapping[str, Mapping[str, object]]:
        """Return the description of each object below a path in the repository."""
        system, root = self._system()
        try:
            system.invalidate_cache()
            return system.find(f"{root}/{path}" if path else root, detail=True)
        except Exception as error:
            raise self._explained(error) from error

    def _find_one(self, name: str) -> Mapping[str, Mapping[str, object]]:
        """Return the description of one object by its path; {} if it is not there. Some stores cannot `find` a single one."""
        system, root = self._system()
        try:
            return {f"{root}/{name}": system.info(f"{root}/{name}")}
        except FileNotFoundError:
            return {}
        except Exception as error:
            raise self._explained(error) from error

    def _list_pointers(self, name: str) -> dict[str, Listing]:
        """Return what the pointer of one model, or those of all models (""), says. Only pointers that changed are read.

        Of a pointer that is not valid, the last valid one counts; alone, it raises InvalidConfig or UnsafePath."""
        folder = f"{self._system()[1]}/{pointers.MODELS}/"
        if not name or self._marker is None:
            self._check_marker()
        listed = {}
        one = f"{pointers.MODELS}/{name}{pointers.SUFFIX}"
        for path, details in (self._find_one(one) if name else self._find(pointers.MODELS)).items():
            model = path.removeprefix(folder).removesuffix(pointers.SUFFIX)
            if path == f"{folder}{model}{pointers.SUFFIX}" and _may_be_model(model):
                listed[model] = path, details
        found: dict[str, Listing] = {}

        def read(model: str) -> None:
            path, details = listed[model]
            token = content_token(details)
            known = self._pointers.get(model, _Pointer())
            if not token or token != known.token:
                try:
                    known = _Pointer(token, pointers.read_pointer(self._small(path, details), model))
                except (InvalidConfig, UnsafePath) as error:
                    log.warning("%s: %s", self.address.without_secrets, error.message)
                    known = _Pointer(token, known.listing, error.message)
                self._pointers[model] = known
            if known.problem and name:
                raise InvalidConfig(known.problem)
            if known.listing:
                found[model] = known.listing

        _on_threads(read, list(listed))
        return found

    def _check_marker(self) -> None:
        """Raise Unreachable if a later release wrote the repository."""
        for path, details in self._find_one(pointers.MARKER).items():
            token = content_token(details)
            if token and token == self._marker:
                continue
            try:
                pointers.check_format(self._small(path, details), f"{pointers.MARKER} of the {self._kind}")
            except InvalidConfig as error:
                raise Unreachable(error.message) from error
            self._marker = token

    def _small(self, path: str, details: Mapping[str, object]) -> bytes:
        if object_size(details) > pointers.MAX_BYTES:
            raise InvalidConfig(f"'{path.rpartition('/')[2]}' is larger than {pointers.MAX_BYTES >> 20} MiB")
        try:
            return self._system()[0].cat_file(path)
        except Exception as error:
            raise self._explained(error) from error

    def _system(self) -> tuple[FileSystem, str]:
        """Return fsspec's file system and the repository's root in it, without a closing slash."""
        if self._opened is None:
            try:
                self._opened = file_system(self.address)
            except Exception as error:
                raise self._explained(error) from error
        return self._opened

    @property
    def _kind(self) -> str:
        return f"{self.address.text.partition('://')[0]} model repository"

    def _explained(self, error: Exception) -> RepositoryError:
        return explained(error, self._kind)


def file_system(address: RemoteAddress) -> tuple[FileSystem, str]:
    """Return fsspec's file system and the path in it, without a closing slash. Raises Unreachable if the package for the file
    system is missing; `explained` handles other errors of the file system."""
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(address.protocol)
    except (ImportError, ValueError) as error:
        raise Unreachable(_missing(address.protocol)) from error
    system = kind(**storage_options(address) | {"skip_instance_cache": True, "use_listings_cache": False})
    if hasattr(system, "retries"):
        system.retries = 1  # botocore tries again, see `storage_options`
    return system, str(kind._strip_protocol(address.url)).rstrip("/")


def explained(error: Exception, what: str) -> RepositoryError:
    """Return an error as one sentence, without the library's message, which may contain addresses or keys.

    what: the thing that was read ("s3 model repository")."""
    if isinstance(error, RepositoryError):
        return error
    names = {kind.__name__ for kind in type(error).__mro__}
    if any("Credential" in name or "RefreshError" in name for name in names):
        return Unreachable(f"no valid credentials were found for the {what}")
    if isinstance(error, PermissionError):
        return Unreachable(f"access to the {what} was denied: check its credentials and permissions")
    if names & {"FileNotFoundError", "ResourceNotFoundError"}:  # the second one is Azure's
        return Unreachable(f"the bucket or folder of the {what} does not exist")
    return Unreachable(f"the {what} cannot be reached ({type(error).__name__})")


def object_size(details: Mapping[str, object]) -> int:
    """Return the bytes of an object from its description in a listing."""
    size = details.get("size")
    return int(size or 0) if isinstance(size, int | float | str) else 0


def content_token(details: Mapping[str, object]) -> str:
    """Return a token that changes with an object's content: its ETag, or else a hash or generation, or else its time."""
    return next((str(details[key]) for key in _TOKENS if details.get(key)), "")


class _Pointer(NamedTuple):
    """A pointer that was read. listing: what it says or, if it has a problem, what it last said."""

    token: str = ""
    listing: Listing = ()
    problem: str = ""


class _Changed(Exception):
    """Raised when an object is not the listed one any more."""


def _details(file: object) -> Mapping[str, object]:
    found = getattr(file, "details", None)
    return found if isinstance(found, Mapping) else {}


def _on_threads(work: Callable[[T], None], items: Sequence[T]) -> None:
    """Do the work for each item, on several threads that do not hold up the end of the process. Raise the first error."""
    left, done = iter(items), [Future[None]() for _ in items[:READERS]]  # the threads share the iterator

    def run(end: Future[None]) -> None:
        try:
            for item in left:
                if any(one.done() and one.exception() for one in done):
                    break
                work(item)
            end.set_result(None)
        except BaseException as error:
            end.set_exception(error)

    for end in done:
        threading.Thread(target=run, args=(end,), name="copying", daemon=True).start()
    wait(done)
    for end in done:
        end.result()


def _entry(path: str) -> str:
    return path.partition("/")[0]


def _entries(listing: Listing) -> dict[str, Listing]:
    """Return a dict of each entry in the model's folder -> the part of the listing under it."""
    found: defaultdict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for row in listing:
        found[_entry(row[0])].append(row)
    return {entry: tuple(rows) for entry, rows in found.items()}


def _may_be_model(name: str) -> bool:
    try:
        return bool(layout.check_name(name))
    except (InvalidName, UnsafePath):
        return False


def _missing(protocol: str) -> str:
    package = _PACKAGES.get(protocol)
    if package is None:
        return f"no installed package reads '{protocol}://' addresses"
    return f"'{protocol}' addresses need the package {package}: pip install -r requirements/cloud.txt"
