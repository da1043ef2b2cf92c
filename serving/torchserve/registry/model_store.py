"""The store of archives: finds the archive for the url of a registration in the store, or fetches it from an allowed address.

    noop.mar, a folder's name             the archive of that name in the store
    file://..., http://..., https://...   copied into the store, if allowed_urls match the address and every one that it
                                          redirects to
    s3://..., gs://..., as://...          copied in the same way, with the credentials of model repositories in the cloud

Addresses are compared in their normal form (repository/core/addresses.py). The address of a file is compared twice: as given,
and with its links followed. A link in the store that leads out of it does not count as an archive.

A copy is checked before it gets its name, so that only complete archives get into the store. Files that are already in the
store are never replaced. Source: TorchServe 0.12, docs/configuration.md (allowed_urls), and its answers.

Several servers may share a store. A server holds a shared lock (flock) on each file that it has registered, which the kernel
releases when the server is killed. A file that another server fetched from the same address and still holds is used unchanged.
A fetched file that no server holds is fetched again. The last server that releases a fetched file removes it.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from repository.core.addresses import leads_into, local_path, normal_path
from repository.core.errors import RepositoryError, UnsafePath
from repository.files import storage
from repository.remote import single_object
from repository.torchserve.archive_names import archives_in, file_name, is_address
from serving.torchserve.registry.errors import TorchServeError, server_error

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 30  # the largest archive that is fetched
MAX_S = 3600.0  # how long fetching an archive may take
STALL_S = 30.0  # how long the next bytes of an archive may take
MAX_REDIRECTS = 5
MAX_URL = 4096
_CHUNK = 1 << 20
_CLOUD = ("s3:", "gs:", "as:")
_ARRIVING = ".slipway-arriving-"
_ADDRESS_OF = ".slipway-fetched-"  # prefix of a file that contains a digest of a fetched file's address
_SHARE_BLOCKS = 0x40049409  # FICLONE of linux/fs.h

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # errors of mounted object stores and some other file systems

Check = Callable[[Path], object]  # raises RepositoryError for a file that is no archive


@dataclass(frozen=True, slots=True)
class StoredArchive:
    """An archive in the store: a file, or a folder with the content of one. fetched: whether a registration fetched it.

    lock: the descriptor that locks the file until `ModelStore.release`, or None for a folder, or if files cannot be locked.
    """

    path: Path
    fetched: bool = False
    lock: int | None = field(default=None, compare=False)


class ModelStore:
    """A store in one folder. All methods use files or networks, and are called on worker threads."""

    def __init__(self, folder: Path, allowed_urls: Sequence[str]) -> None:
        self.folder = folder
        self._allowed = [re.compile(text, re.IGNORECASE) for text in allowed_urls]
        self._allowed_files = [re.compile(text) for text in allowed_urls]  # names of files may differ only in case
        self._held: Counter[Path] = Counter()  # how often this server holds each file
        self._holding = threading.Lock()
        for leftover in folder.glob(f"{_ARRIVING}*"):
            with contextlib.suppress(OSError):  # another server is fetching it, or the store is read-only
                _remove_unless_locked(leftover)

    def find(self, url: str, check: Check) -> StoredArchive:
        """Return the archive for a url, fetched if necessary, and hold it. Raises TorchServeError if there is no such archive.

        check: raises RepositoryError for a file that is no archive.
        """
        self.refuse_unless_allowed(url)
        if is_address(url):
            return self._fetch(url, check)
        place = self._stored(url)
        return self._hold(place, lock=_shared_lock(place))

    def refuse_unless_allowed(self, url: str) -> None:
        """Raise TorchServeError for a url that can never lead to an archive. This reads no files, so any thread may call it."""
        if not url:
            raise _not_found("empty url")
        if ".." in url:
            raise _not_found(f"Relative path is not allowed in url: {url[:MAX_URL]}")
        if len(url) > MAX_URL or not url.isprintable():
            raise _not_found("the url is too long, or has characters that cannot be printed")
        if is_address(url):
            self._refuse_unless_matching(url)
            name = file_name(url)
            if not name or name.startswith(".") or "\\" in name or len(name.encode()) > 200:
                raise _failed(url)

    def names(self) -> list[str]:
        """Return the names of all possible archives, sorted, for load_models=all."""
        return archives_in(self.folder)

    def release(self, archive: StoredArchive) -> None:
        """Release an archive. A fetched archive is removed, unless it is still held."""
        with self._holding:
            self._held[archive.path] -= 1
            held = self._held[archive.path] > 0
            if not held:
                del self._held[archive.path]
        try:
            if archive.fetched and not held and (archive.lock is None or _locked_alone(archive.lock)):
                self._remove(archive.path)
        finally:
            if archive.lock is not None:
                fcntl.flock(archive.lock, fcntl.LOCK_UN)  # a child may have the descriptor too
                os.close(archive.lock)

    def _hold(self, path: Path, fetched: bool = False, lock: int | None = None) -> StoredArchive:
        with self._holding:
            self._held[path] += 1
        return StoredArchive(path, fetched, lock)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._address_of(path.name).unlink(missing_ok=True)

    def _address_of(self, name: str) -> Path:
        return self.folder / f"{_ADDRESS_OF}{name}"

    # -- in the store ------------------------------------------------------------------------------------------------
    def _stored(self, url: str) -> Path:
        name = file_name(url)
        place = self.folder / name
        inside = Path(url)  # a folder in the store may be named by its whole path
        if name and not name.startswith(".") and (place.is_file() or place.is_dir()):
            if leads_into(place, self.folder):
                return place
            log.warning("'%s' is a link that leads out of the model store, which holds nothing else", name)
        elif inside.is_absolute() and inside.is_dir() and leads_into(inside, self.folder):
            return inside
        raise _not_found(f"Model not found at: {url}")

    # -- from an address -----------------------------------------------------------------------------------------------
    def _fetch(self, url: str, check: Check) -> StoredArchive:
        place = self.folder / file_name(url)
        if place.exists() or place.is_symlink():
            held = self._share(place, url)
            if held is not None:
                return self._check_held(held, url, check)
        try:
            descriptor, arriving, locked = self._make_file()
        except OSError as error:
            log.warning("nothing can be fetched: the model store cannot be written: %s", error.strerror)
            raise server_error(f"Failed to save model: {url}") from None
        lock: int | None = None
        try:
            with open(descriptor, "wb") as file:
                lock = os.dup(descriptor) if locked else None
                self._copy(url, file)
                file.flush()
                return self._give_name(Path(arriving), place, url, check, lock)
        except BaseException as error:
            if lock is not None:
                os.close(lock)
            if isinstance(error, FileExistsError):  # another server was faster
                held = self._share(place, url)
                if held is not None:
                    return held
            if not isinstance(error, OSError):
                raise
            log.warning("an archive could not be fetched: %s", error.strerror or type(error).__name__)
            raise server_error(f"Failed to save model: {url}") from None
        finally:
            Path(arriving).unlink(missing_ok=True)

    def _make_file(self) -> tuple[int, str, bool]:
        """Make a file to fetch into, and lock it, because a server that starts meanwhile removes files without a lock.

        Return its descriptor, its path, and whether it could be locked.
        """
        while True:
            descriptor, path = tempfile.mkstemp(prefix=_ARRIVING, dir=self.folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)  # it waits for a server that is removing the file
            except OSError:  # the file system has no locks
                return descriptor, path, False
            if _is_at(descriptor, Path(path)):
                return descriptor, path, True
            os.close(descriptor)  # it was removed before it was locked

    def _share(self, place: Path, url: str) -> StoredArchive | None:
        """Return a file that another server has fetched from this address and still holds. If the file was left by a killed
        server, remove it and return None. Raises TorchServeError for any other file of that name."""
        taken = server_error(f"Model file already exists {place.name}")
        try:
            known = self._address_of(place.name).read_text()
        except (OSError, ValueError):
            known = ""
        with self._holding:
            held_here = place in self._held
        if known != _digest(url) or held_here:
            raise taken
        lock = _shared_lock(place)
        if lock is None:  # the file has gone meanwhile, or files cannot be locked in this folder
            self._remove(place)
            return None
        held = self._hold(place, fetched=True, lock=lock)
        if _locked_alone(lock):
            self.release(held)
        elif _lock(lock, fcntl.LOCK_SH) and _is_at(lock, place):
            return held
        else:  # its holder has just removed it
            self._drop(held)
        return None

    def _drop(self, archive: StoredArchive) -> None:
        """Release a file without removing it."""
        self.release(replace(archive, fetched=False))

    def _check_held(self, held: StoredArchive, url: str, check: Check) -> StoredArchive:
        try:
            check(held.path)
        except RepositoryError as error:
            self._drop(held)
            raise TorchServeError(400, "InvalidModelException", error.message) from None
        log.info(
            "'%s' is in the model store already: another server has fetched it from the same address", held.path.name
        )
        return held

    def _give_name(self, arrived: Path, place: Path, url: str, check: Check, lock: int | None) -> StoredArchive:
        """Give a fetched file its name, if it is an archive. Raises FileExistsError if the name is taken."""
        try:
            check(arrived)
        except RepositoryError as error:
            message = error.message.replace(arrived.name, place.name)
            raise TorchServeError(400, "InvalidModelException", message) from None
        with self._holding:
            if place.exists():
                raise FileExistsError(errno.EEXIST, "it is there already")
            storage.write_atomic(self._address_of(place.name), _digest(url).encode())
            _move(arrived, place)
            self._held[place] += 1
        return StoredArchive(place, fetched=True, lock=lock)

    def _copy(self, url: str, file: IO[bytes]) -> None:
        """Copy the content of an address, within limits of size and time."""
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _Redirects(self._refuse_unless_matching),
        ):
            opener.add_handler(handler)
        try:
            if url.lower().startswith("file:"):
                with self._local(url).open("rb") as source:
                    self._copy_bounded(source, file, os.fstat(source.fileno()).st_size)
                return
            if url.lower().startswith(_CLOUD):
                with single_object.opened(url) as (source, size):
                    self._copy_bounded(source, file, size)
                return
            with opener.open(url, timeout=STALL_S) as response:
                self._copy_bounded(response, file, response.length)
        except TorchServeError:
            raise
        except RepositoryError as error:
            log.warning("an archive could not be fetched: %s", error.message)
            raise _failed(url) from None
        except (OSError, HTTPException, ValueError) as error:  # urllib's errors are OSErrors
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            log.warning("an archive could not be fetched: %s", _why(error))
            raise _failed(url) from None

    def _copy_bounded(self, source: Any, file: IO[bytes], size: int | None) -> None:
        """size: the announced number of bytes, or None if it is unknown."""
        storage.ensure_space(self.folder, size or 0)
        deadline = time.monotonic() + MAX_S
        copied = 0
        while chunk := source.read1(_CHUNK) if hasattr(source, "read1") else source.read(_CHUNK):
            copied += len(chunk)
            if copied > MAX_BYTES or time.monotonic() > deadline:
                raise OSError("it is larger, or takes longer, than is allowed")
            file.write(chunk)
            if size is None:
                storage.ensure_space(self.folder, len(chunk))
        if size is not None and copied != size:
            raise OSError("it ended before all of it had come")

    def _local(self, url: str) -> Path:
        """Return the file of an address, links followed. Raises OSError if the file is missing, and TorchServeError if it is
        forbidden."""
        path = local_path(url).resolve()
        if not self._allows_file(path):
            raise _not_found(f"Given URL {url} is a link that leads out of any allowed URL(s)")
        if not path.is_file():
            raise OSError("there is no such file")
        return path

    def _refuse_unless_matching(self, url: str) -> None:
        if len(url) > MAX_URL or not self._allows(url):
            raise _not_found(f"Given URL {url[:MAX_URL]} does not match any allowed URL(s)")

    def _allows(self, url: str) -> bool:
        try:
            if url.lower().startswith("file:"):
                return self._allows_file(local_path(url))
            parts = urllib.parse.urlsplit(url)
            normal = parts._replace(path=normal_path(parts.path)).geturl()
        except UnsafePath:
            return False
        except ValueError:  # brackets that are not closed: fetching the url will fail
            normal = url
        return any(pattern.fullmatch(normal) for pattern in self._allowed)

    def _allows_file(self, path: Path) -> bool:
        written = (f"file://{path}", path.as_uri())  # patterns may be written either way
        return any(pattern.fullmatch(one) for pattern in self._allowed_files for one in written)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirection only to an HTTP or HTTPS address that is also allowed."""

    max_redirections = MAX_REDIRECTS
    max_repeats = 2

    def __init__(self, refuse_unless_allowed: Callable[[str], None]) -> None:
        self._refuse_unless_allowed = refuse_unless_allowed

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        try:
            if not newurl.lower().startswith(("http://", "https://")):
                raise _not_found("the url redirects to what is no http(s) address")
            self._refuse_unless_allowed(newurl)
        except TorchServeError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _remove_unless_locked(leftover: Path) -> None:
    """Remove a file that a killed server was fetching. Raises BlockingIOError if a server is still fetching it."""
    with leftover.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        leftover.unlink()


def _shared_lock(place: Path) -> int | None:
    """Return a descriptor with a shared lock on a file of the store, or None for a folder, or if it cannot be locked."""
    for _ in range(3):  # another server may replace the file meanwhile
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        if (
            stat.S_ISREG(os.fstat(descriptor).st_mode)
            and _lock(descriptor, fcntl.LOCK_SH)
            and _is_at(descriptor, place)
        ):
            return descriptor
        os.close(descriptor)
    return None


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:  # another process has it, or the file system has no locks
        return False
    return True


def _locked_alone(descriptor: int) -> bool:
    """Return whether no other process has a file locked. The shared lock is lost in any case. So, if two processes release
    the file at the same time, the last one gets True."""
    return _lock(descriptor, fcntl.LOCK_EX)


def _is_at(descriptor: int, place: Path) -> bool:
    """Return whether the descriptor's file still has that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), place.lstat())
    except OSError:
        return False


def _move(arrived: Path, place: Path) -> None:
    """Give a complete file its name. Raises FileExistsError if the name is taken."""
    try:
        os.link(arrived, place)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        place.open("xb").close()
        arrived.replace(place)


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def _why(error: Exception) -> str:
    """Return the reason of an error without the address, which may contain a key."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    reason = getattr(error, "reason", None)
    return str(getattr(reason, "strerror", None) or getattr(error, "strerror", None) or type(error).__name__)


def _not_found(message: str) -> TorchServeError:
    return TorchServeError(404, "ModelNotFoundException", message)


def _failed(url: str) -> TorchServeError:
    return TorchServeError(400, "DownloadArchiveException", f"Failed to download archive from: {url}")


def copied(source: Path, destination: Path) -> None:
    """Copy an archive into a version's folder, so that the version keeps its content when the store's file is replaced.

    If the file system can, both files share their blocks. The files of a folder on the same disk are hard-linked. Raises
    RepositoryError for a folder with symbolic links, or if the disk is full.
    """
    if source.is_dir():
        same = storage.same_disk(source, destination.parent)
        (storage.link_tree if same else storage.copy_tree)(source, destination)
        return
    storage.ensure_space(destination.parent, source.stat().st_size)
    with source.open("rb") as original, destination.open("xb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), _SHARE_BLOCKS, original.fileno())
        except OSError:
            shutil.copyfileobj(original, copy, _CHUNK)
