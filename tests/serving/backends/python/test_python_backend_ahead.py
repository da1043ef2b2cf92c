"""Batches that a model's process has before it has answered the one before: the event loop sends them ahead."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from serving.backends.channel.shared_memory import Segment
from serving.backends.channel.tensors import TensorWriter
from serving.backends.child import codec, results
from serving.backends.child import instance as child_instance
from serving.backends.child.instance import ChildInstance
from serving.core.batch import Batch
from serving.core.errors import Code, ServingError
from serving.core.response import InferenceResponse
from tests.serving.instances import IDENTITY, LOOP, execute, infer, instance_of, python_instance, request, written_model
from tests.support.serving_process import PATIENCE_S, kill_and_wait, wait_until

# An identity that waits in `execute` for a file of the request's name, and leaves one when it begins.
GATED = """
    import os
    import time
    from pathlib import Path
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            folder, name = Path(pb_utils.get_model_dir()).parent, requests[0].request_id()
            if name:
                (folder / f"{name}.begun").touch()
                while not (folder / f"{name}.open").exists():
                    time.sleep(0.002)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written_model(tmp_path, GATED)


@pytest.fixture
def instance(folder: Path) -> Iterator[ChildInstance]:
    with instance_of(folder) as made:
        assert isinstance(made, ChildInstance)
        yield made


def begin(instance: ChildInstance, value: float, id: str) -> "Future[Batch]":
    """Begin a batch of one request; the future gives it when it is done."""
    done: Future[Batch] = Future()
    batch = Batch([request(np.full((1, 1), value, np.float32), id=id)], 1)
    asyncio.run_coroutine_threadsafe(_begin(instance, batch, done), LOOP).result(PATIENCE_S)
    return done


async def _begin(instance: ChildInstance, batch: Batch, done: "Future[Batch]") -> None:
    instance.begin(batch, done.set_result)


def value_of(done: "Future[Batch]") -> float:
    [answer] = done.result(PATIENCE_S).responses
    assert isinstance(answer, InferenceResponse), answer
    return float(answer.outputs["OUTPUT0"].item())


def begun(folder: Path, id: str) -> None:
    wait_until((folder / f"{id}.begun").exists, what=f"the beginning of '{id}'")


def test_the_next_batches_are_sent_before_the_last_is_answered(instance, folder):
    first, second, *others = [begin(instance, index, name) for index, name in enumerate(("first", "second", "", ""))]
    begun(folder, "first")
    assert not first.done()
    assert len(instance._sent) == instance.slots == child_instance.SLOTS, "the process has all"
    (folder / "first.open").touch()
    begun(folder, "second")
    assert value_of(first) == 0
    assert not second.done()
    (folder / "second.open").touch()
    assert [value_of(done) for done in (second, *others)] == [1, 2, 3]


def test_a_batch_that_waits_in_the_process_is_not_counted_as_executing(instance, folder):
    first, second = begin(instance, 1, "first"), begin(instance, 2, "second")
    for name in ("first", "second"):
        (folder / f"{name}.open").touch()
    earlier, later = first.result(PATIENCE_S), second.result(PATIENCE_S)
    assert later.started_ns >= earlier.infer_done_ns
    assert later.started_ns <= later.input_done_ns <= later.infer_done_ns


def test_batches_that_a_dead_process_had_not_begun_are_executed_by_the_next(instance, folder):
    first, second = begin(instance, 1, "first"), begin(instance, 2, "second")
    begun(folder, "first")
    (folder / "second.open").touch()
    os.kill(instance.processes()[0], signal.SIGKILL)
    [failed] = first.result(PATIENCE_S).responses
    assert isinstance(failed, ServingError)
    assert failed.message == (
        "model 'model': the model's process was ended by signal SIGKILL during this request; it is being restarted"
    )
    assert value_of(second) == 2


def test_a_process_that_closes_its_connection_is_replaced(tmp_path):
    source = IDENTITY.replace(
        "return [", "__import__('os').closerange(3, 1 << 16) if requests[0].request_id() else 0\n            return ["
    )
    with python_instance(tmp_path, source) as instance:
        [failed] = execute(instance, request(np.ones((1, 1), np.float32), id="close"))
        assert failed.code is Code.INTERNAL
        assert infer(instance, np.ones((1, 1), np.float32))["OUTPUT0"] == 1


def test_a_batch_whose_message_is_longer_than_a_packet_goes_in_a_memory_file(tmp_path):
    """In both directions: 300 requests, and an exception of 100 kB."""
    source = IDENTITY.replace(
        "return [", "assert requests[0].request_id() != 'fail', 'x' * 100_000\n            return ["
    )
    with python_instance(tmp_path, source, max_batch_size=300) as instance:
        asked = [request(np.full((1, 1), value, np.float32), id=f"request {value}") for value in range(300)]
        answers = execute(instance, *asked)
        assert [answer.outputs["OUTPUT0"].item() for answer in answers] == list(range(300))
        [failed] = execute(instance, request(np.ones((1, 1), np.float32), id="fail"))
        assert "x" * 10_000 in failed.message


def test_a_batch_that_cannot_be_encoded_for_the_process_fails_alone(tmp_path):
    ones = np.ones((1, 1), np.float32)
    with python_instance(tmp_path, IDENTITY) as instance:
        infer(instance, ones)
        segments = len(instance._child.outputs._maps)
        for _ in range(5):
            with pytest.raises(TypeError, match="surrogates"):
                execute(instance, request(ones, id="\ud800"))
            assert infer(instance, ones)["OUTPUT0"] == 1
        assert len(instance._child.outputs._maps) == segments, "the process hears of what is free again all the same"
        assert not instance._child.calls.requests.find_all(None)


def test_large_inputs_are_copied_by_another_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(child_instance, "LOOP_BYTES", 1000)
    with python_instance(tmp_path, IDENTITY) as instance:
        large, small = np.random.default_rng(3).random((1, 1000)).astype(np.float32), np.ones((1, 1), np.float32)
        for array in (large, small, large.reshape(4, 250).T.reshape(1, 1000), large[:, ::2]):
            assert np.array_equal(infer(instance, array)["OUTPUT0"], array)


def test_many_strings_are_written_and_read_by_another_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(codec, "LOOP_STRINGS", 10)
    monkeypatch.setattr(results, "LOOP_STRING_BYTES", 100)
    tensors = [("INPUT0", "BYTES", [-1])], [("OUTPUT0", "BYTES", [-1])]
    with python_instance(tmp_path, IDENTITY, inputs=tensors[0], outputs=tensors[1]) as instance:
        for count in (1, 50, 2):
            array = np.array([[f"word {index}".encode() for index in range(count)]], np.object_)
            assert np.array_equal(infer(instance, array)["OUTPUT0"], array)


LIE = """
        def lie(self):
            import fcntl, gc, os, time
            from serving.backends.channel.packet_channel import PacketChannel
            file = os.memfd_create("x", os.MFD_ALLOW_SEALING)
            os.ftruncate(file, 200)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            channel = next(one for one in gc.get_objects() if isinstance(one, PacketChannel))
            channel.send([9, [{"outputs": [["OUTPUT0", "BYTES", [3], 0, 200]]}], []], [file])
            time.sleep(600)
"""


def test_a_process_that_answers_nonsense_in_many_strings_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "LOOP_STRING_BYTES", 100)
    source = IDENTITY.replace("return [", "requests[0].request_id() and self.lie()\n            return [") + LIE
    with python_instance(tmp_path, source, outputs=[("OUTPUT0", "BYTES", [-1])]) as instance:
        [failed] = execute(instance, request(np.ones((1, 1), np.float32), id="lie"))
        assert "broke the protocol: output 'OUTPUT0'" in failed.message
        assert infer(instance, np.ones((1, 1), np.float32))["OUTPUT0"] == 1


def test_the_end_of_a_process_during_a_large_copy_costs_no_request(tmp_path, monkeypatch):
    monkeypatch.setattr(child_instance, "LOOP_BYTES", 1000)
    fill, ended = Segment.fill, []

    def fill_slowly(segment: Segment, writer: TensorWriter) -> None:
        if not ended:
            child = instance._child
            ended.append(instance.processes()[0])
            kill_and_wait(ended[0])
            wait_until(lambda: instance._child is not child, what="the end of the process")
        fill(segment, writer)

    monkeypatch.setattr(Segment, "fill", fill_slowly)
    with python_instance(tmp_path, IDENTITY) as instance:
        large = np.ones((1, 1000), np.float32)
        assert np.array_equal(infer(instance, large)["OUTPUT0"], large)
        assert instance.processes() != ended
