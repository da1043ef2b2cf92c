"""A model repository in the cloud, copied model by model into a local folder.

A listing has the name, size, and ETag or time of each object. A model is copied to a staging folder, the sizes are compared,
and the model is listed again: the copy is used only if both listings are equal. Entries of a model's folder (a version,
config.pbtxt) that have not changed are not copied again.
"""

import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from repository.core import layout
from repository.core.errors import InvalidName, NotFound, RepositoryError, Unreachable, UnsafePath
from repository.remote.address import RemoteAddress, storage_options

# (path inside the model, size, token that changes with the content); a path that ends with "/" is an empty folder
Listing = tuple[tuple[str, int, str], ...]

COPY_ATTEMPTS = 3
_TOKENS = ("ETag", "etag", "md5Hash", "generation", "mtime", "LastModified", "last_modified", "updated", "created")
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs"}


class FileSystem(Protocol):
    """The methods of fsspec's file systems that this module uses."""

    def invalidate_cache(self) -> None: ...

    def find(self, path: str, *, detail: bool) -> Mapping[str, Mapping[str, object]]: ...

    def info(self, path: str) -> Mapping[str, object]: ...

    def get(self, rpath: list[str], lpath: list[str]) -> object: ...

    def size(self, path: str) -> int | None: ...

    def open(self, path: str, mode: str) -> IO[bytes]: ...


class RemoteRepository:
    """A repository in the cloud. Methods that use the network block and belong on a worker thread; all others do not block."""

    def __init__(self, address: RemoteAddress, cache: Path, *, may_be_empty: bool = True) -> None:
        """may_be_empty: whether a list without models is an answer. If not, it is a failure, because a wrong prefix and a store
        that lost its data give the same list."""
        self.address = address
        self.may_be_empty = may_be_empty  # until the repository has a model again
        self.empty = False  # whether the last listing failed because it had no model
        self._local = layout.ModelRepository(cache / "models")
        self._staging = cache / "staging"
        self._lock = threading.Lock()
        self._fetching: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._listed: dict[str, Listing] = {}
        self._last: dict[str, Listing] = {}  # the last listing, stable or not
        self._copied: dict[str, Listing] = {}
        self._until_stable = False
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
            self._listed = found

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
                if self._copy(name, wanted):
                    return self.model_dir(name)
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
            whole = self._download(name, [row for row in wanted if _entry(row[0]) in changed], staging)
            now = self._list(name).get(name)
            if not whole or now != wanted:
                if not self._until_stable:
                    self._note(name, now)
                return False
            self._copied.pop(name, None)
            self._install(self.model_dir(name), staging, changed, old.keys() - new.keys())
            self._copied[name] = wanted
        except OSError as error:
            raise Unreachable(
                f"model '{name}' could not be copied: {error.strerror or type(error).__name__}"
            ) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return True

    def _download(self, name: str, rows: list[tuple[str, int, str]], staging: Path) -> bool:
        """Download objects. Return whether every object arrived with the size that the listing gave."""
        staging.mkdir(parents=True)
        sources, targets = [], []
        for path, _, _ in rows:
            target = staging / layout.relative_path(path.rstrip("/"))
            folder = target if path.endswith("/") else target.parent
            folder.mkdir(parents=True, exist_ok=True)
            if not path.endswith("/"):
                sources.append(f"{self._system()[1]}/{name}/{path}")
                targets.append(str(target))
        try:
            if sources:
                self._system()[0].get(sources, targets)
        except FileNotFoundError:  # the object was deleted after it was listed
            return False
        except Exception as error:
            raise self._explained(error) from error
        return all((staging / path).stat().st_size == size for path, size, _ in rows if not path.endswith("/"))

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
        system, root = self._system()
        try:
            system.invalidate_cache()
            objects = system.find(f"{root}/{name}" if name else root, detail=True)
        except Exception as error:
            raise self._explained(error) from error
        found: defaultdict[str, list[tuple[str, int, str]]] = defaultdict(list)
        for path, details in objects.items():
            model, slash, inside = path.removeprefix(root).lstrip("/").partition("/")
            if slash and inside and _may_be_model(model):
                found[model].append((inside, object_size(details), content_token(details)))
        return {model: tuple(sorted(rows)) for model, rows in found.items()}

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
        system.retries = 2
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
    if isinstance(error, FileNotFoundError):
        return Unreachable(f"the bucket or folder of the {what} does not exist")
    return Unreachable(f"the {what} cannot be reached ({type(error).__name__})")


def object_size(details: Mapping[str, object]) -> int:
    """Return the bytes of an object from its description in a listing."""
    size = details.get("size")
    return int(size or 0) if isinstance(size, int | float | str) else 0


def content_token(details: Mapping[str, object]) -> str:
    """Return a token that changes with an object's content: its ETag, or else a hash or generation, or else its time."""
    return next((str(details[key]) for key in _TOKENS if details.get(key)), "")


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
