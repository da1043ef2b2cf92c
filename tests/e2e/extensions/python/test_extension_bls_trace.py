"""A model's requests to other models belong to the trace of its own request, where the model hands `request.trace()` on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from tests.serving.telemetry.test_opentelemetry import PARENT, TRACE, Receiver
from tests.support.model_factory import python_model, python_scale, tensors_text
from tests.support.serving_process import ServerProcess, wait_until

TENSORS = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
# Asks "scale" twice, once under its own trace; answers with the trace's context in a parameter.
CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = request.inputs()[0]
            for name, fields in (("traced", {"trace": request.trace()}), ("plain", {})):
                response = pb_utils.InferenceRequest(
                    model_name="MODEL", requested_output_names=["OUTPUT0"], inputs=[tensor], request_id=name, **fields
                ).exec()
                assert not response.has_error(), response.error().message()
            outputs = [pb_utils.Tensor("OUTPUT0", response.output_tensors()[0].as_numpy())]
            context = {"context": request.trace().get_context() or ""}
            responses.append(pb_utils.InferenceResponse(outputs, parameters=context))
        return responses
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """`outer` asks `caller`, which asks `scale`."""
    folder = tmp_path / "models"
    python_scale(folder)
    for name, model in (("caller", "scale"), ("outer", "caller")):
        text = f'name: "{name}" backend: "python" max_batch_size: 8 {TENSORS}'
        python_model(folder, name, CALLER.replace("MODEL", model), text)
    return folder


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


def ask(server: ServerProcess, model: str, **fields: Any) -> str:
    """The `context` that the model was given."""
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        wire = tritonclient.grpc.InferInput("INPUT0", [1, 1], "FP32")
        wire.set_data_from_numpy(np.ones((1, 1), np.float32))
        answer = client.infer(model, [wire], **fields)
        assert answer.as_numpy("OUTPUT0") == 2
        return str(answer.get_response().parameters["context"].string_param)


def test_trace_files_name_the_trace_that_an_inner_request_belongs_to(models: Path, tmp_path: Path) -> None:
    traces = tmp_path / "trace.json"
    settings = (f"triton,file={traces}", "level=TIMESTAMPS", "rate=1")
    with ServerProcess(models, *(f"--trace-config={setting}" for setting in settings)) as server:
        assert ask(server, "outer", request_id="client") == ""
    rows = [row for row in json.loads(traces.read_text()) if "model_name" in row]
    ids = {row["model_name"]: row["id"] for row in rows}
    assert sorted((row["model_name"], row["request_id"], row.get("parent_id")) for row in rows) == [
        ("caller", "traced", ids["outer"]),
        ("outer", "client", None),
        ("scale", "traced", ids["caller"]),
    ]


def test_spans_of_inner_requests_lie_below_the_request_that_they_are_made_for(models: Path, receiver: Receiver) -> None:
    settings = (
        "mode=opentelemetry",
        f"opentelemetry,url={receiver.url}",
        "opentelemetry,bsp_schedule_delay=50",
        "level=TIMESTAMPS",
        "rate=0",
    )
    with ServerProcess(models, *(f"--trace-config={setting}" for setting in settings)) as server:
        assert ask(server, "caller") == "", "this request is not traced"
        context = json.loads(ask(server, "outer", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}))
        wait_until(lambda: len(receiver.spans) >= 7, what="the spans of three models and the request")
    spans = {span.name: span for span in receiver.spans if span.name != "compute"}
    assert sorted(span.name for span in receiver.spans) == [
        *("InferRequest", "caller", "compute", "compute", "compute", "outer", "scale")
    ]
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE}
    assert spans["caller"].parent_span_id == spans["outer"].span_id
    assert spans["scale"].parent_span_id == spans["caller"].span_id
    assert context["traceparent"] == f"00-{TRACE}-{spans['outer'].span_id.hex()}-01"
