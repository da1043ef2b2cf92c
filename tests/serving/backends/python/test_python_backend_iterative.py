"""Iterative sequences: a Python model asks for a request again and again until it is done with it."""

import asyncio

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from tests.serving import instances
from tests.serving.in_process import core, infer
from tests.serving.instances import IDENTITY, python_instance, written_model
from tests.serving.requests import in_flight
from tests.support.serving_process import PATIENCE_S

ITERATIVE = "sequence_batching { iterative_sequence: true %s }"
DECOUPLED = "model_transaction_policy { decoupled: true }"
OLDEST = "oldest { max_candidate_sequences: 4 }"

STREAMING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.left = {}

        def execute(self, requests):
            for request in requests:
                left = self.left.pop(request.correlation_id(), None)
                if left is None:
                    left = int(request.inputs()[0].as_numpy()[0, 0])
                sender = request.get_response_sender()
                out = pb_utils.Tensor("OUTPUT0", np.array([[left]], np.float32))
                if left == 0:
                    sender.send(pb_utils.InferenceResponse([out]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                else:
                    self.left[request.correlation_id()] = left - 1
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    sender.send(pb_utils.InferenceResponse([out]))
"""
WHOLE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.seen = {}

        def execute(self, requests):
            responses = []
            for request in requests:
                name, wanted = request.correlation_id(), request.inputs()[0].as_numpy()[0, 0]
                seen = self.seen[name] = self.seen.get(name, 0) + 1
                if seen < wanted or wanted < 0:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    responses.append(None)
                else:
                    out = pb_utils.Tensor("OUTPUT0", np.array([[self.seen.pop(name)]], np.float32))
                    responses.append(pb_utils.InferenceResponse([out]))
            return responses
"""


def number(value: float) -> dict[str, np.ndarray]:
    return {"INPUT0": np.full((1, 1), value, np.float32)}


@pytest.mark.parametrize("strategy", ["direct {}", OLDEST])
def test_each_request_is_executed_until_the_model_answers_it(tmp_path, strategy):
    written_model(tmp_path, WHOLE, extra=ITERATIVE % strategy)

    async def run() -> None:
        async with core(tmp_path, load_model=("model",)) as server:
            asked = [infer(server, "model", number(value)) for value in (1, 5, 3, 1, 20, 2, 7, 4, 6)]
            answers = await asyncio.gather(*asked)
            assert [float(answer["OUTPUT0"][0, 0]) for answer in answers] == [1, 5, 3, 1, 20, 2, 7, 4, 6]
            [statistics] = server.statistics()
            assert (statistics.success.count, statistics.fail.count, statistics.status.in_flight) == (9, 0, 0)

    asyncio.run(run())


def test_a_decoupled_model_responds_in_every_iteration(tmp_path):
    written_model(tmp_path, STREAMING, extra=DECOUPLED + ITERATIVE % OLDEST)

    async def ask(server, value: int) -> list:
        answers: asyncio.Queue = asyncio.Queue()
        server.infer(in_flight("model", number(value), lambda *answer: answers.put_nowait(answer)))
        found = []
        while not found or not found[-1][1]:
            answer, final = await asyncio.wait_for(answers.get(), PATIENCE_S)
            found.append((float(answer.outputs["OUTPUT0"][0, 0]), final))
        return found

    async def run() -> None:
        async with core(tmp_path, load_model=("model",)) as server:
            for value, found in zip(range(6), await asyncio.gather(*(ask(server, n) for n in range(6))), strict=True):
                assert found == [(float(left), left == 0) for left in range(value, -1, -1)]

    asyncio.run(run())


def test_a_cancelled_request_is_not_executed_again(tmp_path):
    written_model(tmp_path, WHOLE, extra=ITERATIVE % "direct {}")

    async def run() -> None:
        async with core(tmp_path, load_model=("model",)) as server:
            answered: asyncio.Future = asyncio.get_running_loop().create_future()
            endless = in_flight("model", number(-1), lambda answer, final: answered.set_result(answer))
            server.infer(endless)
            await infer(server, "model", number(3))
            endless.cancel()
            assert (await answered).code is Code.CANCELLED
            [statistics] = server.statistics()
            assert statistics.status.in_flight == 0
            await infer(server, "model", number(3))
            assert [statistics.status.pending for statistics in server.statistics()] == [0]

    asyncio.run(run())


def test_a_request_that_comes_again_has_no_response_yet(tmp_path):
    source = IDENTITY.replace("return [", "[r.set_release_flags(2) for r in requests]\n            return [")
    extra = "sequence_batching { iterative_sequence: true }"
    with (
        python_instance(tmp_path, source, extra=extra) as instance,
        pytest.raises(ServingError, match="must return None for a request that it asks for again"),
    ):
        instances.infer(instance, np.ones((1, 1), np.float32))


def test_a_model_without_iterative_sequences_cannot_ask_again(tmp_path):
    written_model(tmp_path, WHOLE)

    async def run() -> None:
        async with core(tmp_path, load_model=("model",)) as server:
            with pytest.raises(ServingError, match="needs sequence_batching with iterative_sequence: true"):
                await infer(server, "model", number(3))

    asyncio.run(run())
