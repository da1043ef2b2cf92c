"""Traces for OpenTelemetry: a sampled request has one root span, one span for each model, and one for each execution.

The packages are optional (requirements/opentelemetry.txt). Spans are created on the event loop's thread. A thread of the SDK
sends them in batches, and drops spans if its queue is full. Source of names and attributes: Triton, user_guide/trace.md.
"""

import json
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from serving.cli import trace_config
from serving.cli.options import Options
from serving.cli.trace_config import TraceConfig
from serving.core.errors import ServingError, unsupported
from serving.core.in_flight import Execution, InFlightRequest, ReceiveTimes
from serving.core.response import Answer, InferenceResponse
from serving.core.rollout_arm import arm_of
from serving.telemetry.traces.frontend_timestamps import FrontendTimestamps
from serving.telemetry.traces.trace_settings import Sampler

if TYPE_CHECKING:  # optional packages
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_CONTEXT = ("traceparent", "tracestate")


class OpenTelemetryTrace:
    """Samples requests and creates their spans. Used on the event loop's thread."""

    def __init__(self, config: TraceConfig, server_id: str) -> None:
        """Raises UNSUPPORTED if the packages are missing."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise unsupported(
                "--trace-config mode=opentelemetry needs packages: pip install -r requirements/opentelemetry.txt"
            ) from None
        processor = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=config.url),
            max_queue_size=config.bsp_max_queue_size,
            schedule_delay_millis=config.bsp_schedule_delay,
            max_export_batch_size=config.bsp_max_export_batch_size,
        )
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": server_id} | config.resource), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("slipway")
        self._propagator = TraceContextTextMapPropagator()
        self._sampler = Sampler(("TIMESTAMPS",), config.rate, config.count, log_frequency=0)

    @classmethod
    def from_options(cls, options: Options) -> "OpenTelemetryTrace | None":
        config = trace_config.read(options.trace_config)
        return cls(config, options.server_id) if config is not None and config.timestamps else None

    def observe(
        self,
        request: InFlightRequest,
        protocol: str,
        headers: Mapping[str, str] | None,
        received: ReceiveTimes,
    ) -> None:
        """Trace the request if it carries a trace context, or is sampled."""
        given = {name: headers[name] for name in _CONTEXT if name in headers} if headers else {}
        context = self._propagator.extract(given) if given else None
        if not context and not self._sampler.takes_next():
            return
        offset = time.time_ns() - time.monotonic_ns()
        began_ns = min(received[0], request.arrival_ns) if received else request.arrival_ns
        span = self._tracer.start_span("InferRequest", context, start_time=began_ns + offset)
        root = _RequestSpan(protocol, span, offset)
        request.trace_sending(root)
        root.receive(received, request.arrival_ns)
        request.observe(_ModelSpan(self._tracer, request, span, offset, root))

    def close(self, timeout_s: float = 3.0) -> None:
        """Send the waiting spans, as many as the collector takes within `timeout_s`."""
        ending = threading.Thread(target=self._provider.shutdown, name="trace-shutdown", daemon=True)
        ending.start()
        ending.join(timeout_s)


class _RequestSpan(FrontendTimestamps):
    """The root span. It ends when the answer has been sent."""

    __slots__ = ("offset", "span")

    def __init__(self, protocol: str, span: "Span", offset: int) -> None:
        super().__init__(protocol)
        self.span = span
        self.offset = offset

    def add_timestamp(self, name: str, ns: int) -> None:
        self.span.add_event(name, timestamp=ns + self.offset)

    def complete(self) -> None:
        self.span.end(time.monotonic_ns() + self.offset)


class _ModelSpan:
    """The spans of one request to one model. offset: the system clock minus the monotonic clock, in ns."""

    __slots__ = ("offset", "root", "span", "tracer")

    def __init__(
        self, tracer: "Tracer", request: InFlightRequest, parent: "Span", offset: int, root: _RequestSpan | None = None
    ) -> None:
        self.tracer = tracer
        self.offset = offset
        self.root = root  # None if this is a step of an ensemble
        attributes = {"triton.model_name": request.asked.model_name}
        if request.asked.id:
            attributes["triton.request_id"] = request.asked.id
        started = request.arrival_ns + offset
        self.span = tracer.start_span(
            request.asked.model_name, _below(parent), attributes=attributes, start_time=started
        )
        self.span.add_event("REQUEST_START", timestamp=started)

    def step(self, child: InFlightRequest) -> None:
        child.observe(_ModelSpan(self.tracer, child, self.span, self.offset))

    def context(self) -> str:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, _below(self.span))
        return json.dumps(carrier)

    def executed(self, request: InFlightRequest, execution: Execution) -> None:
        if self.span.is_recording():  # a decoupled model may already have sent its last answer
            self.span.add_event("QUEUE_START", timestamp=request.queued_ns + self.offset)
        started = execution.started_ns + self.offset
        span = self.tracer.start_span("compute", _below(self.span), start_time=started)
        for name, ns in (
            ("COMPUTE_START", execution.started_ns),
            ("COMPUTE_INPUT_END", execution.input_done_ns),
            ("COMPUTE_OUTPUT_START", execution.infer_done_ns),
            ("COMPUTE_END", execution.ended_ns),
        ):
            if ns:
                span.add_event(name, timestamp=ns + self.offset)
        span.set_attribute("slipway.batch_size", execution.size)
        span.end(execution.ended_ns + self.offset)

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        if isinstance(answer, InferenceResponse):
            self.span.set_attribute("triton.model_version", answer.model_version)
        if not final:
            return
        if (arm := arm_of(request)) is not None:
            self.span.set_attribute("slipway.arm", arm.arm)
        now = time.time_ns()
        if isinstance(answer, ServingError):
            from opentelemetry.trace import StatusCode

            self.span.set_status(StatusCode.ERROR, answer.code.value)  # the message may quote the request
        self.span.add_event("REQUEST_END", timestamp=now)
        self.span.end(now)
        if self.root is not None:
            self.root.answered_last()


def _below(span: "Span") -> "Context":
    """Return the context for the children of a span."""
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(span)
