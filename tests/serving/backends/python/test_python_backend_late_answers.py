"""A model that is not decoupled answers through a response sender, from a thread, after `execute` has returned."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from tests.serving.in_process import core, infer
from tests.serving.instances import written_model
from tests.serving.requests import in_flight
from tests.support.serving_process import PATIENCE_S, new_descendants, wait_until

pytestmark = pytest.mark.asyncio

# What a request wants is its number: answered late, at once (returned), at once (sent), dropped, or wrongly.
SOURCE = """
    import pathlib
    import threading
    import time
    import triton_python_backend_utils as pb_utils

    FOLDER = pathlib.Path({folder!r})
    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    LATE, RETURNED, SENT, DROPPED, BOTH, TWICE, EMPTY = range(7)

    def late(sender, array):
        (FOLDER / "open").touch()
        while not (FOLDER / "go").exists() and not sender.is_cancelled():
            time.sleep(0.02)
        if sender.is_cancelled():
            (FOLDER / "cancelled").touch()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        sender.send(flags=FINAL)
        try:
            sender.send(flags=FINAL)
        except pb_utils.TritonModelException:
            (FOLDER / "closed").touch()

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy().copy()
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
                kind = int(array[0, 0])
                answers.append(response if kind in (RETURNED, BOTH) else None)
                if kind == RETURNED:
                    continue
                sender = request.get_response_sender()
                if kind == LATE:
                    threading.Thread(target=late, args=(sender, array), daemon=True).start()
                elif kind == EMPTY:
                    sender.send(flags=FINAL)
                elif kind != DROPPED:
                    for _ in range(2 if kind == TWICE else 1):
                        sender.send(response, flags=0 if kind == TWICE else FINAL)
                del sender
            return answers if any(answers) else None
"""
LATE, RETURNED, SENT, DROPPED, BOTH, TWICE, EMPTY = range(7)
PAIRS = "dynamic_batching { preferred_batch_size: [2] max_queue_delay_microseconds: 60000000 }"


def model(folder: Path, extra: str = "") -> None:
    written_model(folder, SOURCE.format(folder=str(folder)), extra=extra)


async def ask(server: Any, kind: int) -> float:
    return float((await infer(server, "model", {"INPUT0": np.full((1, 1), kind, np.float32)}))["OUTPUT0"][0, 0])


async def until(path: Path) -> None:
    await asyncio.to_thread(wait_until, path.exists, what=path.name)


async def test_a_thread_answers_later_and_others_are_answered_meanwhile(tmp_path: Path) -> None:
    model(tmp_path)
    async with core(tmp_path) as server:
        await server.load_model("model")
        waiting = [asyncio.create_task(ask(server, LATE)) for _ in range(3)]
        await until(tmp_path / "open")
        assert [await ask(server, kind) for kind in (RETURNED, SENT)] == [RETURNED, SENT]
        assert not any(task.done() for task in waiting)
        (tmp_path / "go").touch()
        assert await asyncio.gather(*waiting) == [LATE] * 3
        await until(tmp_path / "closed")
        [row] = server.model_statistics("model").model_stats
        assert (row.inference_stats.success.count, row.inference_stats.fail.count, row.inference_count) == (5, 0, 5)


async def test_one_of_a_batch_is_answered_later(tmp_path: Path) -> None:
    model(tmp_path, PAIRS)
    async with core(tmp_path) as server:
        await server.load_model("model")
        late, now = (asyncio.create_task(ask(server, kind)) for kind in (LATE, RETURNED))
        assert await now == RETURNED
        assert not late.done()
        (tmp_path / "go").touch()
        assert await late == LATE


async def test_a_sender_that_is_let_go_without_an_answer_fails_the_request(tmp_path: Path) -> None:
    model(tmp_path)
    async with core(tmp_path) as server:
        await server.load_model("model")
        with pytest.raises(ServingError, match="dropped the request's response sender without the final flag"):
            await ask(server, DROPPED)
        assert await ask(server, RETURNED) == RETURNED


async def test_an_end_without_an_answer_fails_the_request(tmp_path: Path) -> None:
    model(tmp_path)
    async with core(tmp_path) as server:
        await server.load_model("model")
        with pytest.raises(
            ServingError, match="Non-decoupled model cannot send complete final before sending a response"
        ):
            await ask(server, EMPTY)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (BOTH, "execute must return None for a request that its sender has answered"),
        (TWICE, "sends exactly one response for each request"),
    ],
)
async def test_the_first_answer_counts_and_the_others_of_the_batch_get_the_error(
    tmp_path: Path, kind: int, expected: str
) -> None:
    model(tmp_path, PAIRS)
    async with core(tmp_path) as server:
        await server.load_model("model")
        twice, other = (asyncio.create_task(ask(server, asked)) for asked in (kind, RETURNED))
        assert await twice == kind
        with pytest.raises(ServingError, match=expected):
            await other


async def test_the_end_of_the_process_fails_open_requests_and_the_next_request_is_served(tmp_path: Path) -> None:
    model(tmp_path)
    async with core(tmp_path) as server:
        await server.load_model("model")
        late = asyncio.create_task(ask(server, LATE))
        await until(tmp_path / "open")
        assert await ask(server, RETURNED) == RETURNED
        [process] = new_descendants()
        os.kill(process, signal.SIGKILL)
        with pytest.raises(ServingError, match="SIGKILL before this request's final response"):
            await late
        assert await ask(server, RETURNED) == RETURNED


async def test_a_cancelled_request_is_seen_by_its_sender_and_unloading_waits_for_the_others(tmp_path: Path) -> None:
    model(tmp_path)
    async with core(tmp_path) as server:
        await server.load_model("model")
        answers: asyncio.Queue[Any] = asyncio.Queue()
        x = {"INPUT0": np.zeros((1, 1), np.float32)}
        gone = in_flight("model", x, lambda answer, final: answers.put_nowait(answer))
        server.infer(gone)
        await until(tmp_path / "open")
        gone.cancel()
        assert (await asyncio.wait_for(answers.get(), PATIENCE_S)).code is Code.CANCELLED
        await until(tmp_path / "cancelled")
        late = asyncio.create_task(ask(server, LATE))
        assert await ask(server, RETURNED) == RETURNED
        await server.unload_model("model")
        (tmp_path / "go").touch()
        assert await late == LATE
