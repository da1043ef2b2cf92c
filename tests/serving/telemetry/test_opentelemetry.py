"""OpenTelemetry traces: what a receiver gets for a model, an ensemble and a client's own trace; sampling."""

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tritonclient.utils import InferenceServerException

from tests.serving.in_process import core
from tests.serving.requests import in_flight
from tests.serving.streaming_backend import streaming_model
from tests.support.model_factory import onnx_scale, write_config
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SECRET = 12345678  # longer than what a moment's digits hold by chance
# the HTTP client writes into what it is given: copies only
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
STEP = """step { model_name: "scale" model_version: -1
  input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" } }"""
ENSEMBLE = f"""name: "twice" platform: "ensemble" max_batch_size: 8
input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
ensemble_scheduling {{ {STEP % ("IN", "MIDDLE")} {STEP % ("MIDDLE", "OUT")} }}"""


class Receiver:
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        received: list[ExportTraceServiceRequest] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                received.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.received = received
        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    @property
    def spans(self) -> list[Any]:
        return [span for one in self.received for r in one.resource_spans for s in r.scope_spans for span in s.spans]

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


def started(tmp_path: Path, receiver: Receiver, *settings: str) -> ServerProcess:
    onnx_scale(tmp_path)
    write_config(tmp_path / "twice", ENSEMBLE)
    (tmp_path / "twice" / "1").mkdir()
    asked = (
        "mode=opentelemetry",
        f"opentelemetry,url={receiver.url}",
        "opentelemetry,bsp_schedule_delay=50",
        *settings,
    )
    return ServerProcess(tmp_path, *(f"--trace-config={setting}" for setting in asked))


def ask(library: Any, address: str, model: str = "scale", name: str = "INPUT0", **fields: Any) -> None:
    with library.InferenceServerClient(address) as client:
        wire = library.InferInput(name, [1, 1], "FP32")
        wire.set_data_from_numpy(np.full((1, 1), SECRET, np.float32))
        client.infer(model, [wire], **fields)


def attributes(span: Any) -> dict[str, str]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def test_spans_join_the_trace_of_the_client(tmp_path: Path, receiver: Receiver) -> None:
    with started(tmp_path, receiver, "level=TIMESTAMPS", "rate=0") as server:
        ask(tritonclient.http, server.http, request_id="without")
        ask(tritonclient.http, server.http, request_id="h", headers=dict(HEADERS))
        ask(tritonclient.grpc, server.grpc, request_id="g", headers=dict(HEADERS))
        wait_until(lambda: len(receiver.spans) >= 6, what="spans of two requests")
    assert len(receiver.spans) == 6, "rate=0 traces only what carries a context"
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE}
    roots = [span for span in receiver.spans if span.name == "InferRequest"]
    models = [span for span in receiver.spans if span.name == "scale"]
    assert [span.parent_span_id.hex() for span in roots] == [PARENT, PARENT]
    assert {span.parent_span_id for span in models} == {span.span_id for span in roots}
    assert {attributes(span)["triton.request_id"] for span in models} == {"h", "g"}
    sends = {"HTTP_RECV": "HTTP_SEND", "GRPC_WAITREAD": "GRPC_SEND"}
    by_frontend = {root.events[0].name.removesuffix("_START"): root for root in roots}
    assert set(by_frontend) == set(sends)
    for receive, root in by_frontend.items():
        send = sends[receive]
        assert [event.name for event in root.events] == [
            f"{receive}_START", f"{receive}_END", "INFER_RESPONSE_COMPLETE", f"{send}_START", f"{send}_END",
        ]  # fmt: skip
        assert root.start_time_unix_nano <= root.events[0].time_unix_nano
        assert root.events[-1].time_unix_nano <= root.end_time_unix_nano
    for compute in (span for span in receiver.spans if span.name == "compute"):
        model = next(span for span in models if span.span_id == compute.parent_span_id)
        assert model.start_time_unix_nano <= compute.start_time_unix_nano
        assert compute.end_time_unix_nano <= model.end_time_unix_nano
        assert [event.name for event in compute.events][0::3] == ["COMPUTE_START", "COMPUTE_END"]
    assert str(SECRET) not in str(receiver.received)


def test_each_step_of_an_ensemble_has_its_spans_below_the_ensembles(tmp_path: Path, receiver: Receiver) -> None:
    with started(
        tmp_path, receiver, "level=TIMESTAMPS", "rate=1", "opentelemetry,resource=service.name=mine"
    ) as server:
        ask(tritonclient.http, server.http, "twice", "IN")
        wait_until(lambda: len(receiver.spans) >= 6, what="spans of an ensemble")
    ensemble = next(span for span in receiver.spans if span.name == "twice")
    steps = [span for span in receiver.spans if span.name == "scale"]
    assert [span.parent_span_id for span in steps] == [ensemble.span_id] * 2
    assert sorted(span.name for span in receiver.spans) == [
        "InferRequest",
        "compute",
        "compute",
        "scale",
        "scale",
        "twice",
    ]
    resource = receiver.received[0].resource_spans[0].resource
    assert attributes(resource)["service.name"] == "mine"


def test_rate_and_count_bound_the_traces_and_a_refusal_is_an_error(tmp_path: Path, receiver: Receiver) -> None:
    with started(tmp_path, receiver, "level=TIMESTAMPS", "rate=2", "count=2") as server:
        for _ in range(9):
            with pytest.raises(Exception, match="unknown"):
                ask(tritonclient.http, server.http, "unknown")
    spans = [span for span in receiver.spans if span.name == "unknown"]
    assert [(span.status.code, span.status.message) for span in spans] == [(2, "NOT_FOUND")] * 2, "sent before the end"


def test_the_trace_extension_tells_the_modes_own_settings(tmp_path: Path, receiver: Receiver) -> None:
    given = ("level=TIMESTAMPS", "opentelemetry,resource=service.name=mine")
    with (
        started(tmp_path, receiver, *given) as server,
        tritonclient.http.InferenceServerClient(server.http) as client,
    ):
        found = client.get_trace_settings()
        with pytest.raises(InferenceServerException, match="can not be changed"):
            client.update_trace_settings(settings={"trace_rate": "1"})
    assert found == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": receiver.url,
        "resource": "service.name=mine",
        "bsp_max_queue_size": "2048",
        "bsp_schedule_delay": "50",
        "bsp_max_export_batch_size": "512",
    }


def test_nothing_is_traced_without_a_level(tmp_path: Path, receiver: Receiver) -> None:
    with started(tmp_path, receiver, "rate=1") as server:
        ask(tritonclient.http, server.http, headers=dict(HEADERS))
    assert receiver.received == []


@pytest.mark.asyncio
async def test_a_decoupled_model_has_its_spans_whenever_it_ends(tmp_path: Path, receiver: Receiver) -> None:
    streaming_model(tmp_path)
    config = (("", "mode", "opentelemetry"), ("", "level", "TIMESTAMPS"), ("", "rate", "1"))
    config += (("opentelemetry", "url", receiver.url),)
    async with core(tmp_path, load_model=("streaming",), trace_config=config) as server:
        ended = asyncio.Event()
        inputs = {"IN": np.array([3], np.int32)}
        request = in_flight("streaming", inputs, lambda answer, final: ended.set() if final else None)
        server.infer(request, "grpc")
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
    assert sorted(span.name for span in receiver.spans) == ["InferRequest", "compute", "streaming"]
