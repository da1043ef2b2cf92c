"""Connections that a worker opens to the core in the name of a client, for what it does not decode itself.

They are served by the same code as the connections of clients, so that all of it behaves as with one process. The worker has
waited for its client already: there are no limits on time here. Who the client is has been told beside the connection, and not
by anything that a client could send.
"""

import asyncio
import socket
from functools import partial
from math import inf
from typing import Any, cast

from serving.cli.options import Options
from serving.frontends.http1.connection import Connection, Connections
from serving.frontends.http1.context import Context, Limits
from serving.frontends.http1.routes import RouteTable
from serving.frontends.http_server import make_listener
from serving.frontends.shared.authorisation import Authoriser
from serving.server.inference_server import InferenceServer
from serving.workers.link.requests import Peer

LIMITS = Limits(head_s=inf, body_s=0, idle_s=inf, leaving_s=inf, stalled_s=inf)


class InternalConnections:
    """The frontends of the core, without listening sockets."""

    def __init__(self, server: InferenceServer, options: Options) -> None:
        self._http = make_listener(server, options, Authoriser.from_options(options, "http"), LIMITS)

    async def accept(self, kind: str, connected: socket.socket, peer: Peer) -> None:
        """Serve a connection of this kind ("http", "grpc") to the client at `peer`."""
        connected.setblocking(False)
        if kind == "http":
            await self._http.adopt(connected, partial(_HttpConnection, peer))
        else:
            connected.close()

    async def close(self) -> None:
        await self._http.close()


class _HttpConnection(Connection):
    """A connection that shows the address of the client instead of its own."""

    def __init__(self, peer: Peer, context: Context, routes: RouteTable, connections: Connections) -> None:
        super().__init__(context, routes, connections)
        self._peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.BaseTransport, PeerTransport(transport, self._peer)))


class PeerTransport:
    """A transport that tells another peer's address."""

    def __init__(self, transport: asyncio.BaseTransport, peer: Peer) -> None:
        self._transport = transport
        self._peer = peer

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def client_at(peer: Peer) -> asyncio.BaseTransport:
    """Return what stands for the connection of a client that only a worker has."""
    return asyncio.BaseTransport({"peername": peer})
