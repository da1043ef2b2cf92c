"""The metrics listener: Prometheus text, the live feed and the memory map, on a separate port."""

from serving.cli.options import Options
from serving.frontends.http1.context import Context, Limits
from serving.frontends.http1.listener import Listener
from serving.frontends.http1.routes import Route, RouteTable
from serving.frontends.metrics.routes import MetricsSource, live, memory, metrics
from serving.frontends.shared.authorisation import Authoriser
from serving.server.inference_server import InferenceServer

MAX_BODY = 64 << 10  # bytes

ROUTES = (
    Route("GET", "/metrics", "metrics", metrics),  # no flag can restrict this group: the route is open, as in Triton
    Route("GET", "/v2/slipway/live", "statistics", live),
    Route("GET", "/v2/slipway/memory", "statistics", memory),
)


class MetricsServer:
    """The frontend of the metrics; see frontend.Frontend."""

    def __init__(self, server: InferenceServer, options: Options, authoriser: Authoriser) -> None:
        self._options = options
        self._source = MetricsSource(server, options, authoriser)
        self._context = Context(authoriser, server.request_memory, Limits.from_options(options))
        self._listener: Listener | None = None
        self.address = ("", 0)

    async def start(self) -> None:
        options = self._options
        self._listener = Listener(RouteTable(ROUTES, self._source, MAX_BODY), self._context)
        self.address = await self._listener.start(options.metrics_address or options.http_address, options.metrics_port)

    async def drain(self) -> None:
        self._source.feed.close()
        if self._listener is not None:
            await self._listener.drain()

    async def close(self) -> None:
        self._source.feed.close()
        if self._listener is not None:
            await self._listener.close()
