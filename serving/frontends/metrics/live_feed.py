"""GET /v2/slipway/live: server-sent events with the counters and histograms that have changed, once a second.

event: hello    {server_id, instance, started, bounds_us}; bounds_us: the exclusive upper bounds of the histograms' buckets
event: stats    {time, server, unserved, traffic, models}: cumulative values. `models`, and the rollouts in `traffic`, are sent
                only if they changed since the previous event. A rollout that has ended is sent once, as
                {model, namespace, rollout: null}.
One timer serves all subscribers. A slow subscriber gets fewer events, but loses nothing, because the values are cumulative. If
a subscriber reads nothing, its connection is closed.
Source of the format: the HTML standard, server-sent events.
"""

import asyncio
import logging
import time
import uuid
from ipaddress import ip_address, ip_network

import orjson

from repository.core.histogram import BOUNDS_US
from serving.core.errors import unavailable
from serving.core.model_identifier import ModelIdentifier
from serving.frontends.http1.exchange import Exchange
from serving.frontends.metrics.hardware import SampledHardware
from serving.resources.memory import MemoryUse
from serving.server.inference_server import InferenceServer
from serving.telemetry.statistics import Duration, InstanceStatistics, Key, ModelStatistics, VersionStatus

log = logging.getLogger(__name__)

PERIOD_S = 1.0
SLOW_ABOVE = 256 << 10  # a subscriber with more unread bytes gets no event until it catches up
MAX_SUBSCRIBERS = 64  # the limit for subscribers with a key, and also for those without
MAX_OF_ADDRESS = 16  # subscribers without a key from one address

Stamp = tuple[int, VersionStatus]  # a value that changes with a model's values
JsonObject = dict[str, object]


class LiveFeed:
    """The subscribers and their timer."""

    def __init__(self, server: InferenceServer, hardware: SampledHardware) -> None:
        self._server = server
        self._hardware = hardware
        self._subscribers: dict[Exchange, dict[Key, Stamp]] = {}  # subscriber -> the last stamps sent to it
        self._sent_traffic: dict[Exchange, dict[ModelIdentifier, bytes]] = {}
        self._addresses: dict[Exchange, str] = {}  # the address of each subscriber; "" for a subscriber with a key
        self._timer: asyncio.Task[None] | None = None
        self._first_events: set[asyncio.Task[None]] = set()  # tasks that send first events
        hello = {
            "server_id": server.options.server_id,
            "instance": str(uuid.uuid4()),
            "started": time.time(),
            "bounds_us": BOUNDS_US,
        }
        self._hello = b"event: hello\ndata: %b\n\n" % orjson.dumps(hello)

    def subscribe(self, exchange: Exchange, with_key: bool) -> None:
        """Begin the stream. Send `hello`, and soon, without waiting for the timer, a first event with every model.

        Raises UNAVAILABLE if there are too many subscribers. Subscribers with a key are counted separately, so that others
        cannot keep them out. Without a key, an address may have only MAX_OF_ADDRESS subscribers.
        """
        address = "" if with_key else _address(exchange)
        taken = list(self._addresses.values())
        alike = taken.count("") if with_key else len(taken) - taken.count("")
        if alike >= MAX_SUBSCRIBERS or (address and taken.count(address) >= MAX_OF_ADDRESS):
            raise unavailable("the live feed has too many subscribers")
        self._addresses[exchange] = address
        exchange.start_stream("text/event-stream", on_abandoned=self._unsubscribe)
        exchange.write(self._hello)
        self._subscribers[exchange] = {}
        self._sent_traffic[exchange] = {}
        loop = asyncio.get_running_loop()
        first_event = loop.create_task(self._send_first(exchange))
        self._first_events.add(first_event)
        first_event.add_done_callback(self._first_events.discard)
        if self._timer is None:
            self._timer = loop.create_task(self._run())

    def _unsubscribe(self, exchange: Exchange) -> None:
        self._subscribers.pop(exchange, None)
        self._sent_traffic.pop(exchange, None)
        self._addresses.pop(exchange, None)

    def close(self) -> None:
        """End every stream."""
        for task in (*self._first_events, *([self._timer] if self._timer else [])):
            task.cancel()
        self._timer = None
        subscribers, self._subscribers = self._subscribers, {}
        self._sent_traffic.clear()
        self._addresses.clear()
        for exchange in subscribers:
            exchange.end()

    async def _run(self) -> None:
        """Send events every PERIOD_S until there is no subscriber."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + PERIOD_S, loop.time())
            await asyncio.sleep(due - loop.time())
            if not self._subscribers:
                self._timer = None
                return
            try:
                await self._refresh()
                self._send([exchange for exchange in self._subscribers if exchange.backlog < SLOW_ABOVE])
            except Exception:  # the streams are still open, so the next event must be tried
                log.exception("an event of the live feed could not be made; the next one is tried")

    async def _send_first(self, exchange: Exchange) -> None:
        await self._refresh()
        if exchange in self._subscribers:
            self._send([exchange])

    async def _refresh(self) -> None:
        await asyncio.gather(self._hardware.refreshed(), self._server.refresh_memory())

    def _send(self, exchanges: list[Exchange]) -> None:
        """Send each subscriber the models that have changed since its previous event."""
        stamped = []
        for model in self._server.all_statistics():
            stamp = (model.revision, model.status)
            stamped.append((model.key, stamp, model))
        server = orjson.dumps(self._server_values())
        unserved = orjson.dumps(dict(self._server.unserved_requests()))
        traffic = {one.identifier: _json(one.report()) for one in self._server.rollouts}
        encoded: dict[Key, bytes] = {}  # each model is rendered once for all subscribers
        now = time.time()
        for exchange in exchanges:
            sent = self._subscribers[exchange]
            rows = []
            for key, stamp, model in stamped:
                if sent.get(key) != stamp:
                    sent[key] = stamp
                    if key not in encoded:
                        encoded[key] = _json(model_values(model))
                    rows.append(encoded[key])
            exchange.write(
                b'event: stats\ndata: {"time":%.3f,"server":%b,"unserved":%b,"traffic":[%b],"models":[%b]}\n\n'
                % (now, server, unserved, b",".join(self._changed(exchange, traffic)), b",".join(rows))
            )

    def _changed(self, exchange: Exchange, traffic: dict[ModelIdentifier, bytes]) -> list[bytes]:
        """Return the rollouts that have changed or ended since this subscriber's previous event."""
        sent = self._sent_traffic[exchange]
        self._sent_traffic[exchange] = traffic
        ended = [
            _json({"model": one.name, "namespace": one.namespace, "rollout": None})
            for one in sent
            if one not in traffic
        ]
        return ended + [row for identifier, row in traffic.items() if sent.get(identifier) != row]

    def _server_values(self) -> JsonObject:
        gpus = [
            {
                "uuid": gpu.uuid,
                "utilization": gpu.utilization,
                "memory_used": gpu.memory_used,
                "memory_total": gpu.memory_total,
                "power_w": gpu.power_w,
            }
            for gpu in self._hardware.gpus()
        ]
        problems = {place: why for place, why in self._server.listing_problems().items() if why}
        repositories = {"problems": problems, "held": self._server.held_models()}
        return {**self._hardware.process()._asdict(), "gpus": gpus, "repositories": repositories}


def _address(exchange: Exchange) -> str:
    """Return the client's address; for IPv6 its /64 network, because one client may have all addresses of such a network."""
    transport = exchange.pipeline.transport
    name = transport.get_extra_info("peername") if transport is not None else None
    host = str(name[0]) if name else "unknown"
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(ip_network((address, 64), strict=False)) if address.version == 6 else host


def _json(value: JsonObject) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def model_values(model: ModelStatistics) -> JsonObject:
    """Return the cumulative values of one model version. Durations are in ns, and histograms are counts by bucket."""
    status = model.status
    release: JsonObject = {} if status.release is None else {"release": status.release}
    if status.aliases:
        release["aliases"] = status.aliases
    if status.loading is not None:
        release["loading"] = status.loading._asdict()
    return {
        "name": model.model_name,
        "version": str(model.model_version),
        "namespace": model.namespace,
        "state": status.state,
        "condition": status.condition,
        "failed": status.failed,
        **release,
        "pending": status.pending,
        "in_flight": status.in_flight,
        "memory": _memory(status.memory),
        "success": _duration(model.success),
        "fail": _duration(model.fail),
        "cancel": _duration(model.cancel),
        "mirrored": model.mirrored.count + model.mirrored_failures,
        "queue": _duration(model.queue),
        "compute_input": _duration(model.compute_input),
        "compute_infer": _duration(model.compute_infer),
        "compute_output": _duration(model.compute_output),
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "failures": model.failures,
        "cache_hits": model.cache_hit.count,
        "cache_misses": model.cache_miss.count,
        "batches": {size: batch.count for size, batch in model.batches.items()},
        "batch_times": {
            size: batch.compute_input_ns + batch.compute_infer_ns + batch.compute_output_ns
            for size, batch in model.batches.items()
        },
        "request_latency": model.request_latency.as_json(),
        "queue_latency": model.queue_latency.as_json(),
        "compute_latency": model.compute_latency.as_json(),
        "arrival_gaps": model.arrival_gaps.as_json(),
        "instances": {label: _of_instance(one) for label, one in model.instances.items()},
    }


def _of_instance(instance: InstanceStatistics) -> JsonObject:
    return {
        "success": instance.success,
        "fail": instance.fail,
        "inference_count": instance.inference_count,
        "execution_count": instance.execution_count,
        "compute_ns": instance.compute_ns,
        "request_latency": instance.request_latency.as_json(),
    }


def _memory(memory: MemoryUse) -> JsonObject:
    return {"host_bytes": memory.host, "gpu_bytes": dict(memory.gpus), "basis": memory.basis}


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}
