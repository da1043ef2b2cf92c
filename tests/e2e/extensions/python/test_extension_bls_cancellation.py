"""A client that leaves in the middle of a call to another model: what nobody else waits for is cancelled there too."""

import asyncio
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.http.aio

from tests.support.model_factory import python_model, tensors_text
from tests.support.serving_process import ServerProcess, wait_until

TENSORS = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
DECOUPLED = "model_transaction_policy { decoupled: true }"
PAIRS = "dynamic_batching { preferred_batch_size: [2] max_queue_delay_microseconds: 60000000 }"

# Notes in files when it begins and how it ends: "cancelled", or "released" by a file.
WATCHER = """
import pathlib
import time
import triton_python_backend_utils as pb_utils

FOLDER = pathlib.Path({folder!r})

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            name = request.request_id()
            (FOLDER / f"{{name}}.began").touch()
            while not request.is_cancelled() and not (FOLDER / f"{{name}}.release").exists():
                time.sleep(0.02)
            (FOLDER / f"{{name}}.{{'cancelled' if request.is_cancelled() else 'released'}}").touch()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())]) for r in requests]
"""
CALLER = """
import asyncio
import pathlib
import threading
import time
import triton_python_backend_utils as pb_utils

FOLDER = pathlib.Path({folder!r})

def call(request, model="watcher", name="", **fields):
    inputs = [pb_utils.Tensor("INPUT0", request.inputs()[0].as_numpy())]
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=["OUTPUT0"], inputs=inputs, request_id=name or request.request_id(), **fields
    )

def answer(response):
    if response.has_error():
        return pb_utils.InferenceResponse(error=response.error())
    return pb_utils.InferenceResponse(response.output_tensors())

def note_when_cancelled(request):
    while not request.is_cancelled():
        time.sleep(0.02)
    (FOLDER / f"{{request.request_id()}}.left").touch()

class TritonPythonModel:
"""
CALLERS = {
    "blocking": """
        def execute(self, requests):
            return [answer(call(request).exec()) for request in requests]
    """,
    "awaiting": """
        async def execute(self, requests):
            asked = [call(request, name=name).async_exec() for request in requests for name in ("", "second")]
            return [answer(response) for response in (await asyncio.gather(*asked))[::2]]
    """,
    "through": """
        def execute(self, requests):
            return [answer(call(request, "blocking").exec()) for request in requests]
    """,
    "last": """
        def execute(self, requests):
            threading.Thread(target=note_when_cancelled, args=requests, daemon=True).start()
            end = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
            return [answer(call(request, correlation_id=7, flags=end).exec()) for request in requests]
    """,
    "together": """
        def execute(self, requests):
            for request in requests:
                threading.Thread(target=note_when_cancelled, args=(request,), daemon=True).start()
            response = call(requests[0], name="shared").exec()
            return [answer(response) for request in requests]
    """,
    "streaming": """
        async def execute(self, requests):
            async def stream(request):
                async for response in await call(request).async_exec(decoupled=True):
                    request.get_response_sender().send(answer(response))
                request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            await asyncio.gather(*map(stream, requests))
    """,
    "threaded": """
        def execute(self, requests):
            for request in requests:
                threading.Thread(target=self.run, args=(call(request), request.get_response_sender())).start()

        def run(self, inference, sender):
            for response in inference.exec(decoupled=True):
                sender.send(answer(response))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """,
}
EXTRA = {"together": PAIRS, "streaming": DECOUPLED, "threaded": DECOUPLED}
ONE_AT_A_TIME = ["blocking", "awaiting", "through", "streaming", "threaded"]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notes")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, notes: Path) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    head = 'name: "%s" backend: "python" max_batch_size: 2 ' + TENSORS
    groups = "instance_group [ { count: 2 kind: KIND_CPU } ]"
    python_model(models, "watcher", WATCHER.format(folder=str(notes)), head % "watcher" + groups)
    for name, body in CALLERS.items():
        source = CALLER.format(folder=str(notes)) + textwrap.indent(textwrap.dedent(body), "    ")
        python_model(models, name, source, head % name + EXTRA.get(name, ""))
    with ServerProcess(models) as running:
        yield running


@pytest.fixture
def noted(notes: Path) -> Iterator[Callable[[str], Path]]:
    """The path of a note; afterwards there is none, and whatever still waits goes on."""
    yield notes.joinpath
    for began in notes.glob("*.began"):
        began.with_suffix(".release").touch()
        wait_until(lambda: any(began.with_suffix(how).exists() for how in (".cancelled", ".released")), what=began.stem)  # noqa: B023
    for path in notes.iterdir():
        path.unlink()


def inputs(library: Any) -> list[Any]:
    wire = library.InferInput("INPUT0", [1, 1], "FP32")
    wire.set_data_from_numpy(np.ones((1, 1), np.float32))
    return [wire]


def appears(path: Path) -> None:
    wait_until(path.exists, what=path.name)


@pytest.mark.parametrize("model", ONE_AT_A_TIME)
def test_a_cancelled_grpc_stream_or_call_cancels_the_inner_request(server, noted, model):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        if model in ("streaming", "threaded"):
            client.start_stream(lambda result, error: None)
            client.async_stream_infer(model, inputs(tritonclient.grpc), request_id="g")
            appears(noted("g.began"))
            client.stop_stream(cancel_requests=True)
        else:
            call = client.async_infer(model, inputs(tritonclient.grpc), lambda result, error: None, request_id="g")
            appears(noted("g.began"))
            if model == "awaiting":
                appears(noted("second.began"))
            call.cancel()
        appears(noted("g.cancelled"))
    if model == "awaiting":
        appears(noted("second.cancelled"))


@pytest.mark.parametrize("model", ["blocking", "awaiting", "through"])
def test_a_closed_http_connection_cancels_the_inner_request(server, noted, model):
    async def leave() -> None:
        async with tritonclient.http.aio.InferenceServerClient(server.http) as client:
            task = asyncio.create_task(client.infer(model, inputs(tritonclient.http), request_id="h"))
            await asyncio.to_thread(appears, noted("h.began"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(leave())
    appears(noted("h.cancelled"))


def test_a_request_that_nobody_cancels_is_answered_through_all_models(server, noted):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        answers: list[Any] = []
        client.async_infer(
            "through", inputs(tritonclient.grpc), lambda result, error: answers.append((result, error)), request_id="n"
        )
        appears(noted("n.began"))
        noted("n.release").touch()
        [(result, error)] = wait_until(lambda: answers)
    assert error is None
    assert result.as_numpy("OUTPUT0") == 1
    assert not noted("n.cancelled").exists()


def test_what_several_requests_of_a_batch_wait_for_goes_on_until_the_last_is_cancelled(server, noted):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        first, second = (
            client.async_infer("together", inputs(tritonclient.grpc), lambda result, error: None, request_id=name)
            for name in ("first", "second")
        )
        appears(noted("shared.began"))
        first.cancel()
        appears(noted("first.left"))
        assert not noted("shared.cancelled").exists()
        second.cancel()
        appears(noted("shared.cancelled"))


def test_what_ends_a_sequence_is_carried_out_all_the_same(server, noted):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        call = client.async_infer("last", inputs(tritonclient.grpc), lambda result, error: None, request_id="e")
        appears(noted("e.began"))
        call.cancel()
        appears(noted("e.left"))
    noted("e.release").touch()
    appears(noted("e.released"))
    assert not noted("e.cancelled").exists()
