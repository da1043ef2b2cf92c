"""Handlers that answer in several parts, by send_intermediate_predict_response."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from serving.core.errors import BackendFailed
from serving.server.inference_server import InferenceServer
from tests.serving.in_process import core
from tests.serving.requests import in_flight
from tests.serving.torchserve.handlers.driving import ask, strings
from tests.support.serving_process import PATIENCE_S
from tests.support.torchserve_archives import model

STREAMS = """
from ts.handler_utils.utils import send_intermediate_predict_response

def handle(data, context):
    if data is None:
        return None
    for part in range(2):
        answers = [f"{bytes(row['data']).decode()}{part}" for row in data]
        if answers[0].startswith("odd"):
            answers = answers[1:]
        send_intermediate_predict_response(answers, context.request_ids, "ok", 200, context)
    for index, row in enumerate(data):
        if row["data"] == b"alone":
            send_intermediate_predict_response(["alone"], {0: context.request_ids[index]}, "ok", 200, context)
        if row["data"] == b"strange":
            send_intermediate_predict_response(["x"], {0: "nobody's"}, "ok", 200, context)
    if bytes(data[0]["data"]) == b"raise":
        raise ValueError("boom")
    return ["last"] * len(data)
"""


def answers(server: InferenceServer, body: bytes) -> asyncio.Queue[Any]:
    """Ask for a stream, and return where its answers come: (answer, whether it is the last one)."""
    found: asyncio.Queue[Any] = asyncio.Queue()
    server.infer(
        in_flight("streams", {"data": strings([[body]])}, lambda answer, final: found.put_nowait((answer, final)))
    )
    return found


async def taken(found: asyncio.Queue[Any]) -> list[Any]:
    """Take answers up to the last one: texts, or the error."""
    texts: list[Any] = []
    final = False
    while not final:
        answer, final = await asyncio.wait_for(found.get(), PATIENCE_S)
        texts.append(answer if isinstance(answer, Exception) else answer.outputs["data"][0, 0])
    return texts


@pytest.mark.asyncio
async def test_every_request_of_a_batch_gets_its_own_parts_and_the_last_one(tmp_path: Path) -> None:
    model(tmp_path, "streams", handler=STREAMS, config={"batchSize": 2, "maxBatchDelay": 60_000})
    async with core(tmp_path, load_model=("streams",)) as server:
        one, two = answers(server, b"a"), answers(server, b"b")
        assert await taken(one) == [b"a0", b"a1", b"last"]
        assert await taken(two) == [b"b0", b"b1", b"last"]
        one, two = answers(server, b"c"), answers(server, b"alone")
        assert await taken(one) == [b"c0", b"c1", b"last"]
        assert await taken(two) == [b"alone0", b"alone1", b"alone", b"last"]


@pytest.mark.asyncio
async def test_a_failing_stream_ends_with_the_handlers_error_after_its_parts(tmp_path: Path) -> None:
    model(tmp_path, "streams", handler=STREAMS)
    async with core(tmp_path, load_model=("streams",)) as server:
        *parts, error = await taken(answers(server, b"raise"))
        (odd,) = await taken(answers(server, b"odd"))
        *_, strange = await taken(answers(server, b"strange"))
    assert parts == [b"raise0", b"raise1"]
    assert isinstance(error, BackendFailed)
    assert (error.status, error.reason) == (503, "Prediction failed")
    assert isinstance(odd, BackendFailed)
    assert odd.reason == "number of batch response mismatched"
    assert "a request that is not in the batch" in strange.message


@pytest.mark.asyncio
async def test_a_handler_configured_not_to_stream_is_refused_with_the_setting_to_change(tmp_path: Path) -> None:
    pbtxt = 'backend: "torchserve"\nmodel_transaction_policy { decoupled: false }\n'
    model(tmp_path, "streams", handler=STREAMS, pbtxt=pbtxt)
    async with core(tmp_path, load_model=("streams",)) as server:
        with pytest.raises(BackendFailed, match="decoupled: true"):
            await ask(server, "streams", b"")
