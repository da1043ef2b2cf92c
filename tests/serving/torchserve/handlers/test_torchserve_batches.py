"""Batches and workers: which requests form a batch, how each learns of a failure, and how a worker is replaced."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from serving.core.errors import BackendFailed, ProcessDied
from serving.torchserve.apis.replies import describe
from tests.serving.in_process import core, response
from tests.serving.torchserve.handlers.driving import ask, strings
from tests.support.torchserve_archives import model

SIZES = """
import os, time

def handle(data, context):
    if data is None:
        return None
    bodies = [bytes(row["data"]) for row in data]
    if b"raise" in bodies:
        raise ValueError("boom")
    if b"hang" in bodies:
        time.sleep(600)
    if b"exit" in bodies:
        os._exit(9)
    print("a line of the handler's own")
    return [f"{len(data)} {os.getpid()}"] * len(data)
"""
WAITS = {"batchSize": 3, "maxBatchDelay": 60_000}


@pytest.mark.asyncio
async def test_requests_are_joined_up_to_the_archives_batch_size_whatever_parts_they_have(tmp_path: Path) -> None:
    model(tmp_path, "sizes", handler=SIZES, config=WAITS)
    async with core(tmp_path, load_model=("sizes",)) as server:
        one = response(server, "sizes", {"data": strings([[b"a"]])})
        two = response(server, "sizes", {"data": strings([[b"b", b"more"], [b"c", b"more"]])})
        answers = await asyncio.gather(one, two)
    assert [answer.outputs["data"].shape for answer in answers] == [(1, 1), (2, 1)]
    assert {value.split()[0] for answer in answers for value in answer.outputs["data"].ravel()} == {b"3"}


@pytest.mark.asyncio
async def test_one_exception_fails_its_whole_batch_and_no_other(tmp_path: Path) -> None:
    model(tmp_path, "sizes", handler=SIZES, config={**WAITS, "batchSize": 2})
    async with core(tmp_path, load_model=("sizes",)) as server:
        failed = await asyncio.gather(
            ask(server, "sizes", b"a"), ask(server, "sizes", b"raise"), return_exceptions=True
        )
        served = await asyncio.gather(ask(server, "sizes", b"a"), ask(server, "sizes", b"b"))
    assert [getattr(error, "reason", None) for error in failed] == ["Prediction failed"] * 2
    assert [answer.split()[0] for answer in served] == [b"2"] * 2


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"hang", b"exit"])
async def test_a_worker_that_hangs_or_ends_is_replaced_and_its_request_fails(body: bytes, tmp_path: Path) -> None:
    model(tmp_path, "sizes", handler=SIZES, config={"responseTimeout": 3})
    async with core(tmp_path, load_model=("sizes",)) as server:
        before = (await ask(server, "sizes", b"a")).split()[1]
        with pytest.raises(ProcessDied) as raised:
            await ask(server, "sizes", body)
        after = (await ask(server, "sizes", b"a")).split()[1]
    assert describe(raised.value)[:3] == (500, "InternalServerException", "Worker died.")
    assert ("torchserve.response_timeout_s" in raised.value.message) == (body == b"hang")
    assert before != after


@pytest.mark.asyncio
async def test_workers_run_side_by_side_and_a_handlers_output_is_in_the_models_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler = """
        import logging
        log = logging.getLogger(__name__)

        def handle(data, context):
            if data is not None:
                log.warning("two lines:\\nof the handler's own")
                raise ValueError("boom")
    """
    model(tmp_path, "sizes", handler=SIZES, config={"minWorkers": 2})
    model(tmp_path, "says", handler=handler)
    with caplog.at_level("INFO"):
        async with core(tmp_path, load_model=("sizes", "says")) as server:
            answers = await asyncio.gather(*(ask(server, "sizes", b"a") for _ in range(20)))
            with pytest.raises(BackendFailed):
                await ask(server, "says", b"")
    assert len({answer.split()[1] for answer in answers}) == 2
    said = {(record.levelname, record.getMessage()) for record in caplog.records}
    assert ("INFO", "sizes_0: a line of the handler's own") in {
        (level, text.replace("sizes_1", "sizes_0")) for level, text in said
    }
    assert ("WARNING", "says_0: two lines:\nof the handler's own") in said
    (traceback,) = [text for level, text in said if level == "ERROR"]
    assert "Traceback" in traceback
    assert 'raise ValueError("boom")' in traceback


@pytest.mark.asyncio
async def test_a_handler_that_floods_its_log_loses_lines_and_answers_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler = """
        def handle(data, context):
            for line in range(20_000 if data is not None else 0):
                print(line)
            return data and ["done"]
    """
    model(tmp_path, "floods", handler=handler)
    with caplog.at_level("INFO"):
        async with core(tmp_path, load_model=("floods",)) as server:
            assert await ask(server, "floods", b"") == b"done"
    said = [record.getMessage().removeprefix("floods_0: ") for record in caplog.records]
    kept = [text for text in said if text.isdigit()]
    left_out = sum(int(text.split()[0]) for text in said if "lines of its output were left out" in text)
    assert len(kept) >= 5000
    assert left_out > 0
    assert len(kept) + left_out == 20_000


@pytest.mark.asyncio
async def test_declared_tensors_are_arrays_by_name_row_by_row(tmp_path: Path) -> None:
    handler = """
        def handle(data, context):
            if data is not None:
                return [{"sum": row["a"] + row["b"], "text": str(row["a"].shape)} for row in data]
    """
    pbtxt = """
        backend: "torchserve"
        max_batch_size: 4
        input [ { name: "a" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "b" data_type: TYPE_INT64 dims: [ 2 ] } ]
        output [ { name: "sum" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
    """
    model(tmp_path, "sums", handler=handler, pbtxt=pbtxt)
    async with core(tmp_path, load_model=("sums",)) as server:
        inputs = {"a": np.array([[1, 2], [3, 4]], np.float32), "b": np.array([[10, 20], [30, 40]])}
        found = (await response(server, "sums", inputs)).outputs
    assert found["sum"].tolist() == [[11, 22], [33, 44]]
    assert found["text"].tolist() == [[b"(2,)"], [b"(2,)"]]


@pytest.mark.asyncio
async def test_a_declared_output_that_the_handler_does_not_answer_is_named(tmp_path: Path) -> None:
    handler = "def handle(data, context):\n    return [{'other': 1}] * len(data or [])\n"
    pbtxt = 'backend: "torchserve"\nmax_batch_size: 1\noutput [ { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    model(tmp_path, "sums", handler=handler, pbtxt=pbtxt)
    async with core(tmp_path, load_model=("sums",)) as server:
        with pytest.raises(BackendFailed, match="has no 'sum', which is a declared output"):
            await ask(server, "sums", json.dumps({}).encode())


@pytest.mark.asyncio
async def test_without_a_batch_dimension_a_request_is_one_entry_with_whole_tensors(tmp_path: Path) -> None:
    handler = """
        import torch

        def handle(data, context):
            if data is not None:
                return [torch.tensor(row["a"].astype("float32")).to(torch.bfloat16) * 2 for row in data]
    """
    pbtxt = """
        backend: "torchserve"
        input [ { name: "a" data_type: TYPE_INT32 dims: [ -1 ] } ]
        output [ { name: "b" data_type: TYPE_BF16 dims: [ -1 ] } ]
    """
    model(tmp_path, "plain", handler=handler, pbtxt=pbtxt)
    async with core(tmp_path, load_model=("plain",)) as server:
        found = (await response(server, "plain", {"a": np.array([1, 2, 3], np.int32)})).outputs["b"]
    assert found.astype(np.float32).tolist() == [2.0, 4.0, 6.0]
