"""The metrics frontend: Prometheus text and the live feed, on a port of their own."""

import asyncio

from serving.cli.options import Options
from serving.frontends.http1.context import Context, Limits
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.listener import Listener
from serving.frontends.http1.message import Reply
from serving.frontends.http1.routes import Route, RouteTable
from serving.frontends.metrics import prometheus
from serving.frontends.metrics.hardware import Hardware, SampledHardware
from serving.frontends.metrics.live_feed import LiveFeed
from serving.frontends.metrics.summaries import Summaries
from serving.frontends.shared.authorisation import Authoriser
from serving.server import InferenceServer

MAX_BODY = 64 << 10


class MetricsServer:
    """See serving/frontends/__init__.py for what a frontend has."""

    def __init__(self, server: InferenceServer, options: Options, authoriser: Authoriser) -> None:
        self._options = options
        self.authoriser = authoriser
        self.server = server
        self.hardware = SampledHardware(Hardware(options.allow_gpu_metrics), options.metrics_interval_ms / 1000)
        self.feed = LiveFeed(server, self.hardware)
        self.summaries = Summaries(options.summary_quantiles) if options.metric_enabled("summary_latencies") else None
        self.counter_latencies = options.metric_enabled("counter_latencies")
        self.cpu = options.allow_cpu_metrics
        self._listener: Listener | None = None
        self.address = ("", 0)

    async def start(self) -> None:
        options = self._options
        context = Context(self.authoriser, self.server.request_memory, Limits.from_options(options))
        self._listener = Listener(RouteTable(ROUTES, self, MAX_BODY), context)
        self.address = await self._listener.start(options.metrics_address or options.http_address, options.metrics_port)

    async def drain(self) -> None:
        self.feed.close()
        if self._listener is not None:
            await self._listener.drain()

    async def close(self) -> None:
        self.feed.close()
        if self._listener is not None:
            await self._listener.close()


async def metrics(frontend: MetricsServer, exchange: Exchange) -> Reply:
    page = []
    server = frontend.server
    await asyncio.gather(frontend.hardware.refreshed(), server.memory_read())
    pieces = prometheus.render(
        server.statistics(),
        frontend.hardware,
        server.response_cache,
        server.request_log,
        frontend.summaries,
        frontend.counter_latencies,
        frontend.cpu,
    )
    for piece in pieces:
        page.append(piece.encode())
        await asyncio.sleep(0)  # with a thousand models the page takes long: requests go first
    page.append(frontend.server.custom_metrics().encode())
    return Reply(200, (b"".join(page),), prometheus.CONTENT_TYPE)


def live(frontend: MetricsServer, exchange: Exchange) -> Reply | None:
    if exchange.head.method == "HEAD":
        return Reply(200, (), "text/event-stream")
    frontend.feed.subscribe(exchange, frontend.authoriser.holds_key(exchange.head.headers))
    return None


ROUTES = (
    Route("GET", "/metrics", "metrics", metrics),  # no restrictable group: open, as Triton's
    Route("GET", "/v2/slipway/live", "statistics", live),
)
