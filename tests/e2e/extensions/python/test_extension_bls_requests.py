"""What a Python model may say of a request to another model, of the models that it loads, and of metrics that it lets go."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.support.model_factory import onnx_scale, python_model, tensors_text
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

TENSORS = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "BYTES", [1])])
EXTRA = {
    "waits": "model_transaction_policy { decoupled: true }",
    "ticks": "model_transaction_policy { decoupled: true }",
    "sums": "sequence_batching { oldest { max_candidate_sequences: 4 } }",
}
# Answers each request with the JSON of what `answer` returns.
MODEL = """
import asyncio, gc, json, pathlib, time
import numpy as np
import triton_python_backend_utils as pb_utils

FOLDER = pathlib.Path("{folder}")
HALF = chr(0xD800)

def call(model, **fields):
    tensor = pb_utils.Tensor("INPUT0", np.ones((1, 1), np.float32))
    fields = {"requested_output_names": ["OUTPUT0"], "inputs": [tensor]} | fields
    return pb_utils.InferenceRequest(model_name=model, **fields)

def seen(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return json.loads(pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()[0, 0])

def wrap(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([[json.dumps(value)]], object))])

def asked_and_failed(_):
    try:
        call("echo").exec()
    except pb_utils.TritonModelException as error:
        return str(error)

class TritonPythonModel:"""
ANSWERING = """
    def execute(self, requests):
        return [wrap(self.answer(request)) for request in requests]
"""
MODELS = {
    "echo": (
        """
    def answer(self, request):
        return [request.request_id(), request.correlation_id(), request.flags(), request.timeout(), request.priority(),
                json.loads(request.parameters()), request.requested_output_names()]
"""
        + ANSWERING
    ),
    # evaluates the request's id
    "asks": (
        """
    def answer(self, request):
        return eval(request.request_id())
"""
        + ANSWERING
    ),
    "ticks": """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            while not sender.is_cancelled():
                sender.send(wrap("tick"))
                time.sleep(0.02)
            sender.send(wrap("last words"))
            (FOLDER / request.request_id()).touch()
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
    # adds up the inputs of one correlation id
    "sums": (
        """
    def initialize(self, args):
        self.sums = {}

    def answer(self, request):
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.sums[request.correlation_id()] = 0.0
        self.sums[request.correlation_id()] += float(request.inputs()[0].as_numpy()[0, 0])
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            return self.sums.pop(request.correlation_id())
        return self.sums[request.correlation_id()]
"""
        + ANSWERING
    ),
    # asks twice at once for what is answered when both have asked, and reads the answers without awaiting them
    "meets": """
    async def execute(self, requests):
        for folder in FOLDER.glob("here-*"):
            folder.unlink()
        streams = (call("waits", request_id=name).async_exec(decoupled=True) for name in ("here-1", "here-2"))
        responses = await asyncio.gather(*(self.read(stream) for stream in streams))
        return [wrap([seen(response) for response in responses]) for _ in requests]

    async def read(self, stream):
        return next(await stream)
""",
    "waits": """
    async def execute(self, requests):
        for request in requests:
            (FOLDER / request.request_id()).touch()
            while len([*FOLDER.glob("here-*")]) < 2:
                await asyncio.sleep(0.02)
            request.get_response_sender().send(wrap("met"), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
    "stops": (
        """
    def answer(self, request):
        responses = call("ticks", request_id="stopped").exec(decoupled=True)
        first = seen(next(responses))
        responses.cancel()
        return [first, [seen(response) for response in responses if response.output_tensors()][-1]]
"""
        + ANSWERING
    ),
    "loads": (
        """
    def initialize(self, args):
        self.before = pb_utils.is_model_ready("given", "1")
        config = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})
        files = {"file:1/model.onnx": (FOLDER / "model.onnx").read_bytes()}
        pb_utils.load_model(model_name="given", config=config, files=files)
        self.after = pb_utils.is_model_ready(model_name="given", model_version="1")

    def answer(self, request):
        response = call("given").exec()
        return [self.before, self.after, response.output_tensors()[0].as_numpy().tolist()]
"""
        + ANSWERING
    ),
    "counts": (
        """
    def answer(self, request):
        kind = pb_utils.MetricFamily
        family = kind("of_requests", "Of one request", kind.GAUGE)
        metrics = [family.Metric({"n": str(n)}) for n in range(3)]
        again = family.Metric({"n": "0"})
        for metric in metrics:
            metric.increment(2.5)
        del metrics, metric
        self.kept = again
        return self.kept.value()
"""
        + ANSWERING
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    models, folder = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("notes")
    onnx_scale(folder, "template", 3.0)
    (folder / "template" / "1" / "model.onnx").rename(folder / "model.onnx")
    for name, body in MODELS.items():
        source = MODEL.replace("{folder}", str(folder)) + body
        extra = EXTRA.get(name, "")
        python_model(models, name, source, f'name: "{name}" backend: "python" max_batch_size: 4 {TENSORS} {extra}')
    flags = [f"--load-model={name}" for name in MODELS if name != "loads"]
    with ServerProcess(models, "--model-control-mode=explicit", *flags) as running:
        yield running, folder


@pytest.fixture
def ask(server: tuple[ServerProcess, Path]) -> Iterator[Callable[..., Any]]:
    with tritonclient.grpc.InferenceServerClient(server[0].grpc) as client:

        def answer(model: str, request_id: str = "") -> Any:
            wire = tritonclient.grpc.InferInput("INPUT0", [1, 1], "FP32")
            wire.set_data_from_numpy(np.ones((1, 1), np.float32))
            return json.loads(client.infer(model, [wire], request_id=request_id).as_numpy("OUTPUT0")[0, 0])

        yield answer


def test_everything_said_of_a_request_reaches_the_other_model(ask: Callable[..., Any]) -> None:
    fields = (
        "request_id='me', correlation_id=2**63, flags=3, timeout=5_000_000, priority=0, model_version=1, "
        "parameters={'text': 'x', 'number': -7, 'yes': True}"
    )
    assert ask("asks", f"seen(call('echo', {fields}).exec())") == [
        *("me", 2**63, 3, 5_000_000, 0),
        {"text": "x", "number": -7, "yes": True},
        ["OUTPUT0"],
    ]
    assert ask("asks", "seen(call(b'echo', request_id=b'me').exec())")[0] == "me", "elements of BYTES tensors are bytes"
    assert ask("asks", "seen(call('echo', correlation_id='name', flags=np.int32(1)).exec())")[1:3] == ["name", 1]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("timeout=-1", "timeout must be a whole number of at least 0, not -1"),
        ("timeout=1.5", "timeout must be a whole number"),
        ("flags='START'", "flags must be a whole number of at least 0, not 'START'"),
        ("correlation_id=None", "correlation_id must be a whole number"),
        ("correlation_id=2**64", "correlation_id must be a whole number"),
        ("model_version='x'", "model_version must be a whole number of at least -1"),
        ("request_id=7", "request_id must be text, not 7"),
        ("request_id=HALF", "request_id must be text"),
        ("request_id=bytes([255])", "request_id must be text"),
        ("requested_output_names=[1]", "a requested output's name must be text"),
        ("requested_output_names=['NOTHING']", "unexpected inference output 'NOTHING'"),
        ("inputs=None", "an InferenceRequest needs inputs, requested_output_names and model_name"),
        ("requested_output_names=[None]", "a requested output's name must be text, not None"),
        ("inputs=[1]", "inputs must be pb_utils.Tensor objects, not int"),
        ("parameters={'a': [1]}", "request parameters must be strings, whole numbers or booleans, by name; 'a' is"),
        ("parameters={'a': 0.5}", "request parameters must be"),
        ("parameters={'a': 2**70}", "request parameters must be"),
        ("parameters=[1]", "request parameters must be a dictionary, not list"),
        ("model_version=9", "version 9 is not found"),
        (
            "preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 99)",
            "asks for GPU 99, but torch",
        ),
        (
            "preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, -1)",
            "preferred_device_id must be",
        ),
    ],
)
def test_what_cannot_be_asked_is_said_and_the_model_goes_on(
    ask: Callable[..., Any], fields: str, expected: str
) -> None:
    with pytest.raises(InferenceServerException, match=expected) as error:
        ask("asks", f"seen(call('echo', {fields}).exec())")
    assert "the model's process" not in error.value.message()
    assert ask("asks", "1 + 1") == 2


def test_a_model_takes_part_in_sequences_of_another(ask: Callable[..., Any]) -> None:
    asked = (
        "[seen(call('sums', correlation_id=name, flags=flags).exec()) for flags in (1, 0, 2) for name in (4, 'four')]"
    )
    assert ask("asks", asked) == [1, 1, 2, 2, 3, 3]
    assert ask("asks", "seen(call('sums', correlation_id=4, flags=3).exec())") == 1, "a sequence of one request"


def test_outputs_may_be_wanted_on_the_host(ask: Callable[..., Any]) -> None:
    memory = "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)"
    assert ask("asks", f"call('echo', preferred_memory={memory}).exec().output_tensors()[0].is_cpu()")


def test_a_model_stops_the_stream_of_another(server: tuple[ServerProcess, Path], ask: Callable[..., Any]) -> None:
    assert ask("stops") == ["tick", "last words"], "the other model says how it ends"
    wait_until((server[1] / "stopped").exists, what="the other model's noticing")


def test_a_loop_goes_on_while_several_models_have_not_begun_to_answer(ask: Callable[..., Any]) -> None:
    assert ask("meets") == ["met", "met"]


def test_responses_can_be_iterated_again_once_all_have_come(ask: Callable[..., Any]) -> None:
    assert (
        ask("asks", "[seen(one) for one in (lambda r: [*r, *r, next(iter(r))])(call('echo').exec(decoupled=True))]")
        == [["", 0, 0, 0, 0, {}, ["OUTPUT0"]]] * 3
    )


def test_a_process_that_the_model_forks_cannot_ask(ask: Callable[..., Any]) -> None:
    asked = "__import__('multiprocessing').get_context('fork').Pool(2).map(asked_and_failed, range(4))"
    assert ask("asks", asked) == ["only the model's own process can ask the server, not one that it has forked"] * 4
    assert ask("asks", "1 + 1") == 2


def test_a_model_loads_another_from_files_that_it_brings(
    server: tuple[ServerProcess, Path], ask: Callable[..., Any]
) -> None:
    assert server[0].post("/v2/repository/models/loads/load")[0] == 200
    assert ask("loads") == [False, True, [[3.0]]]


def test_a_metric_goes_with_the_last_object_that_stands_for_it(
    server: tuple[ServerProcess, Path], ask: Callable[..., Any]
) -> None:
    def shown() -> list[str]:
        return [
            line
            for line in httpx.get(server[0].metrics_url, timeout=PATIENCE_S).text.splitlines()
            if line.startswith("of_requests")
        ]

    assert ask("counts") == 2.5
    wait_until(lambda: shown() == ['of_requests{n="0"} 2.5'], what="the end of two metrics")
    assert ask("counts") == 5, "it is the same one while somebody holds it"
    assert server[0].post("/v2/repository/models/counts/unload")[0] == 200
    wait_until(lambda: not shown(), what="the end of the last one")
