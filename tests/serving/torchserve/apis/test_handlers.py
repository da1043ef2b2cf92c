"""Handlers of real archives over TorchServe's inference API: the two together answer predictions."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving.torchserve.apis.messages import INFERENCE, PredictionResponse, PredictionsRequest
from tests.serving.frontends.raw_http import Answer, RawClient
from tests.serving.torchserve.apis.apis import Apis, apis
from tests.support.serving_process import PATIENCE_S, wait_until
from tests.support.torchserve_archives import model

ACTS = """
import os
import time

def handle(data, context):
    if data is None:
        return None
    answers = []
    for index, row in enumerate(data):
        act = row.get("body")
        if isinstance(act, dict) and "wait for" in act:
            while not os.path.exists(act["wait for"]):
                time.sleep(0.01)
        elif act == "raise":
            raise ValueError("oh no")
        elif act == "memory":
            raise MemoryError("no room")
        elif act == "short":
            return []
        elif act == "set":
            context.set_response_status(code=418, phrase="Teapot", idx=index)
            context.set_response_content_type(index, "text/html")
            context.set_response_header(index, "X-Mine", "1")
        elif act == "count":
            context.metrics.add_counter("Thoughts", 2, index)
        answers.append({name: [type(value).__name__, str(value)] for name, value in row.items()})
    return answers
"""


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apis]:
    repository = tmp_path_factory.mktemp("archives")
    settings = {"torchserve.metrics_mode": "prometheus", "torchserve.model_metrics_auto_detect": "true"}
    said = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in settings.items()
    )
    model(repository, "acts", handler=ACTS, version="2.0-rc", pbtxt=f'backend: "torchserve"\n{said}')
    model(repository, "hurried", handler=ACTS, config={"clientTimeoutInMills": 1000})
    streams = """
        from ts.handler_utils.utils import send_intermediate_predict_response
        def handle(data, context):
            if data is None:
                return None
            for number in range(2):
                send_intermediate_predict_response([f"{number},"], context.request_ids, "", 200, context)
            return ["end"]
        """
    model(repository, "streams", handler=streams)
    with apis(repository, model_metrics_auto_detect=True) as running:
        yield running


def predict(handlers: Apis, body: bytes, path: str = "/predictions/acts", kind: str = "text/plain") -> Answer:
    with RawClient(handlers.http) as client:
        return client.request("POST", path, body, content_type=kind)


def test_a_dict_is_indented_json_and_the_archives_own_version_is_named(handlers: Apis) -> None:
    for path in ("/predictions/acts", "/predictions/acts/2.0-rc"):
        answer = predict(handlers, b"abc", path)
        assert (answer.status, answer.body) == (200, b'{\n  "body": [\n    "str",\n    "abc"\n  ]\n}')
        assert "content-type" not in answer.headers
    assert predict(handlers, b"abc", "/predictions/acts/1").json["type"] == "ModelVersionNotFoundException"


def test_json_is_decoded_and_a_form_has_bytes(handlers: Apis) -> None:
    assert predict(handlers, b'{"a": 1}', kind="application/json; charset=utf-8").json["body"] == ["dict", "{'a': 1}"]
    assert predict(handlers, b"x=1", kind="application/x-www-form-urlencoded").json["x"][0] == "bytearray"


@pytest.mark.parametrize(
    ("act", "status", "message"),
    [
        (b"raise", 503, "Prediction failed"),
        (b"memory", 507, "Out of resources"),
        (b"short", 503, "number of batch response mismatched"),
    ],
)
def test_a_handler_that_fails_is_reported_in_torchserves_words(
    handlers: Apis, act: bytes, status: int, message: str
) -> None:
    answer = predict(handlers, act)
    assert (answer.status, answer.json["message"]) == (status, message)
    assert answer.json["type"] == "InternalServerException"


def test_a_handler_sets_status_reason_and_headers(handlers: Apis) -> None:
    with RawClient(handlers.http) as client:
        client.send(
            b"POST /predictions/acts HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nset"
        )
        assert client.file.readline() == b"HTTP/1.1 418 Teapot\r\n"
    answer = predict(handlers, b"set")
    assert (answer.headers["content-type"], answer.headers["x-mine"]) == ("text/html", "1")


def test_a_request_that_waits_longer_than_its_client_is_answered(handlers: Apis, tmp_path: Path) -> None:
    """clientTimeoutInMills: TorchServe drops it, and the client waits for ever."""
    answers: list[Answer] = []
    body = json.dumps({"wait for": str(tmp_path / "open")}).encode()

    def ask() -> None:
        answers.append(predict(handlers, body, "/predictions/hurried", "application/json"))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answers) == 2, what="the answers to those that wait behind the first")
    (tmp_path / "open").touch()
    for thread in threads:
        thread.join()
    assert sorted(answer.status for answer in answers) == [200, 503, 503]


def test_the_first_piece_of_a_handler_is_a_chunk_of_its_own(handlers: Apis) -> None:
    with RawClient(handlers.http) as client:
        client.send(b"POST /predictions/streams HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        while client.file.readline() != b"\r\n":
            pass
        assert [client.chunk() for _ in range(4)] == [b"0,", b"1,", b"end", b""]
    with grpc.insecure_channel(handlers.grpc) as channel:
        call = channel.unary_stream(f"/{INFERENCE}.InferenceAPIsService/StreamPredictions")
        message = PredictionsRequest(model_name="streams").SerializeToString()
        answers = [PredictionResponse.FromString(one).prediction for one in call(message, timeout=PATIENCE_S)]
    assert answers == [b"0,", b"1,", b"end"]


def test_counters_of_a_handler_are_on_the_page(handlers: Apis) -> None:
    predict(handlers, b"count")

    def shown() -> str:
        with RawClient(handlers.metrics) as client:
            return client.request("GET", "/metrics?name[]=Thoughts").body.decode()

    wait_until(lambda: re.search(r'^Thoughts\{.*ModelName="acts".*\} 2(\.0)?$', shown(), re.MULTILINE))
