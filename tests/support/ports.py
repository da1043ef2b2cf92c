"""Loopback ports for servers whose ports must be given in advance."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
# Ports below the range that Linux uses for outgoing connections and for port 0, so that no other program gets one of these
# before its server binds it.
RANGE = range(10_000, 32_768)


class _Reserved:
    """The ports that this process has given out. No other test process takes one of them before this process ends.

    Byte N of a file that all test processes share represents port N. The kernel releases the locks of a process when it ends.
    """

    def __init__(self) -> None:
        self._file = -1
        self._process = 0
        self._ports: set[int] = set()

    def take(self, port: int) -> bool:
        """Reserve a port. Return False if this or another process has given it out."""
        if self._process != os.getpid():  # a forked process does not inherit locks
            path = Path(tempfile.gettempdir(), f"slipway-test-ports-{os.getuid()}")
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._process, self._ports = os.getpid(), set()
        if port in self._ports:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        self._ports.add(port)
        return True


RESERVED = _Reserved()


def free_ports(count: int) -> list[int]:
    """Return different ports that no process listens on, and that no other test gets until this process ends."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().choice(RANGE)
        if RESERVED.take(port) and _is_free(port):
            found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True
