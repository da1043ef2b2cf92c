"""The gRPC frontend: a listener for HTTP/2 connections, whose streams are calls."""

import asyncio
import contextlib
import dataclasses
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from serving.cli.option_values import header_pattern
from serving.cli.options import Options
from serving.cli.tls import TlsFiles, listener_options, server_context
from serving.frontends.grpc.call import AccessLog, CallServices, Method
from serving.frontends.grpc.call_headers import CallHead, HeadParser
from serving.frontends.grpc.compression import LEVELS
from serving.frontends.grpc.methods import find_method
from serving.frontends.grpc.request_decoder import RequestDecoder
from serving.frontends.grpc.response_encoder import ResponseEncoder
from serving.frontends.http2.connection import MAX_CONCURRENT_STREAMS, Connection
from serving.frontends.http2.frame_reader import make_scratch
from serving.frontends.http2.keepalive import KeepaliveSettings
from serving.frontends.http2.stream import Stream
from serving.frontends.shared.authorisation import Authoriser
from serving.frontends.shared.client_limits import BACKLOG, ClientTimeouts
from serving.frontends.shared.forwarded_transport import ForwardedTransport, PeerName
from serving.server.inference_server import InferenceServer

log = logging.getLogger(__name__)

_WATCH_S = 1.0
MAX_STREAMS = 8192  # open streams of all connections together
MIN_STREAMS = 16  # open streams that a connection may always have


class _ForwardedConnection(Connection[CallHead]):
    __slots__ = ("_peer",)

    def __init__(self, peer: PeerName | None, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(ForwardedTransport(cast(asyncio.Transport, transport), self._peer))


class GrpcServer:
    """Serves `inference.GRPCInferenceService` on --grpc-address, --grpc-port."""

    def __init__(
        self,
        server: InferenceServer,
        options: Options,
        authoriser: Authoriser,
        find_method: Callable[[str], Method] = find_method,
        access: AccessLog | None = None,
    ) -> None:
        """find_method: returns the method of a path. access: logs each ended call."""
        self._services = CallServices(
            server,
            authoriser,
            RequestDecoder(server.shared_memory, header_pattern(options.grpc_header_forward_pattern)),
            ResponseEncoder(),
            options.grpc_max_message_size,
            LEVELS[options.grpc_infer_response_compression_level],
            access=access,
        )
        self._find_method = find_method
        self._options = options
        self._timeouts = ClientTimeouts.from_options(options)
        self._keepalive = KeepaliveSettings.from_options(options)
        self._scratch = make_scratch()
        self._connections: set[Connection[CallHead]] = set()
        self._listeners: list[asyncio.Server] = []
        self._watcher: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext | None = None  # TLS for the sockets of `start_on` and `serve`

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        tls = server_context(TlsFiles.of_grpc(self._options), "h2")
        listener = await loop.create_server(
            self._connection,
            self._options.grpc_address,
            self._options.grpc_port,
            backlog=BACKLOG,
            reuse_port=self._options.reuse_grpc_port,
            **listener_options(tls),
        )
        self._listeners.append(listener)
        self._watcher = loop.create_task(self._watch())

    async def start_on(self, sockets: Sequence[socket.socket]) -> None:
        """Listen on bound sockets."""
        loop = asyncio.get_running_loop()
        self._tls = server_context(TlsFiles.of_grpc(self._options), "h2")
        for bound in sockets:
            self._listeners.append(
                await loop.create_server(self._connection, sock=bound, backlog=BACKLOG, **listener_options(self._tls))
            )
        self._watcher = loop.create_task(self._watch())

    async def serve(self, connected: socket.socket) -> None:
        """Serve a connection that another process has accepted. Raises OSError if it is closed."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self._connection, connected, **listener_options(self._tls))

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port. The port is never 0."""
        host, port = self._listeners[0].sockets[0].getsockname()[:2]
        return host, port

    async def drain(self) -> None:
        """Stop listening, send clients GOAWAY, and wait until the calls under way are answered and the connections closed."""
        self._stop_listening()
        for connection in list(self._connections):
            connection.drain()
        while self._connections:
            await asyncio.sleep(0.02)
            for connection in list(self._connections):  # drains connections whose handshake has just ended
                if not isinstance(connection, _ForwardedConnection):
                    connection.drain()

    async def close(self) -> None:
        self._stop_listening()
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        for connection in list(self._connections):
            connection.close()

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _connection(self) -> Connection[CallHead]:
        return Connection(
            HeadParser().parse,
            self._make_call,
            self._connections,
            self._scratch,
            self._keepalive,
            self._timeouts,
            self._services.server.request_memory,
        )

    def forwarded_connection(self, peer: PeerName | None) -> Connection[CallHead]:
        """Return the protocol for a connection over which another process forwards calls of the client at `peer`. The other
        process enforces the keepalive, and how fast the client must take its answers."""
        return _ForwardedConnection(
            peer,
            HeadParser().parse,
            self._make_call,
            self._connections,
            self._scratch,
            timeouts=dataclasses.replace(self._timeouts, unread_s=0),
            memory=self._services.server.request_memory,
        )

    def _make_call(self, connection: Connection[CallHead], stream_id: int, head: CallHead) -> Stream:
        method = self._find_method(head.path)
        return method.call(connection, stream_id, head, self._services, method)

    async def _watch(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            for connection in list(self._connections):
                connection.tick(now, now - last)
            self._limit_streams()
            last = now

    def _limit_streams(self) -> None:
        """If more than MAX_STREAMS streams are open, limit each connection to an equal share of MAX_STREAMS."""
        limit = MAX_CONCURRENT_STREAMS
        if sum(connection.open_streams for connection in self._connections) > MAX_STREAMS:
            limit = max(MIN_STREAMS, MAX_STREAMS // len(self._connections))
        for connection in self._connections:
            connection.limit.max_streams = limit
