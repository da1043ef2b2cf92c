"""Checks before anything starts: no other `up` runs on this data folder, every port is free, and versions can be signed."""

import fcntl
import os
import socket
from pathlib import Path

from dashboard.shared.exceptions import Conflict, Invalid
from repository.core.errors import RepositoryError
from repository.files.signatures import check_key


class DataFolderLock:
    """A lock that one process holds on a data folder; the kernel releases it when the process ends in any way."""

    def __init__(self, folder: Path, name: str = "up") -> None:
        self.path = folder / f"{name}.lock"
        self._descriptor = -1

    def acquire(self) -> bool:
        """Take the lock; return False if another process holds it."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            return False
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, str(os.getpid()).encode())
        return True

    def holder(self) -> str:
        """Return the process id that the holder wrote."""
        return self.path.read_text() or "unknown"

    def release(self) -> None:
        os.close(self._descriptor)


def lock_data_folder(folder: Path) -> DataFolderLock:
    """Take the lock and return it. Raises Conflict if another `up` holds the lock."""
    lock = DataFolderLock(folder)
    if not lock.acquire():
        raise Conflict(
            f"Slipway already runs on this data folder (process {lock.holder()}): stop it, or set SLIPWAY_DATA to another "
            "folder"
        )
    return lock


def check_ports(host: str, ports: dict[str, int]) -> None:
    """Check that ports are free. ports: setting -> port. Raises Invalid if two ports are equal.

    Raises Conflict, with each port and its setting, if ports are taken.
    """
    _check_distinct(ports)
    taken = [(setting, port) for setting, port in ports.items() if not _is_free(host, port)]
    if taken:
        reasons = "; ".join(f"port {port} on {host} is taken: free it, or set {setting}" for setting, port in taken)
        raise Conflict(f"nothing was started, because {reasons}")


def check_signing_key(key: Path | None) -> None:
    """Raise Invalid if SLIPWAY_SIGNING_KEY is a file with which versions cannot be signed."""
    try:
        if key is not None:
            check_key(key, private=True)
    except RepositoryError as error:
        raise Invalid(f"SLIPWAY_SIGNING_KEY: {error.message}") from error


def _check_distinct(ports: dict[str, int]) -> None:
    seen: dict[int, str] = {}
    for setting, port in ports.items():
        if port in seen:
            raise Invalid(f"nothing was started, because {seen[port]} and {setting} are both {port}: they must differ")
        seen[port] = setting


def _is_free(host: str, port: int) -> bool:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise Invalid(f"nothing was started, because SLIPWAY_HOST is no address of this machine: '{host}'") from None
    with socket.socket(family, kind, protocol) as probe:
        # Like the servers themselves, ignore connections of an earlier run in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except PermissionError:
            raise Conflict(f"nothing was started, because this account may not bind port {port} on {host}") from None
        except OSError:
            return False
    return True
