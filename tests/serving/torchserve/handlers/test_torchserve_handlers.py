"""Handlers as people write them for TorchServe: functions, service classes, their inputs and answers."""

import json
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from serving.core.errors import Code, ServingError
from serving.torchserve.apis.replies import describe
from tests.serving.in_process import core, response
from tests.serving.torchserve.handlers.driving import ask, send, strings
from tests.support.torchserve_archives import model

DESCRIBES = """
import os

def told(value):
    return [type(value).__name__, value if isinstance(value, (str, dict, list)) else None]

def handle(data, context):
    if data is None:
        return None
    return [
        {"parts": {name: told(value) for name, value in row.items()},
         "headers": context.get_all_request_header(index), "id": context.get_request_id(index)}
        for index, row in enumerate(data)
    ]
"""
ANSWERS = """
def handle(data, context):
    if data is None:
        return None
    return [eval(bytes(row["data"]).decode(), {"context": context}) for row in data]
"""


@pytest.mark.asyncio
async def test_parts_are_decoded_by_their_content_type_as_torchserve_does_it(tmp_path: Path) -> None:
    model(tmp_path, "describes", handler=DESCRIBES)
    async with core(tmp_path, load_model=("describes",)) as server:
        answer = await send(
            server,
            "describes",
            [
                ("body", "application/json; charset=utf-8", b'{"a": [1, 2.5]}'),
                ("text", "text/plain", "é".encode()),
                ("odd", "application/json", b"{"),
                ("lines", "application/jsonlines", b'{"a": 1}'),
                ("field", None, b"raw"),
                ("picture", "image/png", b"\x89PNG"),
            ],
            [("X-Own", "one"), ("Content-Type", "multipart/form-data"), ("explain", "True")],
        )
    said = json.loads(answer.outputs["data"][0, 0])
    assert said["parts"] == {
        "body": ["dict", {"a": [1, 2.5]}],
        "text": ["str", "é"],
        "odd": ["bytearray", None],
        "lines": ["bytearray", None],
        "field": ["bytearray", None],
        "picture": ["bytearray", None],
    }
    assert said["headers"] == {
        "X-Own": "one",
        "Content-Type": "multipart/form-data",
        "explain": "False",
        "url_path": "",
        "body": {"content-type": "application/json; charset=utf-8"},
        "text": {"content-type": "text/plain"},
        "odd": {"content-type": "application/json"},
        "lines": {"content-type": "application/jsonlines"},
        "field": {"content-type": ""},
        "picture": {"content-type": "image/png"},
    }
    assert "content_type" not in answer.parameters


@pytest.mark.asyncio
async def test_rows_of_the_v2_protocol_are_entries_of_the_handlers_list(tmp_path: Path) -> None:
    model(tmp_path, "describes", handler=DESCRIBES, config={"batchSize": 4})
    async with core(tmp_path, load_model=("describes",)) as server:
        answer = await response(server, "describes", {"data": strings([[b"1", b"2"], [b"3", b"4"]])}, id="mine")
        typed = json.loads(await ask(server, "describes", b"[1]", parameters={"content_type": "application/json"}))
    rows = [json.loads(row) for row in answer.outputs["data"][:, 0]]
    assert [list(row["parts"]) for row in rows] == [["data", "data1"]] * 2
    assert [row["id"] for row in rows] == ["mine", "mine"]
    assert typed["parts"] == {"data": ["list", [1]]}


@pytest.mark.asyncio
async def test_a_client_of_v2_may_name_its_parts_and_need_not(tmp_path: Path) -> None:
    reads_body = (
        "def handle(data, context):\n    return [bytes(row['body']) + bytes(row.get('body')) for row in data or []]\n"
    )
    model(tmp_path, "body", handler=reads_body, config={"batchSize": 4})
    model(tmp_path, "describes", handler=DESCRIBES, config={"batchSize": 4})
    named = {"torchserve_parts": '[["a", "application/json"], ["b", null]]', "torchserve_headers": '[["X-One", "1"]]'}
    async with core(tmp_path, load_model=("body", "describes")) as server:
        assert await ask(server, "body", b"x") == b"xx"
        answer = await response(server, "describes", {"data": strings([[b"1", b"2"], [b"3", b"4"]])}, parameters=named)
        for odd in (
            {"torchserve_parts": "{"},
            {"torchserve_parts": "[1]"},
            {"torchserve_headers": 5},
            {"content_type": True},
        ):
            assert json.loads(await ask(server, "describes", b"1", parameters=odd))["parts"] == {
                "data": ["bytearray", None]
            }
    rows = [json.loads(row) for row in answer.outputs["data"][:, 0]]
    assert [row["parts"]["a"][0] for row in rows] == ["int", "int"]
    assert {row["headers"]["X-One"] for row in rows} == {"1"}


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ("'text é'", "text é".encode()),
        ("b'raw'", b"raw"),
        ("bytearray(b'raw')", b"raw"),
        ("None", b"null"),
        ("{'a': [1, 2.5]}", b'{\n  "a": [\n    1,\n    2.5\n  ]\n}'),
        ("1e16", b"1e+16"),
    ],
)
@pytest.mark.asyncio
async def test_answers_become_the_bytes_that_torchserve_sends(value: str, body: bytes, serving_model: Any) -> None:
    assert await ask(serving_model, "answers", value.encode()) == body


@pytest.mark.asyncio
async def test_a_handler_sets_status_type_and_headers_of_an_answer(tmp_path: Path) -> None:
    code = """
        def handle(data, context):
            if data is not None:
                context.set_response_status(299, "Fine", 0)
                context.set_response_content_type(0, "image/png")
                context.set_response_header(0, "X-One", "1")
                return ["x"]
    """
    model(tmp_path, "says", handler=code)
    async with core(tmp_path, load_model=("says",)) as server:
        answer = await send(server, "says", [("body", None, b"")])
    assert answer.parameters == {
        "torchserve_status": 299,
        "torchserve_reason": "Fine",
        "content_type": "image/png",
        "torchserve_headers": '[["X-One", "1"]]',
    }


@pytest.mark.parametrize(
    ("body", "status", "reason", "sentence"),
    [
        ("raise ValueError('boom')", 503, "Prediction failed", "ValueError: boom (handler.py, line 3, in handle)"),
        ("raise RuntimeError('CUDA out of memory')", 507, "Out of resources", "CUDA out of memory"),
        ("raise MemoryError", 507, "Out of resources", "MemoryError"),
        ("from ts.utils.util import PredictionException; raise PredictionException('odd', 'x')", 500, "odd", "odd"),
        ("return {}", 503, "Invalid model predict output", "it returned dict"),
        ("return [1, 2]", 503, "number of batch response mismatched", "2 answers for 1 request"),
        ("return [object()]", 503, "Unsupported model output data type.", "object"),
        ("import os; os._exit(3)", 500, "Worker died.", "exit status 3"),
        ("raise SystemExit(4)", 500, "Worker died.", "exit status 4"),
        (
            "from ts.utils.util import PredictionException; raise PredictionException('no cat', 404)",
            404,
            "no cat",
            "no cat",
        ),
    ],
)
@pytest.mark.asyncio
async def test_a_handler_that_fails_is_reported_in_both_protocols_words(
    body: str, status: int, reason: str, sentence: str, tmp_path: Path
) -> None:
    model(tmp_path, "fails", handler=f"def handle(data, context):\n    if data is None: return\n    {body}\n")
    async with core(tmp_path, load_model=("fails",)) as server:
        with pytest.raises(ServingError) as raised:
            await ask(server, "fails", b"")
    error = raised.value
    described = describe(error)
    assert (described.status, described.message) == (status, reason)
    assert sentence in error.message
    assert "InvalidAnswer" not in error.message
    assert error.code is (Code.NOT_FOUND if status == 404 else Code.INTERNAL)


@pytest_asyncio.fixture
async def serving_model(tmp_path: Path) -> Any:
    model(tmp_path, "answers", handler=ANSWERS)
    async with core(tmp_path, load_model=("answers",)) as server:
        yield server
