"""A listening HTTP socket with its connections: what the HTTP and the metrics frontend are made of."""

import asyncio
import ssl

from serving.cli.tls import listener_options
from serving.frontends.http1.connection import Connection, Connections
from serving.frontends.http1.context import Context
from serving.frontends.http1.routes import RouteTable


class Listener:
    """One bound socket. Made on the event loop that it runs on."""

    def __init__(self, routes: RouteTable, context: Context) -> None:
        self._routes = routes
        self._context = context
        self._connections = Connections()
        self._server: asyncio.Server | None = None

    async def start(
        self, address: str, port: int, tls: ssl.SSLContext | None = None, reuse_port: bool = False
    ) -> tuple[str, int]:
        """Listen; return the address and port that are bound. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            self._connection, address, port, backlog=1024, reuse_port=reuse_port, **listener_options(tls)
        )
        host, bound = self._server.sockets[0].getsockname()[:2]
        return str(host), int(bound)

    def _connection(self) -> Connection:
        return Connection(self._context, self._routes, self._connections)

    async def drain(self) -> None:
        """Accept no more; return when every connection has answered what it was asked, or is idle too long, and is closed."""
        if self._server is not None:
            self._server.close()
        self._connections.drain()
        await self._connections.all_closed()

    async def close(self) -> None:
        """Accept no more, and end every connection at once."""
        if self._server is not None:
            self._server.close()
        self._connections.abort()
        await self._connections.all_closed()
