"""After any exception between the loop and a model, each request has one answer, the instance runs on, the model unloads."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from serving.core.errors import Code, ServingError
from serving.core.output_target import OutputRule, OutputTarget
from serving.core.response import InferenceResponse
from serving.server.inference_server import InferenceServer
from tests.serving.gate import until
from tests.serving.in_process import core, index
from tests.serving.models.test_residency import asking_for
from tests.serving.requests import in_flight
from tests.serving.streaming_backend import streaming_model
from tests.support import model_factory, pipelines
from tests.support.serving_process import ServerProcess, wait_until

pytestmark = [pytest.mark.long, pytest.mark.interpreted]
BATCHING = "dynamic_batching { } instance_group { count: 2 kind: KIND_CPU "
LIMITED = 'rate_limiter { resources { name: "R" count: 1 } } }'
SLOW = """dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 8
    default_queue_policy { allow_timeout_override: true } }"""
CALLER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

        def answer(self, array):
            asked = pb_utils.InferenceRequest(
                model_name="scale", requested_output_names=["OUTPUT0"], inputs=[pb_utils.Tensor("INPUT0", array)]
            )
            answer = asked.exec()
            if answer.has_error():
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(answer.error().message()))
            return pb_utils.InferenceResponse(answer.output_tensors())
"""


class Raises(Exception):
    """What a patched boundary raises."""


class Boundary(NamedTuple):
    """Where something is raised while `model` serves, and whether its client is to hear of it."""

    model: str
    target: str  # module:Class.method, or module:function
    fails: bool = True
    ends: str = "answer"  # how the request is brought to its end: answer, cancel or timeout


LOST = False  # what the request can do without: it is answered as if nothing had been

BOUNDARIES = {
    "forming a batch": Boundary("scale", "serving.scheduling.batch_rules:FormingBatch.choose"),
    "taking a batch from the queue": Boundary("scale", "serving.scheduling.queue:RequestQueue.take"),
    "making a batch": Boundary("scale", "serving.core.batch:Batch.__init__"),
    "handing a batch over": Boundary("scale", "serving.execution.instance:Instance.execute"),
    "asking whether an instance may run": Boundary("scale", "serving.execution.instance:Instance.available"),
    "acquiring resources": Boundary("scale", "serving.resources.rate_limiter:RateLimiter.acquire"),
    "executing a batch": Boundary("scale", "serving.core.batch:Batch.gather"),
    "counting a batch": Boundary("scale", "serving.telemetry.statistics:ModelStatistics.count_batch", LOST),
    "counting what was computed": Boundary("pipeline", "serving.telemetry.statistics:ModelStatistics.count_computed"),
    "counting the time in the queue": Boundary("pipeline", "serving.telemetry.statistics:ModelStatistics.count_queued"),
    "counting a success": Boundary("pipeline", "serving.telemetry.statistics:ModelStatistics.count_success"),
    "counting a refusal": Boundary("waits", "serving.telemetry.statistics:ModelStatistics.count_failure", ends="timeout"),
    "counting a cancellation": Boundary("waits", "serving.telemetry.statistics:ModelStatistics.count_cancel", ends="cancel"),
    "checking a request": Boundary("scale", "serving.core.tensor_check:TensorCheck.request"),
    "reshaping an answer": Boundary("scale", "serving.core.tensor_check:TensorCheck.response"),
    "delivering outputs": Boundary("scale", "serving.models.model_responses:apply_targets"),
    "writing outputs to memory": Boundary("scale", "serving.execution.instance:write_large_outputs", LOST),
    "cancelling in the queue": Boundary("waits", "serving.scheduling.queue:RequestQueue.remove", ends="cancel"),
    "timing out in the queue": Boundary("waits", "serving.scheduling.queue:RequestQueue._expire", ends="timeout"),
    "looking up the cache": Boundary("cached", "serving.resources.response_cache:ModelCache.look_up", LOST),
    "keeping in the cache": Boundary("cached", "serving.resources.response_cache:ModelCache.keep", LOST),
    "forgetting in the cache": Boundary("cached", "serving.resources.response_cache:ModelCache.forget", LOST),
    "checking a sequence": Boundary("sum", "serving.scheduling.sequence_controls:SequenceControls.check"),
    "making controls": Boundary("sum", "serving.scheduling.sequence_controls:SequenceControls.prepare"),
    "keeping a state": Boundary("sum", "serving.scheduling.sequence_controls:SequenceControls.keep_state"),
    "placing a sequence": Boundary("sum", "serving.scheduling.sequence_batch:SequenceBatchScheduler._place"),
    "beginning an ensemble": Boundary("pipeline", "serving.scheduling.ensemble_run:Run.advance"),
    "starting a step": Boundary("pipeline", "serving.scheduling.ensemble_run:Run._start"),
    "sending a step's request": Boundary("pipeline", "serving.models.model_registry:ModelRegistry.find_step"),
    "taking a step's answer": Boundary("pipeline", "serving.scheduling.ensemble_run:Run._take"),
    "leaving a step": Boundary("pipeline", "serving.scheduling.ensemble_graph:StepLimits.leave"),
    "answering for an ensemble": Boundary("pipeline", "serving.scheduling.ensemble:EnsembleScheduler._response"),
    "cancelling an ensemble": Boundary("slowly", "serving.scheduling.ensemble_run:Run.abandon", ends="cancel"),
    "placing a streamed response": Boundary("streaming", "serving.telemetry.statistics:ModelStatistics.responses_of"),
    "counting a streamed response": Boundary("streaming", "serving.telemetry.statistics:ModelStatistics.count_first_response"),
    "counting a response's time": Boundary("streaming", "serving.telemetry.statistics:ResponseStatistics.count"),
    "waking a sleeper": Boundary("sleeper", "serving.models.model_lifecycle:ModelLifecycle._load_for_request"),
    "handing over to an awake model": Boundary("sleeper", "serving.models.model:Model.submit"),
    "reading a model's call": Boundary("caller", "serving.backends.child.request_executor:decode_request"),
    "following a model's call": Boundary("caller", "serving.backends.child.request_executor:_Inference.cancel_with", LOST),
    "describing a batch to a process": Boundary("caller", "serving.backends.child.codec:RequestEncoder.encode"),
    "reading what a process answers": Boundary("caller", "serving.backends.child.results:ResultReader.read"),
    "handing an answer to a model": Boundary("caller", "serving.backends.child.calls:encode_answer"),
}  # fmt: skip


class RaisingObserver:
    """An observer, as a trace or the request log, of which everything raises."""

    def _raise(self, *_: object) -> Any:
        raise Raises("an observer raises")

    executed = step = answered = _raise

    def context(self) -> str:
        return ""


class Asked:
    """One request under way, and each of its final answers."""

    def __init__(self, server: InferenceServer, model: str, **fields: Any) -> None:
        self.finals: list[Any] = []
        if model == "streaming":
            inputs = {"IN": np.array([2], np.int32)}
        else:
            name = {"sum": "INPUT", "pipeline": "X", "slowly": "X"}.get(model, "INPUT0")
            inputs = {name: np.array([[2]], np.float32)}
        if model == "sum":
            fields |= {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
        if model == "scale":
            fields["output_targets"] = {"OUTPUT0": OutputTarget(OutputRule(classes=1))}
        self.request = in_flight(model, inputs, self._on_response, **fields)
        try:
            server.infer(self.request)
        except ServingError as error:
            self.finals.append(error)

    def _on_response(self, response: Any, final: bool) -> None:
        if final:
            self.finals.append(response)

    async def answer(self) -> Any:
        await until(lambda: self.finals, f"an answer from '{self.request.asked.model_name}'")
        return self.finals[0]


@contextlib.asynccontextmanager
async def models(tmp_path: Path) -> AsyncIterator[InferenceServer]:
    model_factory.onnx_scale(tmp_path, extra=BATCHING + LIMITED)
    model_factory.onnx_scale(tmp_path, "waits", extra=SLOW)
    model_factory.onnx_scale(tmp_path, "cached", extra="response_cache { enable: true }")
    model_factory.onnx_sequence_sum(tmp_path, "sum")
    model_factory.onnx_scale(tmp_path, "sleeper", extra=asking_for("on_demand", idle_seconds=1000))
    streaming_model(tmp_path, instances=1)
    steps = pipelines.step("scale", {"INPUT0": "X"}, {"OUTPUT0": "Y"})
    pipelines.ensemble(tmp_path, steps)
    pipelines.ensemble(tmp_path, pipelines.step("waits", {"INPUT0": "X"}, {"OUTPUT0": "Y"}), "slowly")
    options = {"rate_limit": "execution_count", "cache_config": (("local", "size", "100000"),)}
    async with core(tmp_path, **options) as started:
        yield started


async def _load(server: InferenceServer, repository: Path, model: str) -> None:
    if model == "caller":
        tensors = [("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])]
        text = model_factory.tensors_text("input", tensors[0]) + model_factory.tensors_text("output", tensors[1])
        head = 'name: "caller" backend: "python" max_batch_size: 8 '
        model_factory.python_model(repository, "caller", CALLER, head + text)
        await server.load_model("scale")
    await server.load_model(model)


async def _unloaded(server: InferenceServer, *models: str) -> None:
    for model in models:
        await server.unload_model(model)
    await until(lambda: "UNLOADING" not in {state for state, _ in index(server).values()}, "the end of unloading")
    assert all(one.status.in_flight == 0 for one in server.statistics())


def _raise_at(monkeypatch: pytest.MonkeyPatch, target: str) -> list[int]:
    """Patch it to raise; how often it did."""
    raised: list[int] = []

    def raising(*_: object, **__: object) -> None:
        raised.append(1)
        raise Raises("this boundary raises")

    monkeypatch.setattr(target.replace(":", "."), raising)
    return raised


async def _bring_to_its_end(asked: Asked, boundary: Boundary) -> None:
    if boundary.ends == "cancel":
        await asyncio.sleep(0)
        asked.request.cancel()
    await asked.answer()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", BOUNDARIES)
async def test_after_an_exception_at_a_boundary_the_request_is_answered_and_the_instance_runs_on(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with models(tmp_path) as server:
        boundary = BOUNDARIES[name]
        model = boundary.model
        await _load(server, tmp_path, model)
        with monkeypatch.context() as patch:
            raised = _raise_at(patch, boundary.target)
            asked = Asked(server, model, timeout_us=1000 if boundary.ends == "timeout" else 0)
            await _bring_to_its_end(asked, boundary)
            await until(lambda: raised, "the boundary")
            answer = asked.finals[0]
        if boundary.ends == "answer":
            assert isinstance(answer, ServingError) is boundary.fails, answer
            if boundary.fails and model != "sleeper":
                assert answer.code is Code.INTERNAL
        else:
            assert isinstance(answer, ServingError)
        tracebacks = [record for record in caplog.records if record.exc_info and record.exc_info[0] is Raises]
        assert len(tracebacks) == len(raised)
        assert "0x" not in str(answer)

        if model in ("waits", "slowly"):
            again = [Asked(server, model) for _ in range(8)]  # a full batch, with whatever could not be taken away
            assert not isinstance(await again[0].answer(), ServingError)
            for one in again[1:]:
                one.request.cancel()
        else:
            if model == "sleeper":
                monkeypatch.setattr("serving.models.sleeping_model.RETRY_S", 0)
            again = [Asked(server, model)]
            assert not isinstance(await again[0].answer(), ServingError)
        await _unloaded(server, model)
        assert [len(one.finals) for one in (asked, *again)] == [1] * (1 + len(again))


@pytest.mark.asyncio
@pytest.mark.parametrize("model", ["scale", "sum", "cached", "pipeline", "streaming"])
async def test_an_observer_that_raises_takes_no_answer_away(model: str, tmp_path: Path) -> None:
    async with models(tmp_path) as server:
        await _load(server, tmp_path, model)
        asked = Asked(server, model, observers=(RaisingObserver(),))
        assert not isinstance(await asked.answer(), ServingError)
        await _unloaded(server, model)
        assert len(asked.finals) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("model", ["scale", "streaming"])
async def test_a_response_that_cannot_be_handed_over_becomes_an_error(model: str, tmp_path: Path) -> None:
    async with models(tmp_path) as server:
        await _load(server, tmp_path, model)
        reported: list[Any] = []

        def on_response(response: Any, final: bool) -> None:
            if isinstance(response, InferenceResponse):
                raise Raises("the client's codec raises")
            reported.append((response, final))

        asked = Asked(server, model)
        await asked.answer()
        request = in_flight(model, asked.request.inputs, on_response)
        server.infer(request)
        await until(lambda: reported, "an answer")
        await _unloaded(server, model)
        assert [(answer.code, final) for answer, final in reported] == [(Code.INTERNAL, True)]


@pytest.mark.asyncio
@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), Raises("at <Thing object at 0x7f00deadbeef>")])
async def test_an_instance_outlives_whatever_its_model_raises(
    raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with models(tmp_path) as server:

        def raising(*_: object) -> None:
            raise raised

        await _load(server, tmp_path, "scale")
        with monkeypatch.context() as patch:
            patch.setattr("serving.core.batch.Batch.gather", raising)
            answer = await Asked(server, "scale").answer()
        assert answer.code is Code.INTERNAL
        assert "0x" not in answer.message
        assert not isinstance(await Asked(server, "scale").answer(), ServingError)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "target",
    [
        "serving.models.model_instances.warmup_batches",
        "serving.models.model_instances.placements",
        "serving.models.model_instances.files_bytes",
        "serving.models.model_instances.memory_growth",
    ],
)
async def test_a_load_in_which_something_raises_says_so_and_the_next_one_succeeds(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with models(tmp_path) as server:
        with monkeypatch.context() as patch:
            _raise_at(patch, target)
            with pytest.raises(ServingError) as caught:
                await server.load_model("scale")
        assert caught.value.code is Code.INTERNAL
        assert index(server)["scale", "1"][0] == "UNAVAILABLE"
        await _load(server, tmp_path, "scale")
        assert not isinstance(await Asked(server, "scale").answer(), ServingError)


# -- the two causes that were found, through the real server -----------------------------------------------------------
CORRID = """sequence_batching { direct { }
    control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } } } """


def _corrid_model(repository: Path, name: str, datatype: str) -> None:
    node = model_factory.helper.make_node("Identity", ["ID"], ["OUT"])
    tensors = [("IN", "FP32", ["batch", 1]), ("ID", datatype, ["batch", 1])]
    content = model_factory.onnx_bytes([node], tensors, [("OUT", datatype, ["batch", 1])])
    model_factory.write_onnx(repository, name, content)
    text = f'name: "{name}" backend: "onnxruntime" max_batch_size: 4 ' + CORRID % datatype
    io = model_factory.tensors_text("input", [("IN", "FP32", [1])]) + model_factory.tensors_text(
        "output", [("OUT", datatype, [1])]
    )
    model_factory.write_config(repository / name, text + io)


def test_a_sequence_id_that_its_control_cannot_carry_is_the_clients_mistake_and_the_model_serves_on(
    tmp_path: Path,
) -> None:
    for datatype in ("INT32", "UINT32"):
        _corrid_model(tmp_path, datatype, datatype)
    with ServerProcess(tmp_path, "--model-control-mode=explicit", "--load-model=*") as server:
        for library, address in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
            with library.InferenceServerClient(address) as client:
                wire = library.InferInput("IN", [1, 1], "FP32")
                wire.set_data_from_numpy(np.ones((1, 1), np.float32))
                for model, wrong, good in (("INT32", 2**31, 2**31 - 1), ("UINT32", 2**32, 2**32 - 1)):
                    with pytest.raises(InferenceServerException, match=f"integer of the range of {model}") as caught:
                        client.infer(model, [wire], sequence_id=wrong, sequence_start=True)
                    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
                    answer = client.infer(model, [wire], sequence_id=good, sequence_start=True, sequence_end=True)
                    assert answer.as_numpy("OUT").ravel().tolist() == [good]
        for model in ("INT32", "UINT32"):
            assert server.post(f"/v2/repository/models/{model}/unload")[0] == 200
            wait_until(lambda model=model: _state(server, model) == "UNAVAILABLE", what="unloading")


def test_an_output_of_two_variable_dims_with_a_reshape_is_answered_in_its_shape(tmp_path: Path) -> None:
    node = model_factory.helper.make_node("Identity", ["IN"], ["OUT"])
    tensor = ["batch", "a", 1, "b"]
    content = model_factory.onnx_bytes([node], [("IN", "FP32", tensor)], [("OUT", "FP32", tensor)])
    model_factory.write_onnx(tmp_path, "reshaped", content)
    io = 'name: "%s" data_type: TYPE_FP32 dims: [ -1, -1 ] reshape { shape: [ -1, 1, -1 ] }'
    model_factory.write_config(
        tmp_path / "reshaped",
        f'name: "reshaped" backend: "onnxruntime" max_batch_size: 4 input {{ {io % "IN"} }} output {{ {io % "OUT"} }}',
    )
    with ServerProcess(tmp_path, "--model-control-mode=explicit", "--load-model=*") as server:
        with tritonclient.http.InferenceServerClient(server.http) as client:
            array = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
            wire = tritonclient.http.InferInput("IN", array.shape, "FP32")
            wire.set_data_from_numpy(array)
            assert client.infer("reshaped", [wire]).as_numpy("OUT").tolist() == array.tolist()
        assert server.post("/v2/repository/models/reshaped/unload")[0] == 200
        wait_until(lambda: _state(server, "reshaped") == "UNAVAILABLE", what="unloading")


def _state(server: ServerProcess, model: str) -> str:
    rows = server.post("/v2/repository/index")[1]
    return next(row["state"] for row in rows if row["name"] == model)
