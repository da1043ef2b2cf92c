"""A model behind JSON over HTTP, as a FastAPI application serves it: templates, batches, and all of its failures."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repository.config.traffic import Remote
from serving.core.errors import Code, ServingError
from serving.core.response import InferenceResponse
from serving.resources.request_memory import RequestMemory
from serving.traffic.remotes.remote_model import RemoteModel
from tests.serving.requests import in_flight
from tests.serving.traffic.remotes.asking import ask, config, remote_model
from tests.serving.traffic.remotes.services import Received, service
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.asyncio

MODEL = config(
    'name: "m" max_batch_size: 8 input { name: "input" data_type: TYPE_FP32 dims: 3 } '
    'output { name: "sum" data_type: TYPE_FP32 dims: 1 } output { name: "label" data_type: TYPE_STRING dims: 1 }'
)
ROWS = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
REQUEST = {"features": "$input[row]", "first": "$input[row][0]", "kind": "plain"}
RESPONSE = {"sum": "result.sum", "label": "result.labels.0"}


def fastapi(received: Received) -> Any:
    """A service such as a team writes in a weekend: one row in, one result out."""
    total = sum(received.json["features"])
    return {"result": {"sum": total, "labels": [f"sum of {total:g}"]}}


def model_at(folder: Path, url: str, memory: RequestMemory | None = None, **fields: Any) -> RemoteModel:
    listed = fields.pop("listed", {})
    remote = Remote(f"{url}/predict", "json", **({"request": REQUEST, "response": RESPONSE} | fields))
    return remote_model(folder, remote, MODEL, memory, **listed)


async def failure(model: RemoteModel) -> ServingError:
    with pytest.raises(ServingError) as caught:
        await ask(model, {"input": ROWS[:1]})
    return caught.value


async def test_each_row_of_a_request_is_one_call_whose_answers_are_put_together(tmp_path: Path) -> None:
    with service(fastapi) as other:
        model = model_at(tmp_path, other.url, version="7", listed={"headers": {"Authorization": "Bearer x"}})
        answer = await ask(model, {"input": ROWS}, id="r")
        assert answer.outputs["sum"].tolist() == [[6.0], [15.0]]
        assert answer.outputs["sum"].dtype == np.float32
        assert answer.outputs["label"].tolist() == [[b"sum of 6"], [b"sum of 15"]]
        assert (answer.id, answer.model_version) == ("r", 7)
        calls = sorted((one.json for one in other.received), key=lambda body: body["first"])
        assert calls == [
            {"features": [1.0, 2.0, 3.0], "first": 1.0, "kind": "plain"},
            {"features": [4.0, 5.0, 6.0], "first": 4.0, "kind": "plain"},
        ]
        assert {one.path for one in other.received} == {"/predict"}
        assert {one.headers["authorization"] for one in other.received} == {"Bearer x"}
        await model.drain()


async def test_a_template_without_rows_sends_the_whole_batch(tmp_path: Path) -> None:
    with service(lambda received: [sum(row) for row in received.json["instances"]]) as other:
        model = model_at(tmp_path, other.url, request={"instances": "$input"}, response={"sum": "$"})
        answer = await ask(model, {"input": ROWS})
        assert {name: one.tolist() for name, one in answer.outputs.items()} == {"sum": [[6.0], [15.0]]}
        assert [one.json for one in other.received] == [{"instances": ROWS.tolist()}]
        await model.drain()


async def test_connections_are_kept_and_one_that_was_closed_meanwhile_is_replaced(tmp_path: Path) -> None:
    closing = threading.Event()

    def respond(received: Received) -> Any:
        return (
            (200, {"Connection": "close"}, b'{"result": {"sum": 1, "labels": ["x"]}}')
            if closing.is_set()
            else fastapi(received)
        )

    with service(respond) as other:
        model = model_at(tmp_path, other.url)
        for _ in range(3):
            await ask(model, {"input": ROWS[:1]})
        assert len({one.client for one in other.received}) == 1
        closing.set()
        for _ in range(3):
            await ask(model, {"input": ROWS[:1]})
        assert len({one.client for one in other.received}) == 3
        await model.drain()


@pytest.mark.parametrize(
    ("status", "headers", "body", "code", "said"),
    [
        (500, {}, b'{"detail": "out of\\n cheese"}', Code.INTERNAL, "HTTP 500: out of cheese"),
        (
            422,
            {},
            b'{"detail": [{"loc": ["features"]}]}',
            Code.INVALID_ARG,
            'HTTP 422: {"detail":[{"loc":["features"]}]}',
        ),
        (503, {}, b"<html>", Code.UNAVAILABLE, "answered with HTTP 503"),
        (404, {}, b'{"detail": "Not Found"}', Code.UNAVAILABLE, "HTTP 404: Not Found"),
        (401, {}, b"{}", Code.UNAVAILABLE, "denies permission: list the needed headers in --traffic-remotes"),
        (
            307,
            {"Location": "http://127.0.0.1:1/admin"},
            b"",
            Code.UNAVAILABLE,
            "redirect (HTTP 307), which is not followed",
        ),
        (200, {}, b"not json", Code.INTERNAL, "answered with content that is not JSON"),
        (200, {}, b'{"result": {}}', Code.INTERNAL, "JSON without the outputs at the paths in 'response'"),
        (200, {}, b'{"result": {"sum": "many", "labels": ["x"]}}', Code.INTERNAL, "JSON without the outputs at"),
        (
            200,
            {},
            b'{"result": {"sum": [1, 2], "labels": ["x"]}}',
            Code.INTERNAL,
            "does not answer as model 'm' declares: output 'sum' came as FP32 [1, 2], expected FP32 [1, 1]",
        ),
    ],
)
async def test_a_wrong_answer_of_a_service_is_one_sentence_that_names_it(
    tmp_path: Path, status: int, headers: dict[str, str], body: bytes, code: Code, said: str
) -> None:
    with service(lambda received: (status, headers, body)) as other:
        model = model_at(tmp_path, other.url)
        error = await failure(model)
        assert (error.code, said in error.message, f"the server at {other.url}/predict" in error.message) == (
            code,
            True,
            True,
        )
        assert len(other.received) == 1
        await model.drain()


async def test_a_service_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with service(fastapi) as other:
        pass
    model = model_at(tmp_path, other.url)
    error = await failure(model)
    assert error.code is Code.UNAVAILABLE
    assert "cannot be reached" in error.message
    await model.drain()


async def test_a_service_that_hangs_is_given_up_and_bounded_and_gives_its_memory_back(tmp_path: Path) -> None:
    going_on = threading.Event()

    def hang(received: Received) -> Any:
        going_on.wait(PATIENCE_S)
        return fastapi(received)

    memory = RequestMemory(1 << 20)
    with service(hang) as other:
        model = model_at(tmp_path, other.url, memory, timeout_s=0.05)
        error = await failure(model)
        assert error.code is Code.UNAVAILABLE
        assert "has not answered within 0.05 s" in error.message
        assert (model.in_flight, memory.taken) == (0, 0)

        patient = model_at(tmp_path, other.url, memory, timeout_s=600)
        answers: list[Any] = []
        request = in_flight("m", {"input": ROWS}, lambda answer, final: answers.append(answer))
        patient.submit(request)
        request.cancel()
        assert [one.code for one in answers] == [Code.CANCELLED]
        patient.submit(in_flight("m", {"input": ROWS}, lambda answer, final: answers.append(answer)))
        draining = asyncio.ensure_future(patient.drain())
        await asyncio.sleep(0)
        with pytest.raises(ServingError, match="has no arm on the server"):
            patient.submit(in_flight("m", {"input": ROWS}))
        assert len(answers) == 1
        going_on.set()
        await draining
        assert isinstance(answers[1], InferenceResponse)
        await model.drain()


async def test_an_answer_larger_than_the_memory_for_requests_is_refused(tmp_path: Path) -> None:
    memory = RequestMemory(10_000)
    with service(lambda received: (200, {}, b" " * 100_000)) as other:
        model = model_at(tmp_path, other.url, memory)
        assert "--request-memory-limit" in (await failure(model)).message
        assert memory.taken == 0
        await model.drain()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"request": {"x": "$inputs"}},
            "'$inputs' in the template of the other server names no input; the model has input",
        ),
        ({"request": {"x": "$input[rows]"}}, "names no input"),
        ({"response": {"total": "x"}}, "names no output 'total'; the model has sum, label"),
    ],
)
async def test_a_template_that_does_not_fit_the_model_is_refused(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ServingError) as caught:
        model_at(tmp_path, "http://127.0.0.1:1", **fields)
    assert said in caught.value.message


async def test_wrong_requests_of_clients_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with service(fastapi) as other:
        model = model_at(tmp_path, other.url)
        with pytest.raises(ServingError) as caught:
            model.submit(in_flight("m", {"input": ROWS[:, :2]}))
        assert caught.value.code is Code.INVALID_ARG
        await asyncio.sleep(0)
        assert other.received == []
        await model.drain()
