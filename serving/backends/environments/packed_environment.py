"""Unpacks packed Python environments (conda-pack, venv-pack, tar) into a cache, once for each content of an archive.

If several models, instances and servers need one environment at the same time, one of them unpacks it, and the others wait. No
archive can write outside its folder, because links are made after all files are written.
"""

import fcntl
import functools
import hashlib
import logging
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
import zlib
from pathlib import Path

from repository.core.errors import UnsafeArchive
from repository.files.tar_reading import TarReader, opened_tar
from serving.backends.environments.child_variables import child_variables
from serving.core.errors import internal, invalid

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 30
MAX_ENTRIES = 2_000_000
RELOCATE_TIMEOUT_S = 600.0
_KEPT_S = 7 * 86400.0  # an environment that no server has used for this time is removed
_DONE = b"done"
_ARCHIVE = "the packed environment of EXECUTION_ENV_PATH"


def cache_folder() -> Path:
    """Return this user's folder in the system's folder for temporary files (TMPDIR). No other user may write to it."""
    folder = Path(tempfile.gettempdir()) / f"slipway-environments-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise internal("the folder for unpacked environments is not this user's alone: remove it, or set TMPDIR")
    return folder


class EnvironmentCache:
    """The environments that one server uses. Each environment is locked, so that no other server removes it."""

    def __init__(self) -> None:
        self._locks: dict[Path, int] = {}  # the lock on each environment's folder
        self._one_at_a_time = threading.Lock()

    def unpacked(self, archive: Path) -> Path:
        """Return the folder of an unpacked archive. Raises INVALID_ARG if the file is no archive, or must not be unpacked."""
        cache = cache_folder()
        status = archive.stat()
        folder = cache / _digest(archive, status.st_ino, status.st_size, status.st_mtime_ns)
        with self._one_at_a_time:
            if folder not in self._locks or not folder.is_dir():
                self.release(folder)  # the folder was removed
                self._locks[folder] = _take(archive, folder)
                _remove_unused(cache)
        return folder

    def release(self, folder: Path) -> None:
        """Release the lock on a folder."""
        lock = self._locks.pop(folder, None)
        if lock is not None:
            os.close(lock)


ENVIRONMENTS = EnvironmentCache()
"""The environments of this process, in use until it ends."""


@functools.lru_cache(64)
def _digest(archive: Path, inode: int, size: int, changed_ns: int) -> str:
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- the cache -----------------------------------------------------------------------------------------------------------
def _take(archive: Path, folder: Path) -> int:
    """Unpack an archive, unless it is already unpacked, and return its lock file, which is locked against removal."""
    lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not _is_done(lock, folder):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_done(lock, folder):  # another server may have unpacked it
                _fill(archive, folder)
                os.pwrite(lock, _DONE, 0)
            fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(lock)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _is_done(lock: int, folder: Path) -> bool:
    return os.pread(lock, len(_DONE), 0) == _DONE and folder.is_dir()


def _fill(archive: Path, folder: Path) -> None:
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)  # leftovers of a killed server
    folder.mkdir(mode=0o700)
    try:
        _extract(archive, folder)
        _relocate(folder)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _as_sentence(error) from error
    log.info("unpacked the environment %s in %.1f s", archive.name, time.monotonic() - began)


def _as_sentence(error: BaseException) -> BaseException:
    """Return an error of the archive or the disk as a sentence without paths, and any other error unchanged."""
    if isinstance(error, tarfile.TarError | EOFError | zlib.error | lzma.LZMAError | ValueError | OverflowError):
        return invalid(f"{_ARCHIVE} is no whole tar archive, plain or compressed by gzip, bzip2 or xz")
    if isinstance(error, UnsafeArchive):
        return invalid(f"{_ARCHIVE} cannot be unpacked: {error.message}")
    if isinstance(error, FileExistsError):
        return invalid(f"{_ARCHIVE} has one name twice")
    if isinstance(error, OSError):
        return internal(f"{_ARCHIVE} cannot be unpacked: {error.strerror or error}")
    return error


def _remove_unused(cache: Path) -> None:
    """Remove the environments that no server has used for a week."""
    for path in cache.glob("*.lock"):
        try:
            if time.time() - path.stat().st_mtime < _KEPT_S:
                continue
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(lock, 0)
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


# -- the archive ---------------------------------------------------------------------------------------------------------
def _extract(archive: Path, folder: Path) -> None:
    """Write folders and files first, then links, so that no file is written through a link."""
    links: list[tarfile.TarInfo] = []
    with opened_tar(archive) as packed:
        for count, member in enumerate(packed.members(), 1):
            if count > MAX_ENTRIES or member.offset_data + member.size > MAX_BYTES:
                raise invalid(f"{_ARCHIVE} has over {MAX_ENTRIES} entries or {MAX_BYTES >> 30} GiB")
            path = _inside(folder, member.name)
            if member.issym():
                links.append(member)
            elif member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.isreg():
                _write(packed, member, path)
            elif member.islnk():
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(_inside(folder, member.linkname), path, follow_symlinks=False)
            else:
                raise invalid(f"{_ARCHIVE} has '{member.name}', which is no file, folder or link")
    for member in links:
        _link(folder, member)


def _inside(folder: Path, name: str) -> Path:
    """Return the path of an entry. Raises INVALID_ARG if the name leads out of the folder."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise invalid(f"{_ARCHIVE} has '{name}', which leads out of it")
    return folder.joinpath(*parts)


def _write(packed: TarReader, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600 | (member.mode & 0o111)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(file, "wb") as target, packed.content(member) as source:
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()  # a write after `utime` would change the time
        os.utime(file, (member.mtime, member.mtime))  # compiled modules record the time of their source


def _link(folder: Path, member: tarfile.TarInfo) -> None:
    """Make a symbolic link to a path in the folder. Only a link to an interpreter may lead out of the folder, as in a virtual
    environment."""
    path = _inside(folder, member.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.resolve() != folder.resolve() / path.parent.relative_to(folder):
        raise invalid(f"{_ARCHIVE} has '{member.name}', which lies behind a link")
    target = member.linkname
    is_interpreter = path.parent == folder / "bin" and path.name.startswith("python")
    if not (is_interpreter and target.startswith("/")):
        below = os.path.normpath(os.path.join(path.parent.relative_to(folder), target))
        if below.startswith(("/", "..")):
            raise invalid(f"{_ARCHIVE} has the link '{member.name}', which leads out of it")
    path.symlink_to(target)


def _relocate(folder: Path) -> None:
    """Run the archive's conda-unpack, if there is one. conda-unpack replaces the old folder's name in files."""
    script = folder / "bin" / "conda-unpack"
    if not script.is_file():
        return
    command = [str(folder / "bin" / "python"), str(script)]
    try:
        done = subprocess.run(
            command,
            env=child_variables(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RELOCATE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise invalid(f"conda-unpack of the environment took longer than {RELOCATE_TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise invalid(f"conda-unpack of the environment failed: {lines[-1] if lines else done.returncode}")
