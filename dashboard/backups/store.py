"""A folder or a bucket that holds backups. Every error is a DashboardError of one sentence, without secrets of the address."""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from dashboard.shared.exceptions import Conflict, NotFound, StorageFull, Unavailable
from repository.core.errors import RepositoryError
from repository.files.storage import sync
from repository.remote.address import is_remote, parse
from repository.remote.repository import explained, file_system, object_size


class Store(Protocol):
    """The methods block. Names are such as "objects/<sha256>"."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return name -> bytes of everything in a folder, which need not exist. The names are without the folder."""

    def put(self, name: str, source: Path) -> None:
        """Store a file, whole or not at all."""

    def read(self, name: str) -> Any:
        """Return a context manager that opens what is stored. Raises NotFound."""

    def delete(self, name: str) -> None: ...


def store_at(address: str) -> Store:
    """Return the store at a path, or at an address such as s3://bucket/path. Raises Invalid or Unavailable."""
    return _Bucket(address) if is_remote(address) else _Folder(Path(address).expanduser().resolve())


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def sizes(self, folder: str) -> dict[str, int]:
        with self._sentences("read"):
            if not (self._root / folder).is_dir():
                return {}
            with os.scandir(self._root / folder) as found:
                return {entry.name: entry.stat().st_size for entry in found}

    def put(self, name: str, source: Path) -> None:
        target = self._root / name
        temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
        with source.open("rb") as file, self._sentences("written"):
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())
                temporary.replace(target)
                sync(target.parent)
            finally:
                temporary.unlink(missing_ok=True)

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        with self._sentences("read", name):
            file = (self._root / name).open("rb")
        with file:
            yield file

    def delete(self, name: str) -> None:
        with self._sentences("written"):
            (self._root / name).unlink(missing_ok=True)

    @staticmethod
    @contextmanager
    def _sentences(done: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if name and isinstance(error, FileNotFoundError):
                raise NotFound(f"the folder of backups has no {name}") from None
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            kind = StorageFull if full else Conflict
            raise kind(f"the folder of backups cannot be {done}: {error.strerror}") from None


class _Bucket:
    def __init__(self, address: str) -> None:
        self._what = f"{address.partition('://')[0]} address of backups"
        with self._sentences():
            system, self._root = file_system(parse(address))
            self._system: Any = system

    def sizes(self, folder: str) -> dict[str, int]:
        with self._sentences():
            self._system.invalidate_cache()
            try:
                found: Mapping[str, Mapping[str, object]] = self._system.find(f"{self._root}/{folder}", detail=True)
            except FileNotFoundError:
                return {}
            return {path.rpartition("/")[2]: object_size(details) for path, details in found.items()}

    def put(self, name: str, source: Path) -> None:
        with self._sentences():
            self._system.put_file(str(source), f"{self._root}/{name}")

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        with self._sentences():
            try:
                file = self._system.open(f"{self._root}/{name}", "rb")
            except FileNotFoundError:
                raise NotFound(f"the {self._what} has no {name}") from None
        with file, self._sentences():
            yield file

    def delete(self, name: str) -> None:
        with self._sentences():
            self._system.rm_file(f"{self._root}/{name}")

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except (NotFound, Unavailable):
            raise
        except RepositoryError as error:
            raise Unavailable(str(error)) from None
        except Exception as error:
            raise Unavailable(str(explained(error, self._what))) from error
