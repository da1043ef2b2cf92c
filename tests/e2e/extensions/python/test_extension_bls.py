"""Business logic scripting: Python models that call other models, load them, and count in metrics of their own."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.support.model_factory import onnx_scale, python_model, python_scale, tensors_text
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

TENSORS = tensors_text("input", [("INPUT0", "FP32", [-1])]) + tensors_text("output", [("OUTPUT0", "FP32", [-1])])
DECOUPLED = "model_transaction_policy { decoupled: true }"


def caller(repository: Path, name: str, body: str, extra: str = "", asynchronous: bool = False) -> None:
    """A model whose answer is `out`, computed by `body` from `array` (the input) with the helper `call`."""
    source = f"""
import asyncio, json, time
import numpy as np
import triton_python_backend_utils as pb_utils

def call(model, array, **fields):
    tensor = pb_utils.Tensor("INPUT0", array)
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUTPUT0"], inputs=[tensor], **fields)

def value(response):
    if response.has_error():
        raise pb_utils.TritonModelException(f"{{response.error().code().value}}: {{response.error().message()}}")
    return pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()

def filled(response):
    return response.has_error() or response.output_tensors()

class TritonPythonModel:
    {"async " if asynchronous else ""}def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
{textwrap.indent(textwrap.dedent(body), " " * 12)}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)]))
        return responses
"""
    python_model(repository, name, source, f'name: "{name}" backend: "python" max_batch_size: 4 {TENSORS} {extra}')


COUNTER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for i in range(int(request.inputs()[0].as_numpy()[0, 0])):
                    out = pb_utils.Tensor("OUTPUT0", np.full((1, 1), i, np.float32))
                    sender.send(pb_utils.InferenceResponse([out]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
METRICS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            kind = pb_utils.MetricFamily
            self.counter = kind("requests_seen", "Requests\\nseen", kind.COUNTER).Metric({"who": 'a"b'})
            self.gauge = kind("last_value", "Last value", kind.GAUGE).Metric()
            self.histogram = kind("sizes", "Sizes", kind.HISTOGRAM).Metric({"x": "1"}, buckets=[0.1, 1, 10])
            self.plain = kind("plain", "Without bounds", kind.HISTOGRAM).Metric({}, buckets=[])

        def execute(self, requests):
            for request in requests:
                number = float(request.inputs()[0].as_numpy()[0, 0])
                self.counter.increment(1)
                self.gauge.set(number)
                self.histogram.observe(number)
                self.plain.observe(number)
            values = self.counter.value(), self.gauge.value()
            assert values[1] == number, values
            try:
                self.counter.increment(-1)
            except pb_utils.TritonModelException:
                pass
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())]) for r in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    onnx_scale(models, "double", 2.0)
    python_scale(models, "triple", 3.0, extra="instance_group [ { count: 2 kind: KIND_CPU } ]")
    text = f'name: "counter" backend: "python" max_batch_size: 4 {TENSORS} {DECOUPLED}'
    python_model(models, "counter", COUNTER, text)
    caller(models, "six", "out = value(call('triple', value(call('double', array).exec())).exec())")
    caller(models, "nested", "out = value(call('six', array).exec()) + 1")
    caller(
        models,
        "gathered",
        """
        awaited = await asyncio.gather(*(call("double", array + i).async_exec() for i in range(20)))
        out = np.concatenate([value(one) for one in awaited], axis=1)
        """,
        asynchronous=True,
    )
    responses = "call('counter', array).exec(decoupled=True)"
    caller(
        models,
        "summing",
        f"out = np.array([[sum(value(one)[0, 0] for one in {responses} if filled(one))]], np.float32)",
    )
    caller(
        models,
        "summing_async",
        """
        out = np.zeros((1, 1), np.float32)
        async for one in await call("counter", array).async_exec(decoupled=True):
            if filled(one):
                out = out + value(one)
        """,
        asynchronous=True,
    )
    caller(models, "wrong", "out = value(call(request.request_id(), array).exec())")
    caller(models, "large", "big = np.ones((1, 2_000_000), np.float32); out = value(call('wide', big).exec())")
    caller(models, "wide", "out = array * 2")
    caller(
        models,
        "managing",
        """
        before = pb_utils.is_model_ready("late")
        pb_utils.load_model("late")
        assert not before and pb_utils.is_model_ready("late", "1")
        out = value(call("late", array).exec())
        pb_utils.unload_model("late")
        assert not pb_utils.is_model_ready("late")
        """,
    )
    python_scale(models, "late", 5.0)
    python_model(models, "metrics", METRICS, f'name: "metrics" backend: "python" max_batch_size: 4 {TENSORS}')
    names = (
        "double",
        "triple",
        "counter",
        "six",
        "nested",
        "gathered",
        "summing",
        "summing_async",
        "wrong",
        "large",
        "wide",
    )
    flags = [f"--load-model={name}" for name in (*names, "managing")]
    with ServerProcess(models, "--model-control-mode=explicit", *flags) as running:
        yield running


@pytest.fixture
def infer(server):
    with grpcclient.InferenceServerClient(server.grpc) as client:

        def ask(model: str, number: float, request_id: str = "") -> np.ndarray:
            wire = grpcclient.InferInput("INPUT0", [1, 1], "FP32")
            wire.set_data_from_numpy(np.full((1, 1), number, np.float32))
            return client.infer(model, [wire], request_id=request_id).as_numpy("OUTPUT0")

        yield ask


def test_a_model_calls_other_models_and_is_called_by_one(infer):
    assert infer("six", 2) == 12
    assert infer("nested", 2) == 13


def test_twenty_inferences_are_under_way_at_once(infer):
    assert infer("gathered", 1).tolist() == [[2.0 * (1 + i) for i in range(20)]]


@pytest.mark.parametrize("model", ["summing", "summing_async"])
def test_the_responses_of_a_decoupled_model_are_iterated(infer, model):
    assert infer(model, 5) == 10
    assert infer(model, 0) == 0


def test_large_tensors_go_both_ways(infer):
    assert infer("large", 1).shape == (1, 2_000_000)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("absent", "NOT_FOUND: Request for unknown model: 'absent' is not found"),
        ("counter", "no response: use decoupled=True"),
        ("", "needs its model_name"),
    ],
)
def test_an_error_of_the_other_model_is_the_responses_error(infer, model, expected):
    with pytest.raises(InferenceServerException, match=expected):
        infer("wrong", 0, model)


def test_a_model_loads_and_unloads_another(infer):
    assert infer("managing", 2) == 10


def test_metrics_of_a_model_are_shown_while_it_is_loaded(server, infer):
    assert server.post("/v2/repository/models/metrics/load")[0] == 200
    for number in (1, 5, 100):
        infer("metrics", number)

    def page() -> str:
        return httpx.get(server.metrics_url, timeout=PATIENCE_S).text

    for line in (
        "# HELP requests_seen Requests\\nseen",
        'requests_seen{who="a\\"b"} 3',
        "last_value 100",
        'sizes_bucket{x="1",le="0.1"} 0',
        'sizes_bucket{x="1",le="1"} 1',
        'sizes_bucket{x="1",le="10"} 2',
        'sizes_bucket{x="1",le="+Inf"} 3',
        'sizes_count{x="1"} 3',
        'plain_bucket{le="+Inf"} 3',
        "plain_sum 106",
    ):
        wait_until(lambda line=line: f"{line}\n" in page(), what=line)
    assert server.post("/v2/repository/models/metrics/unload")[0] == 200
    wait_until(lambda: "requests_seen" not in page())
