"""GET /metrics, /v2/slipway/live and /v2/slipway/memory: the metrics for Prometheus, the live feed, who holds which memory.

Source: Triton, docs/user_guide/metrics.md, for /metrics; the module live_feed, for the live feed.
"""

import asyncio
import time
from collections.abc import Iterator

import orjson

from serving.cli.options import Options
from serving.core.model_identifier import ModelIdentifier
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.frontends.metrics import prometheus
from serving.frontends.metrics.hardware import Hardware, SampledHardware
from serving.frontends.metrics.live_feed import LiveFeed
from serving.frontends.metrics.summaries import Summaries
from serving.frontends.shared.authorisation import Authoriser
from serving.server.inference_server import InferenceServer


class MetricsSource:
    """The server and the machine whose metrics the routes return, and the options that leave some metrics out."""

    def __init__(self, server: InferenceServer, options: Options, authoriser: Authoriser) -> None:
        self.server = server
        self.authoriser = authoriser
        self.hardware = SampledHardware(Hardware(options.allow_gpu_metrics), options.metrics_interval_ms / 1000)
        self.feed = LiveFeed(server, self.hardware)
        self.summaries = Summaries(options.summary_quantiles) if options.metric_enabled("summary_latencies") else None
        self.counter_latencies = options.metric_enabled("counter_latencies")
        self.cpu = options.allow_cpu_metrics
        self._started_s = time.time()
        self.buckets = prometheus.LatencyBuckets(options.buckets_per_doubling, options.lean_metrics)
        self.lean = options.lean_metrics
        server.rollouts.page = self.pieces_of

    def pieces(self) -> Iterator[str]:
        """Yield the text of /metrics in pieces. The metrics that Python models define are last."""
        yield from prometheus.render(
            self.server.statistics(),
            self.hardware,
            self.server.response_cache,
            self.server.request_log,
            self.summaries,
            self.server.unserved_requests(),
            self.counter_latencies,
            self.cpu,
            self.server.rollouts,
            self.buckets,
            prometheus.ServerHealth(
                self.server.ready(),
                self._started_s,
                self.server.version_health(),
                self.server.listing_problems(),
                len(self.server.held_models()),
                self.server.unready_models(),
                self.server.repositories_from_cache(),
            ),
            self.lean,
        )
        yield self.server.custom_metrics()

    def pieces_of(self, model: ModelIdentifier) -> Iterator[str]:
        """Yield the metrics of one model, and all metrics that Python models define, because these may have any labels."""
        statistics, rollout = self.server.statistics(model), self.server.rollouts.of(model)
        yield from prometheus.of_models(statistics, self.summaries, self.counter_latencies, self.buckets)
        yield from prometheus.of_rollouts([] if rollout is None else [rollout], self.buckets)
        yield self.server.custom_metrics()


async def metrics(source: MetricsSource, exchange: Exchange) -> Reply:
    server = source.server
    await asyncio.gather(source.hardware.refreshed(), server.refresh_memory())
    page = []
    for piece in source.pieces():
        page.append(piece.encode())
        await asyncio.sleep(0)  # lets requests through, because rendering a thousand models takes long
    return Reply(200, (b"".join(page),), prometheus.CONTENT_TYPE)


async def memory(source: MetricsSource, exchange: Exchange) -> Reply:
    return Reply(
        200, (orjson.dumps(await source.server.memory_map(), option=orjson.OPT_NON_STR_KEYS),), "application/json"
    )


def live(source: MetricsSource, exchange: Exchange) -> Reply | None:
    if exchange.head.method == "HEAD":
        return Reply(200, (), "text/event-stream")
    source.feed.subscribe(exchange, source.authoriser.holds_key(exchange.head.headers))
    return None
