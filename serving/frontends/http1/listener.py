"""Listening HTTP sockets and their connections: the base of the HTTP frontend and of the metrics frontend."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from serving.cli.tls import listener_options
from serving.frontends.http1.connection import Connection, Connections
from serving.frontends.http1.context import Context
from serving.frontends.http1.routes import RouteTable
from serving.frontends.shared.client_limits import BACKLOG


class Listener:
    """Listening sockets and their connections. Create it on the event loop on which it runs."""

    def __init__(self, routes: RouteTable, context: Context) -> None:
        self._routes = routes
        self._context = context
        self._connections = Connections()
        self._servers: list[asyncio.Server] = []
        self._tls: ssl.SSLContext | None = None

    async def start(
        self, address: str, port: int, tls: ssl.SSLContext | None = None, reuse_port: bool = False
    ) -> tuple[str, int]:
        """Listen. Return the bound address and port. Raises OSError."""
        server = await asyncio.get_running_loop().create_server(
            self._connection, address, port, backlog=BACKLOG, reuse_port=reuse_port, **listener_options(tls)
        )
        self._servers.append(server)
        host, bound = server.sockets[0].getsockname()[:2]
        return str(host), int(bound)

    async def start_unix(self, path: Path) -> None:
        """Listen on a Unix socket. Replace a socket of an earlier server. Raises OSError."""
        if path.is_socket():
            path.unlink()
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(self._connection, str(path), backlog=BACKLOG))

    async def start_on(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Listen on bound sockets."""
        loop = asyncio.get_running_loop()
        self._tls = tls
        for bound in sockets:
            self._servers.append(
                await loop.create_server(self._connection, sock=bound, backlog=BACKLOG, **listener_options(tls))
            )

    async def serve(self, connected: socket.socket) -> None:
        """Serve a connection that another process has accepted. Raises OSError if it is closed."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self._connection, connected, **listener_options(self._tls))

    async def adopt(
        self, connected: socket.socket, made: "Callable[[Context, RouteTable, Connections], Connection]"
    ) -> None:
        """Serve an internal connection, which does not come directly from a client. made: creates its Connection."""
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: made(self._context, self._routes, self._connections), connected
        )

    def _connection(self) -> Connection:
        return Connection(self._context, self._routes, self._connections)

    async def drain(self) -> None:
        """Stop accepting. Wait until all connections are closed, each after its answers or its idle timeout."""
        self._stop_listening()
        self._connections.drain()
        await self._connections.all_closed()

    async def close(self) -> None:
        """Stop accepting, and abort every connection."""
        self._stop_listening()
        self._connections.abort()
        await self._connections.all_closed()

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
