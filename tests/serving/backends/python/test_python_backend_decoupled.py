"""Decoupled Python models: any number of responses, from any thread, at any time; errors, cancellation, crashes, unloading."""

import asyncio
import functools

import numpy as np
import pytest

from serving.backends.child.open_requests import WINDOW, ResponsePace
from serving.core.errors import Code, ServingError
from serving.core.response import InferenceResponse
from serving.core.response_flow import OVERHEAD, ResponseFlow
from tests.serving.gate import until
from tests.serving.in_process import core
from tests.serving.instances import written_model
from tests.serving.requests import in_flight
from tests.support.serving_process import PATIENCE_S, open_files

DECOUPLED = "model_transaction_policy { decoupled: true }"


def in_a_loop(test):
    """Run a coroutine function as a test, arguments and all."""

    @functools.wraps(test)
    def run(*arguments, **named):
        asyncio.run(test(*arguments, **named))

    return run


def decoupled(*lines: str, setup: str = "") -> str:
    """A model that runs `lines` in a thread for each request, after execute has returned; n is the input's number."""
    body = ("\n" + " " * 16).join(lines)
    return f"""
        import asyncio, gc, os, threading, time
        import numpy as np
        import triton_python_backend_utils as pb_utils

        FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

        def response(value):
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([[value]], np.float32))])

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    array = request.inputs()[0].as_numpy()
                    threading.Thread(target=self.answer, args=(request.get_response_sender(), array)).start()

            def answer(self, sender, array):
                {setup or "n = int(array[0, 0])"}
                {body}
    """


COUNT = decoupled("[sender.send(response(i)) for i in range(n)]; sender.send(flags=FINAL)")


class Stream:
    """The answers of one request, as they come."""

    def __init__(self, server, value: float, model: str = "model", **fields) -> None:
        self.answers: asyncio.Queue = asyncio.Queue()
        self.request = in_flight(
            model,
            {"INPUT0": np.full((1, 1), value, np.float32)},
            lambda *answer: self.answers.put_nowait(answer),
            **fields,
        )
        server.infer(self.request)

    async def next(self):
        answer, final = await asyncio.wait_for(self.answers.get(), PATIENCE_S)
        if isinstance(answer, ServingError):
            return answer, final
        return (None if answer is None else float(answer.outputs["OUTPUT0"][0, 0])), final

    async def all(self) -> list:
        found = []
        while not found or not found[-1][1]:
            found.append(await self.next())
        return found


@pytest.mark.parametrize("number", [0, 1, 200])
@in_a_loop
async def test_a_request_gets_as_many_responses_as_the_model_sends(tmp_path, number):
    written_model(tmp_path, COUNT, extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        answers = await Stream(server, number).all()
        assert answers == [(float(i), False) for i in range(number)] + [(None, True)]
        [statistics] = server.statistics()
        assert (statistics.success.count, statistics.status.in_flight) == (1, 0)


@in_a_loop
async def test_the_flag_may_come_with_the_last_response(tmp_path):
    written_model(tmp_path, decoupled("sender.send(response(n), FINAL)"), extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        assert await Stream(server, 7).all() == [(7.0, True)]


@in_a_loop
async def test_inputs_stay_the_same_while_later_requests_run(tmp_path):
    """A sender's thread reads its inputs after the segment they came in was used again."""
    source = decoupled(
        "n = int(array[0, 0]); sender.send(response(n), FINAL)", setup="time.sleep(0.05 if array[0, 0] < 5 else 0)"
    )
    written_model(tmp_path, source, extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        streams = [Stream(server, value) for value in range(10)]
        assert [await stream.all() for stream in streams] == [[(float(value), True)] for value in range(10)]


@in_a_loop
async def test_large_responses_arrive_whole(tmp_path):
    big = "big = np.full((1, 3_000_000), n, np.float32)"
    body = "sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', big)]), FINAL)"
    written_model(tmp_path, decoupled(big, body), extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        stream = Stream(server, 3)
        answer, final = await asyncio.wait_for(stream.answers.get(), PATIENCE_S)
        assert isinstance(answer, InferenceResponse)
        assert final
        assert answer.outputs["OUTPUT0"].shape == (1, 3_000_000)
        assert (answer.outputs["OUTPUT0"] == 3).all()


@in_a_loop
async def test_an_error_is_one_response_and_the_stream_goes_on(tmp_path):
    error = "error = pb_utils.TritonError('no', pb_utils.TritonError.NOT_FOUND)"
    lines = error, "sender.send(pb_utils.InferenceResponse(error=error))", "sender.send(response(1), FINAL)"
    written_model(tmp_path, decoupled(*lines), extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        (error, first_final), last = await Stream(server, 1).all()
        assert (error.code, error.message, first_final) == (Code.NOT_FOUND, "no", False)
        assert last == (1.0, True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            COUNT.replace(
                "for request in requests:", "raise ValueError('bad'); [].sort()\n                for request in []:"
            ),
            "ValueError: bad",
        ),
        (
            COUNT.replace(
                "args=(request.get_response_sender(), array)).start()",
                "args=(1, array))\n                return [None]",
            ),
            "must return None",
        ),
        (decoupled("del sender; gc.collect()"), "dropped the request's response sender"),
    ],
)
@in_a_loop
async def test_a_request_that_the_model_does_not_answer_fails(tmp_path, source, expected):
    written_model(tmp_path, source, extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        [(error, final)] = await Stream(server, 1).all()
        assert final
        assert expected in error.message
        assert error.code is Code.INTERNAL


ENDS_AND_FAILS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                array = request.inputs()[0].as_numpy()
                sender = request.get_response_sender()
                final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if array[0, 0] else 0
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]), final)
            raise ValueError("afterwards")
"""


@in_a_loop
async def test_responses_sent_before_execute_fails_come_before_its_error(tmp_path):
    written_model(tmp_path, ENDS_AND_FAILS, extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        for _ in range(20):
            assert await Stream(server, 1).all() == [(1.0, True)]
            first, (error, final) = await Stream(server, 0).all()
            assert first == (0.0, False)
            assert final
            assert "ValueError: afterwards" in error.message


@in_a_loop
async def test_coroutines_of_several_batches_run_side_by_side(tmp_path):
    source = """
        import asyncio
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.senders = {}

            async def execute(self, requests):
                for request in requests:
                    n = int(request.inputs()[0].as_numpy()[0, 0])
                    if n < 0:
                        raise ValueError("negative")
                    self.senders[n] = sender = request.get_response_sender()
                    while len(self.senders) < 2:
                        await asyncio.sleep(0.01)
                    out = pb_utils.Tensor("OUTPUT0", np.array([[n]], np.float32))
                    sender.send(pb_utils.InferenceResponse([out]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    written_model(tmp_path, source, extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        first = Stream(server, 1)
        [(error, _)] = await Stream(server, -1).all()
        assert "ValueError: negative" in error.message
        assert await Stream(server, 2).all() == [(2.0, True)]
        assert await first.all() == [(1.0, True)]


@in_a_loop
async def test_the_model_learns_that_the_client_has_gone(tmp_path):
    seen = tmp_path / "seen"
    wait = "while not sender.is_cancelled(): time.sleep(0.01)"
    lines = "sender.send(response(1))", wait, f"open({str(seen)!r}, 'w').close()", "sender.send(flags=FINAL)"
    written_model(tmp_path / "models", decoupled(*lines), extra=DECOUPLED)
    async with core(tmp_path / "models", load_model=("model",)) as server:
        stream = Stream(server, 1)
        assert await stream.next() == (1.0, False)
        stream.request.cancel()
        error, final = await stream.next()
        assert (error.code, final) == (Code.CANCELLED, True)
        await until(seen.exists, "the model's noticing")


@in_a_loop
async def test_a_crash_fails_the_open_requests_and_the_next_one_is_served(tmp_path):
    crash = "if n == 13: time.sleep(0.2); os._exit(3)"
    lines = "sender.send(response(n))", crash, "time.sleep(600 if n < 0 else 0)", "sender.send(flags=FINAL)"
    written_model(tmp_path, decoupled(*lines), extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        waiting = Stream(server, -1)
        assert await waiting.next() == (-1.0, False)
        crashing = Stream(server, 13)
        assert await crashing.next() == (13.0, False)
        for stream in (crashing, waiting):
            error, final = await stream.next()
            assert final
            assert "ended with exit status 3 before this request's final response" in error.message
        assert await Stream(server, 1).all() == [(1.0, False), (None, True)]


@in_a_loop
async def test_unloading_waits_for_the_open_senders(tmp_path):
    gate = tmp_path / "gate"
    wait = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    lines = "sender.send(response(1))", wait, "sender.send(response(2), FINAL)"
    written_model(tmp_path / "models", decoupled(*lines), extra=DECOUPLED)
    async with core(tmp_path / "models", load_model=("model",)) as server:
        stream = Stream(server, 1)
        assert await stream.next() == (1.0, False)
        await server.unload_model("model")
        [statistics] = server.statistics()
        assert statistics.status.in_flight == 1
        gate.touch()
        assert await stream.next() == (2.0, True)


@in_a_loop
async def test_no_descriptor_and_no_entry_stays_after_many_streams(tmp_path):
    written_model(tmp_path, COUNT, extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        await Stream(server, 3).all()
        before = open_files()
        for _ in range(20):
            await Stream(server, 30).all()
        await until(lambda: open_files() <= before, "the end of every descriptor")


async def unread(server, count: int) -> tuple[Stream, ResponseFlow, int]:
    """A request whose client takes nothing, once the model waits for it; how many responses it has sent."""
    flow = ResponseFlow(max_wait_s=1e6)
    stream = Stream(server, count, flow=flow)
    sent = -(-WINDOW // (OVERHEAD + 4))
    await until(lambda: stream.answers.qsize() == sent)
    return stream, flow, sent


@in_a_loop
async def test_a_client_that_does_not_read_holds_up_no_other_client(tmp_path):
    written_model(tmp_path, COUNT, extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        slow, flow, sent = await unread(server, 2000)
        assert len(await Stream(server, 300).all()) == 301
        assert slow.answers.qsize() == sent
        for number in range(2000):
            answer, final = await asyncio.wait_for(slow.answers.get(), PATIENCE_S)
            assert (float(answer.outputs["OUTPUT0"][0, 0]), final) == (float(number), False)
            flow.note_taken(answer.size)
        assert await slow.next() == (None, True)


@in_a_loop
async def test_a_model_that_waits_for_a_client_goes_on_when_that_has_gone(tmp_path):
    written_model(tmp_path, COUNT, extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        slow, flow, _ = await unread(server, 2000)
        flow.close()
        assert len(await slow.all()) == 2001
        slow, _, sent = await unread(server, 2000)
        slow.request.cancel()
        assert len(await slow.all()) == sent + 1
        assert len(await Stream(server, 300).all()) == 301


@in_a_loop
async def test_a_client_that_never_reads_gets_an_error_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(ResponsePace, "limits", (WINDOW, OVERHEAD, 0.2))
    written_model(tmp_path, COUNT, extra=DECOUPLED)
    async with core(tmp_path, load_model=("model",)) as server:
        answers = await Stream(server, 2000, flow=ResponseFlow()).all()
        assert answers[-1][0].code is Code.UNAVAILABLE
        assert "took no response for too long" in answers[-1][0].message
        assert await Stream(server, 2).all() == [(0.0, False), (1.0, False), (None, True)]
