"""Loopback ports for servers that have to be told theirs."""

import random
import socket
from contextlib import ExitStack

HOST = "127.0.0.1"
# Below what Linux gives to outgoing connections and to port 0: nobody is given one of these before its server binds it.
RANGE = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on just now."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = random.SystemRandom().choice(RANGE)
            try:
                held.enter_context(socket.create_server((HOST, port)))
            except OSError:
                continue
            found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]
