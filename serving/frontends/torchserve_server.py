"""TorchServe's ports: each of its APIs over HTTP, on an address, over TLS or on a Unix socket, and its two gRPC services.

APIs of the same address share a listener, as in TorchServe.
"""

import dataclasses
from collections.abc import Sequence

from serving.cli.options import Options
from serving.cli.tls import PropertyFiles, server_context
from serving.cli.torchserve_options import ListenAddress, TorchServeOptions
from serving.frontends.grpc_server import GrpcServer
from serving.frontends.http1.context import Context, Limits
from serving.frontends.http1.listener import Listener
from serving.frontends.http1.routes import Route, RouteTable
from serving.frontends.shared.authorisation import Authoriser
from serving.frontends.torchserve import management
from serving.frontends.torchserve.authorisation import authoriser
from serving.frontends.torchserve.grpc_management import ManagementService
from serving.frontends.torchserve.replies import StandingHeaders, error_reply
from serving.torchserve.side import TorchServeSide
from serving.torchserve.tokens import TokenType


class HttpApi:
    """A listener with the routes of one API, or of several that share an address; see serving.frontends."""

    def __init__(
        self,
        address: ListenAddress,
        routes: Sequence[Route[TorchServeSide]],
        side: TorchServeSide,
        checks: Authoriser,
        limits: Limits,
    ) -> None:
        options = side.options
        standing = StandingHeaders(
            options.cors_allowed_origin, options.cors_allowed_methods, options.cors_allowed_headers
        )
        context = Context(checks, side.server.request_memory, limits, standing=standing)
        self._listener = Listener(RouteTable(routes, side, options.max_request_size, {"": error_reply}), context)
        self._wanted = address
        self._options = options
        self.address = ("", 0)

    async def start(self) -> None:
        wanted = self._wanted
        if wanted.socket is not None:
            await self._listener.start_unix(wanted.socket)
            self.address = (str(wanted.socket), 0)
            return
        files = PropertyFiles(self._options.certificate_file, self._options.private_key_file)
        tls = server_context(files, "http/1.1") if wanted.tls else None
        self.address = await self._listener.start(wanted.host, wanted.port, tls)

    async def drain(self) -> None:
        await self._listener.drain()

    async def close(self) -> None:
        await self._listener.close()
        if self.address[0] and self._wanted.socket is not None:
            self._wanted.socket.unlink(missing_ok=True)


def http_apis(side: TorchServeSide, options: Options) -> dict[str, HttpApi]:
    """Return the listeners over HTTP by the names of their APIs. None of them listens yet."""
    torchserve = side.options
    wanted: list[tuple[str, ListenAddress, TokenType, Sequence[Route[TorchServeSide]]]] = [
        ("torchserve_management", torchserve.management_address, TokenType.MANAGEMENT, management.ROUTES),
    ]
    shared: dict[ListenAddress, list[tuple[str, TokenType, Sequence[Route[TorchServeSide]]]]] = {}
    for name, address, kind, routes in wanted:
        # Port 0 takes a free one, each API another.
        alone = address.socket is None and address.port == 0
        place = dataclasses.replace(address, host=f"{address.host}#{name}") if alone else address
        shared.setdefault(place, []).append((name, kind, routes))
    limits = Limits.from_options(options)
    found = {}
    for place, apis in shared.items():
        address = dataclasses.replace(place, host=place.host.partition("#")[0])
        routes = [route for _, _, some in apis for route in some]
        found[apis[0][0]] = HttpApi(address, routes, side, authoriser(side, options, apis[0][1]), limits)
    return found


def grpc_services(side: TorchServeSide, options: Options) -> dict[str, GrpcServer]:
    """Return the listeners over gRPC. None of them listens yet."""
    torchserve = side.options
    return {
        "torchserve_grpc_management": GrpcServer(
            side.server,
            _grpc_options(
                options,
                torchserve,
                torchserve.grpc_management_address,
                torchserve.grpc_management_port,
                torchserve.grpc_management_max_connection_age_ms,
                torchserve.grpc_management_max_connection_age_grace_ms,
            ),
            authoriser(side, options, TokenType.MANAGEMENT),
            ManagementService(side).find_method,
        )
    }


def _grpc_options(
    options: Options, torchserve: TorchServeOptions, address: str, port: int, age_ms: int, grace_ms: int
) -> Options:
    """Return the server's options with those of one of TorchServe's gRPC services."""
    return dataclasses.replace(
        options,
        grpc_address=address,
        grpc_port=port,
        reuse_grpc_port=False,
        grpc_use_ssl=torchserve.enable_grpc_ssl,
        grpc_use_ssl_mutual=False,
        grpc_server_cert=torchserve.certificate_file,
        grpc_server_key=torchserve.private_key_file,
        grpc_max_message_size=torchserve.max_request_size,
        grpc_max_connection_age=age_ms,
        grpc_max_connection_age_grace=grace_ms,
    )
