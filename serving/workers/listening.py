"""The listening sockets: each worker has one for each address, and the kernel distributes the connections between them.

The core owns the sockets and passes them to its workers, so that connections that wait to be accepted survive the crash of a
worker. While a worker does not answer, the core accepts the connections of its sockets (pool.py).
"""

import socket
from collections.abc import Sequence
from typing import Any

from serving.frontends.shared.client_limits import BACKLOG


def listen(address: str, port: int, workers: int, reuse_port: bool) -> list[list[socket.socket]]:
    """Return the listening sockets of each worker. Port 0 means any free port, the same for all workers. Raises OSError if the
    address cannot be bound, or if another program has bound it and `reuse_port` is False."""
    found: list[list[socket.socket]] = [[] for _ in range(workers)]
    try:
        for family, place in _resolved(address, port):
            if not port and found[0]:
                place = (place[0], found[0][0].getsockname()[1], *place[2:])
            for number, sockets in enumerate(found):
                if number:
                    place = found[0][-1].getsockname()
                sockets.append(_bound(family, place, shared=reuse_port or number > 0))
        for sockets in found:
            for one in sockets:
                one.listen(BACKLOG)
    except OSError:
        for sockets in found:
            for one in sockets:
                one.close()
        raise
    return found


def _resolved(address: str, port: int) -> "Sequence[tuple[int, Any]]":
    rows = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, place) for family, _, _, _, place in rows))


def _bound(family: int, place: Any, shared: bool) -> socket.socket:
    """Return a bound socket, whose address later sockets may share. shared: whether other sockets may have the address
    already."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(place)
        # Set after the bind if not `shared`, so that the bind fails if another program has the address.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
