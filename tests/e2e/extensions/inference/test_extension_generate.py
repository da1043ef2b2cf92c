"""The generate and generate_stream endpoints."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.text_generator import CORPUS, markov
from tests.serving.frontends.raw_http import RawClient, build
from tests.support.model_factory import onnx_scale, python_model, tensors_text
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

STREAM = "/v2/models/markov/generate_stream"
EVENTS = "text/event-stream; charset=utf-8"
ECHO = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(
                [pb_utils.Tensor("echo", request.inputs()[0].as_numpy()),
                 pb_utils.Tensor("numbers", np.arange(3, dtype=np.int32)),
                 pb_utils.Tensor("seen", np.array([request.parameters()], object))],
                parameters={"note": 7}) for request in requests]
"""
SHAPES = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(
                [pb_utils.Tensor(f"{name}_shape", np.array([list(tensor.as_numpy().shape)], np.int64))
                 for name, tensor in ((tensor.name(), tensor) for tensor in request.inputs())]) for request in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    markov(models)
    onnx_scale(models, "scale", 2.0)
    outputs = tensors_text("output", [("echo", "BYTES", [1]), ("numbers", "INT32", [3]), ("seen", "BYTES", [1])])
    text = f'name: "echo" backend: "python" {tensors_text("input", [("text_input", "BYTES", [1])])} {outputs}'
    python_model(models, "echo", ECHO, text)
    inputs = tensors_text(
        "input", [("fixed", "INT32", [2, 3]), ("free", "INT32", [-1]), ("mixed", "INT32", [-1, -1, 2])]
    )
    outputs = tensors_text("output", [(f"{name}_shape", "INT64", [-1]) for name in ("fixed", "free", "mixed")])
    python_model(models, "shapes", SHAPES, f'name: "shapes" backend: "python" max_batch_size: 8 {inputs} {outputs}')
    flags = [f"--load-model={name}" for name in ("markov", "scale", "echo", "shapes")]
    with ServerProcess(models, "--model-control-mode=explicit", *flags) as running:
        yield running


def events(server: ServerProcess, body: dict, model: str = "markov", status: int = 200) -> list[dict]:
    with httpx.stream(
        "POST", f"{server.http_url}/v2/models/{model}/generate_stream", json=body, timeout=PATIENCE_S
    ) as response:
        assert response.status_code == status
        assert response.headers["content-type"] == EVENTS
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines]


def test_generate_answers_with_one_object(server):
    body = {"id": "42", "text_input": "h\u00e9llo", "parameters": {"temperature": 0.5, "stream": False}, "extra": "x"}
    status, answer = server.post("/v2/models/echo/versions/1/generate", body)
    assert status == 200
    seen = json.loads(answer.pop("seen"))
    assert seen == {"temperature": 0.5, "stream": False, "extra": "x"}
    expected = {"id": "42", "model_name": "echo", "model_version": "1", "note": 7}
    assert answer == expected | {"echo": "h\u00e9llo", "numbers": [0, 1, 2]}


def test_generate_fills_numbers_of_a_batching_model(server):
    status, answer = server.post("/v2/models/scale/generate", {"INPUT0": 4})
    assert (status, answer["OUTPUT0"]) == (200, 8.0)


def test_a_list_fills_the_fixed_dims_then_the_innermost_variable_one(server):
    status, answer = server.post(
        "/v2/models/shapes/generate", {"fixed": list(range(6)), "free": [1, 2, 3], "mixed": [1, 2, 3, 4]}
    )
    assert status == 200
    assert (answer["fixed_shape"], answer["free_shape"], answer["mixed_shape"]) == ([1, 2, 3], [1, 3], [1, 1, 2, 2])


def test_generate_stream_gives_each_response_as_an_event(server):
    found = events(server, {"text_input": "the ", "max_tokens": 30, "parameters": {"seed": 5}})
    assert len(found) == 30
    assert set("".join(event["text_output"] for event in found)) <= set(CORPUS)
    assert found[0] | {"text_output": ""} == {"model_name": "markov", "model_version": "1", "text_output": ""}
    assert events(server, {"text_input": "the ", "max_tokens": 30, "seed": 5}) == found
    assert len(events(server, {"INPUT0": 1}, "scale")) == 1
    assert events(server, {"text_input": "a", "max_tokens": 0}) == []


def test_a_stream_comes_in_chunks_and_the_connection_stays(server):
    body = json.dumps({"text_input": "a", "max_tokens": 3}).encode()
    with RawClient(server.http) as raw:
        for _ in range(2):
            answer = raw.request("POST", STREAM, body)
            assert answer.headers["transfer-encoding"] == "chunked"
            assert "content-length" not in answer.headers
            assert answer.body.count(b"data: ") == 3
        raw.send(build("POST", STREAM, body) + build("GET", "/v2"))  # pipelined
        assert raw.answer().body.count(b"data: ") == 3
        assert raw.answer().json["name"] == "slipway"
        closing = raw.request("POST", STREAM, body, Connection="close")
        assert (closing.headers["connection"], closing.body.count(b"data: ")) == ("close", 3)
        assert raw.closed()


def test_for_an_old_client_the_end_of_the_connection_ends_the_stream(server):
    body = json.dumps({"text_input": "a", "max_tokens": 3}).encode()
    with RawClient(server.http) as raw:
        raw.send(build("POST", STREAM, body, Connection="keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = raw.answer(without_body=True)
        assert answer.headers["connection"] == "close"
        assert "transfer-encoding" not in answer.headers
        assert raw.file.read().count(b"data: ") == 3


def test_an_error_of_the_model_is_an_event_that_decides_on_the_status_where_it_is_the_first(server):
    assert events(server, {"text_input": "fail"}, status=400) == [{"error": "cannot continue this"}]
    first, second, last = events(server, {"text_input": "break"})
    assert "text_output" in first
    assert "text_output" in second
    assert "broke off" in last["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        ("markov/generate", {"text_input": "a"}, 400, "generate expects model to produce exactly 1 response"),
        (
            "markov/generate",
            {"text_input": "a", "max_tokens": 0},
            400,
            "generate expects model to produce exactly 1 response",
        ),
        ("markov/generate", {"text_input": "fail"}, 400, "cannot continue this"),
        ("markov/generate_stream", {}, 400, "text_input"),
        ("markov/generate_stream", {"text_input": "a", "max_tokens": "x"}, 400, "max_tokens"),
        (
            "markov/generate_stream",
            {"text_input": {"a": 1}},
            400,
            "attempt to access JSON non-string as string: input 'text_input'",
        ),
        ("markov/generate_stream", {"text_input": ["a", "b"]}, 400, "'text_input' of shape [1] cannot hold 2 elements"),
        ("markov/generate", {"text_input": "a", "other": [1]}, 400, "parameter 'other' has invalid type"),
        (
            "markov/generate",
            {"text_input": "a", "parameters": 3},
            400,
            "Expected JSON object for keyword: 'parameters'",
        ),
        ("markov/generate", {"text_input": "a", "id": 3}, 400, "'id' to be a string"),
        ("absent/generate_stream", {"text_input": "a"}, 404, "unknown model"),
    ],
)
def test_what_cannot_be_generated_is_refused_with_the_reason(server, path, body, status, expected):
    found, answer = server.post(f"/v2/models/{path}", body)
    assert found == status
    assert expected in answer["error"]


def test_a_client_that_goes_away_cancels_the_request(server):
    def failures() -> int:
        _, answer = server.get("/v2/models/markov/stats")
        return int(answer["model_stats"][0]["inference_stats"]["fail"]["count"])

    before = failures()
    body = {"text_input": "a", "max_tokens": 100_000_000}
    with httpx.stream("POST", f"{server.http_url}{STREAM}", json=body, timeout=PATIENCE_S) as response:
        assert next(response.iter_lines()).startswith("data: ")
    wait_until(lambda: failures() > before)
    assert len(events(server, {"text_input": "a", "max_tokens": 3})) == 3


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('{"text_input": "a", "text_input": "b"}', "text_input"),
        ('{"text_input": "a", "text_\\u0069nput": "b"}', "text_input"),
        ('{"text_input": "a", "note": 1, "note": 1}', "note"),
        ('{"text_input": "a", "parameters": {"note": 1, "note": 2}}', "note"),
        ('{"id": "a", "text_input": "a", "id": "b"}', "id"),
        ('{"text_input": "%s", "text_input": "b"}' % ("x" * 200_000), "text_input"),
    ],
    ids=["an input", "written in two ways", "a parameter", "among parameters", "id", "large"],
)
def test_a_name_that_is_given_twice_is_refused(server: ServerProcess, route: str, body: str, name: str) -> None:
    answer = httpx.post(f"{server.http_url}/v2/models/echo/{route}", content=body, timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert f"input '{name}' already exists in request" in answer.json()["error"]


def test_a_text_that_looks_like_names_is_no_name(server: ServerProcess) -> None:
    text = '{"a": 1, "a": 2, "text_input": "text_input": }'
    answer = httpx.post(f"{server.http_url}/v2/models/echo/generate", json={"text_input": text}, timeout=PATIENCE_S)
    assert answer.json()["echo"] == text
    deep = json.dumps({"text_input": "\\", "note": 1})[:-1] + ', "deep": ' + "[" * 990 + "]" * 990 + "}"
    assert httpx.post(f"{server.http_url}/v2/models/echo/generate", content=deep, timeout=PATIENCE_S).status_code == 400
