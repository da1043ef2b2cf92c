"""Connections that a worker opens to the core for requests of a client that the worker does not decode.

The core serves them with the code for clients' connections, so they behave as in a server without workers. The HTTP connections
have no timeouts, because the worker enforces timeouts. The worker sends the client's address separately from the connection, so
that no client can forge an address.
"""

import asyncio
import socket
from functools import partial
from math import inf
from typing import cast

from serving.cli.options import Options
from serving.frontends.grpc_server import GrpcServer
from serving.frontends.http1.connection import Connection, Connections
from serving.frontends.http1.context import Context, Limits
from serving.frontends.http1.routes import RouteTable
from serving.frontends.http_server import make_listener
from serving.frontends.shared.authorisation import Authoriser
from serving.frontends.shared.forwarded_transport import ForwardedTransport
from serving.server.inference_server import InferenceServer
from serving.workers.link.requests import Peer

LIMITS = Limits(head_s=inf, body_s=0, idle_s=inf, leaving_s=inf, stalled_s=inf)


class InternalConnections:
    """The frontends of the core, without listening sockets."""

    def __init__(self, server: InferenceServer, options: Options) -> None:
        self._http = make_listener(server, options, Authoriser.from_options(options, "http"), LIMITS)
        self._grpc = GrpcServer(server, options, Authoriser.from_options(options, "grpc"))

    async def start(self) -> None:
        """Start to watch the gRPC connections."""
        await self._grpc.start_on(())

    async def accept(self, kind: str, connected: socket.socket, peer: Peer) -> None:
        """Serve a connection of this kind ("http", "grpc") on behalf of the client at `peer`."""
        connected.setblocking(False)
        if kind == "http":
            await self._http.adopt(connected, partial(_HttpConnection, peer))
        else:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._grpc.forwarded_connection(peer), connected
            )

    async def drain(self, protocol: str) -> None:
        """For "grpc": end the calls that only wait, and wait until the others are answered and the connections are closed."""
        if protocol == "grpc":
            await self._grpc.drain()

    async def close(self) -> None:
        await asyncio.gather(self._http.close(), self._grpc.close())


class _HttpConnection(Connection):
    """An internal connection whose peer address is the client's address."""

    def __init__(self, peer: Peer, context: Context, routes: RouteTable, connections: Connections) -> None:
        super().__init__(context, routes, connections)
        self._peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(ForwardedTransport(cast(asyncio.Transport, transport), self._peer))


def client_at(peer: Peer) -> asyncio.BaseTransport:
    """Return a transport that only has a peer address. It replaces the client's connection, which only the worker has."""
    return asyncio.BaseTransport({"peername": peer})
