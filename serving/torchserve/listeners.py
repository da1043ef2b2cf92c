"""TorchServe's ports: each of its HTTP APIs, on an address (also over TLS) or a Unix socket, and its two gRPC services.

APIs with the same address share a listener, as in TorchServe.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from repository.torchserve.options import ListenAddress, TorchServeOptions
from serving.cli.options import Options
from serving.cli.tls import TlsFiles, server_context
from serving.frontends.frontend import Frontend, Listening
from serving.frontends.grpc_server import GrpcServer
from serving.frontends.http1.context import Context, Limits
from serving.frontends.http1.listener import Listener
from serving.frontends.http1.routes import Route, RouteTable
from serving.torchserve.apis import management, workflows
from serving.torchserve.apis.api_description import INFERENCE, MANAGEMENT, METRICS, Operation
from serving.torchserve.apis.authorisation import authoriser
from serving.torchserve.apis.grpc_inference import GrpcInferenceApi, inference_methods
from serving.torchserve.apis.grpc_management import ManagementService
from serving.torchserve.apis.inference import InferenceApi
from serving.torchserve.apis.replies import StandingHeaders
from serving.torchserve.apis.routes import ERROR_REPLIES, description_routes, inference_routes, metrics_routes
from serving.torchserve.apis.targets import Targets
from serving.torchserve.registry.source import TorchServeSource
from serving.torchserve.registry.tokens import TokenType
from serving.torchserve.telemetry.access_log import AccessLog
from serving.torchserve.telemetry.metric_values import MetricValues
from serving.torchserve.telemetry.metrics import InferenceMetrics
from serving.torchserve.telemetry.metrics_log import MetricsLog
from serving.torchserve.telemetry.metrics_page import LEGACY, MetricsPage
from serving.torchserve.telemetry.model_log import ModelLog


class _Log(Protocol):
    """A log file that is written in the background."""

    def start(self) -> None: ...
    async def close(self) -> None: ...


class PropertyFiles(TlsFiles):
    """The certificate_file and private_key_file of TorchServe's config.properties."""

    __slots__ = ()

    def __init__(self, cert: Path | None, key: Path | None) -> None:
        super().__init__("torchserve", True, False, cert, key, None)

    def flag(self, what: str) -> str:
        return {"server-cert": "certificate_file or private_key_file"}.get(what, what)


class HttpApi:
    """A listener with the routes of one API, or of several that share an address; see serving.frontends."""

    def __init__(
        self, address: ListenAddress, routes: Sequence[Route[Any]], source: TorchServeSource, context: Context
    ) -> None:
        self._listener = Listener(RouteTable(routes, source, source.options.max_request_size, ERROR_REPLIES), context)
        self._wanted = address
        self._options = source.options
        self.logs: Sequence[_Log] = ()  # the logs that are written while this API listens
        self.address = ("", 0)

    async def start(self) -> None:
        for log in self.logs:
            log.start()
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
        for log in self.logs:
            if isinstance(log, MetricsLog):
                await log.write()  # the metrics of handlers disappear with their models

    async def close(self) -> None:
        await self._listener.close()
        for log in self.logs:
            await log.close()
        if self.address[0] and self._wanted.socket is not None:
            self._wanted.socket.unlink(missing_ok=True)


class _Api(NamedTuple):
    """name: the name of its listener. kind: the key that it requires. operations: the API's description."""

    name: str
    address: ListenAddress
    kind: TokenType
    routes: Sequence[Route[Any]]
    operations: Sequence[Operation]


_Made = tuple[str, tuple[Frontend, str, int]]
"""(name of a listener, (the listener, its host or the path of its socket, its port))"""


class TorchServeListeners:
    """Makes the listeners of one server, which share its counters and its Targets. The listeners are not started."""

    def __init__(self, source: TorchServeSource, options: Options) -> None:
        """Raises INVALID_ARG if metrics.yaml cannot be read."""
        self._source = source
        self._options = options
        torchserve = source.options
        self._headers = StandingHeaders(
            torchserve.cors_allowed_origin, torchserve.cors_allowed_methods, torchserve.cors_allowed_headers
        )
        metrics = InferenceMetrics()
        self._targets = Targets(source.server, metrics, source.registrations)
        self._inference = InferenceApi(source, self._targets, self._headers, metrics)
        self._values = MetricValues(source, metrics)
        self._access = AccessLog(torchserve.log_location / "access_log.log") if torchserve.log_files else None

    def all(self) -> dict[str, Listening]:
        """Return the HTTP and gRPC listeners by the names of their APIs."""
        return {name: self._listening(name, *one) for name, one in (*self._http(), *self._grpc())}

    def _listening(self, name: str, frontend: Frontend, host: str, port: int) -> Listening:
        service = name.removeprefix("torchserve_").replace("grpc", "gRPC").replace("_", " ")
        return Listening(frontend, f"TorchServe's {service}", host, port, asks=self._source.options.token_auth)

    def _http(self) -> Iterator[_Made]:
        for together in _by_address(self._apis()):
            first = together[0]
            checks = authoriser(self._source, self._options, first.kind)
            limits = Limits.from_options(self._options)
            memory, standing = self._source.server.request_memory, self._inference.standing
            context = Context(checks, memory, limits, standing=standing, access=self._access)
            described = description_routes(*(api.operations for api in together))
            all_routes = [*described, *(route for api in together for route in api.routes)]
            made = HttpApi(first.address, all_routes, self._source, context)
            if first.name == "torchserve_inference":
                made.logs = list(self._logs())
            yield first.name, (made, str(first.address.socket or first.address.host), first.address.port)

    def _logs(self) -> Iterator[_Log]:
        """Yield the writers of TorchServe's log files, and of its metrics if their mode asks for a file."""
        torchserve = self._source.options
        if self._access is not None:
            yield self._access
            yield ModelLog(self._source, torchserve.log_location / "model_log.log")
        if torchserve.metrics_mode != "prometheus":
            without = LEGACY if torchserve.metrics_mode == "legacy" else ()
            yield MetricsLog(self._values, torchserve.metrics_location, torchserve.metric_time_interval_s, without)

    def _apis(self) -> list[_Api]:
        torchserve = self._source.options
        routes: list[Route[Any]] = [*workflows.INFERENCE_ROUTES, *inference_routes(self._inference)]
        if not torchserve.open_inference_protocol:
            routes = [route for route in routes if not route.pattern.startswith("/v2")]
        apis = [
            _Api("torchserve_inference", torchserve.inference_address, TokenType.INFERENCE, routes, INFERENCE),
            _Api(
                "torchserve_management",
                torchserve.management_address,
                TokenType.MANAGEMENT,
                [*management.ROUTES, *workflows.MANAGEMENT_ROUTES],
                MANAGEMENT,
            ),
        ]
        if torchserve.enable_metrics_api:
            page = metrics_routes(MetricsPage(self._values, torchserve.metrics_mode))
            apis.append(_Api("torchserve_metrics", torchserve.metrics_address, TokenType.INFERENCE, page, [METRICS]))
        return apis

    def _grpc(self) -> Iterator[_Made]:
        source, torchserve = self._source, self._source.options
        inference = _grpc_options(
            self._options,
            torchserve,
            torchserve.grpc_inference_address,
            torchserve.grpc_inference_port,
            torchserve.grpc_inference_max_connection_age_ms,
            torchserve.grpc_inference_max_connection_age_grace_ms,
        )
        management = _grpc_options(
            self._options,
            torchserve,
            torchserve.grpc_management_address,
            torchserve.grpc_management_port,
            torchserve.grpc_management_max_connection_age_ms,
            torchserve.grpc_management_max_connection_age_grace_ms,
        )
        if torchserve.enable_grpc_ssl:  # checked here so that errors name properties of config.properties
            server_context(PropertyFiles(torchserve.certificate_file, torchserve.private_key_file), "h2")
        methods = inference_methods(GrpcInferenceApi(source, self._targets, self._headers))
        checks = authoriser(source, self._options, TokenType.INFERENCE)
        server = GrpcServer(source.server, inference, checks, methods, self._access)
        yield "torchserve_grpc_inference", (server, inference.grpc_address, inference.grpc_port)
        checks = authoriser(source, self._options, TokenType.MANAGEMENT)
        server = GrpcServer(source.server, management, checks, ManagementService(source).find_method, self._access)
        yield "torchserve_grpc_management", (server, management.grpc_address, management.grpc_port)


def listeners(source: TorchServeSource, options: Options) -> dict[str, Listening]:
    """Return the listeners of TorchServe's APIs by their names."""
    return TorchServeListeners(source, options).all()


def _by_address(apis: Sequence[_Api]) -> list[list[_Api]]:
    """Return the APIs grouped by listener. Each API with port 0 has a separate listener."""
    together: dict[object, list[_Api]] = {}
    for api in apis:
        shared = api.address.socket is not None or api.address.port != 0
        together.setdefault(api.address if shared else api.name, []).append(api)
    return list(together.values())


def _grpc_options(
    options: Options, torchserve: TorchServeOptions, address: str, port: int, age_ms: int, grace_ms: int
) -> Options:
    """Return the server's options with the settings of one of TorchServe's gRPC services."""
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
