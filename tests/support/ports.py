"""Loopback ports for servers that have to be told theirs."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
# Below what Linux gives to outgoing connections and to port 0: nobody is given one of these before its server binds it.
RANGE = range(10_000, 32_768)


class _Reserved:
    """The ports that this process has given out: no other process of tests takes one of them before this one ends.

    Byte N of a file that all of them share stands for port N. The kernel lets go of a process's locks when it ends.
    """

    def __init__(self) -> None:
        self._file = -1
        self._process = 0
        self._ports: set[int] = set()

    def take(self, port: int) -> bool:
        """Reserve a port; False if it has been given out, here or elsewhere."""
        if self._process != os.getpid():  # the locks of a process are not those of one that it forks
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
    """Different ports that nobody listens on, and that no other test is given while this process lives."""
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
