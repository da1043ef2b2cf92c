"""The inputs that TorchServe's inference API gives a handler, and the answers that it sends."""

import json

import pytest

from serving.telemetry.statistics import ModelStatistics
from tests.serving.frontends.raw_http import Answer, RawClient
from tests.serving.torchserve.apis.apis import Apis
from tests.serving.torchserve.apis.conftest import MAX_REQUEST, MAX_RESPONSE
from tests.support.serving_process import wait_until

TEXT = {"content_type": "text/plain; charset=utf-8"}


def test_any_method_predicts_and_a_raw_body_is_the_part_body(client: RawClient) -> None:
    for method in ("POST", "GET", "PUT", "DELETE", "PATCH"):
        shown = client.request(method, "/predictions/acts", b"abc", **TEXT).json
        assert shown["parts"] == [["body", "text/plain", None, "abc"]]
        assert shown["explain"] is None
    assert client.request("GET", "/predictions/acts").json["parts"] == [["body", None, None, ""]]


def test_the_handler_gets_the_headers_as_sent_and_the_path_after_the_version(client: RawClient) -> None:
    client.send(
        b"POST /predictions/acts/1.0-beta/a/b%20c HTTP/1.1\r\nhost: x\r\nX-Mine: Q\r\nContent-Length: 2\r\n\r\nhi"
    )
    answer = client.answer()
    assert [pair for pair in answer.json["headers"] if pair[0] != "host"] == [
        ["X-Mine", "Q"],
        ["Content-Length", "2"],
        ["url_path", "a/b c"],
    ]
    assert answer.json["id"] == answer.headers["x-request-id"]


def test_a_request_for_an_explanation_is_marked(client: RawClient) -> None:
    for path in ("/explanations/acts", "/v1/models/acts:explain", "/v2/models/acts/explain"):
        assert client.request("POST", path, b"abc").json["explain"] is True


def test_a_form_has_parts_and_files_alone_have_a_type(client: RawClient) -> None:
    body = (
        b'--xx\r\nContent-Disposition: form-data; name="data"; filename="a b.json"\r\n'
        b"Content-Type: application/json; charset=utf-8\r\n\r\n{}\r\n--xx\r\n"
        b'Content-Disposition: form-data; name="field"\r\nContent-Type: text/plain\r\n\r\nv\r\nw\r\n--xx\r\n'
        b'Content-Disposition: form-data; name="raw"; filename="x"\r\n\r\n\xff\r\n--xx--\r\n'
    )
    answer = client.request("POST", "/predictions/acts", body, content_type='multipart/form-data; boundary="xx"')
    assert answer.json["parts"] == [
        ["data", "application/json", "a b.json", "{}"],
        ["field", None, None, "v\r\nw"],
        ["raw", "application/octet-stream", "x", "\u00ff"],
    ]
    longer = b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--xxy\r\n2\r\n--xx--'
    answer = client.request("POST", "/predictions/acts", longer, content_type="multipart/form-data; boundary=xx")
    assert answer.json["parts"] == [["a", None, None, "1\r\n--xxy\r\n2"]]
    encoded = client.request(
        "POST", "/predictions/acts", b"a=1+2&b=%C3%A9", content_type="application/x-www-form-urlencoded"
    )
    assert encoded.json["parts"] == [["a", None, None, "1 2"], ["b", None, None, "\u00c3\u00a9"]]


@pytest.mark.parametrize(
    "path", ["/acts/predict", "/acts/1.0-beta/predict", "/models/acts/invoke", "/invocations?model_name=acts"]
)
def test_the_older_routes_take_parts_of_the_query(client: RawClient, path: str) -> None:
    path += "&x=1" if "?" in path else "?x=1"
    parts = client.request("POST", path, b"abc", **TEXT).json["parts"]
    assert parts[-2:] == [["x", None, None, "1"], ["body", "text/plain", None, "abc"]]
    assert client.request("POST", "/predictions/acts?x=1", b"abc", **TEXT).json["parts"] == parts[-1:]


def test_a_form_may_name_the_model_and_an_alias_a_version(client: RawClient) -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    assert client.request("POST", "/invocations", b"model_name=acts&x=1", **form).json["parts"][1][:1] == ["x"]
    assert client.request("POST", "/predictions/acts/trial", b"raw").body == b"done"


def test_a_body_may_come_in_chunks_or_when_asked_for_and_stays_in_its_encoding(client: RawClient) -> None:
    start = b"POST /predictions/acts HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\n"
    client.send(start + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert client.answer().json["parts"] == [["body", "a/b", None, "abcde"]]
    client.send(start + b"expect: 100-continue\r\ncontent-length: 3\r\n\r\n")
    assert client.answer().status == 100
    client.send(b"abc")
    assert client.answer().json["parts"] == [["body", "a/b", None, "abc"]]
    client.send(start + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc")
    assert client.answer().json["parts"] == [["body", "a/b", None, "abc"]]


def test_answers_have_torchserves_headers_and_no_type_unless_the_handler_sets_one(client: RawClient) -> None:
    answer = client.request("POST", "/predictions/acts", b"raw")
    assert answer.body == b"done"
    assert answer.headers == {
        "x-request-id": answer.headers["x-request-id"],
        "access-control-allow-origin": "https://shop.example",
        "access-control-allow-methods": "GET, POST",
        "pragma": "no-cache",
        "cache-control": "no-cache; no-store, must-revalidate, private",
        "expires": "Thu, 01 Jan 1970 00:00:00 UTC",
        "content-length": "4",
    }
    again = client.request("POST", "/predictions/acts", b"zeros")
    assert again.body == b"\0a\0\0"
    assert len(again.headers["x-request-id"]) == 36
    assert again.headers["x-request-id"] != answer.headers["x-request-id"]


def set_by_handler(client: RawClient, **parameters: object) -> Answer:
    return client.request("POST", "/predictions/acts", b"set " + json.dumps(parameters).encode())


def test_a_handler_sets_status_reason_type_and_headers(client: RawClient) -> None:
    headers = json.dumps({"X-Mine": "1\r\nX-Not: 2", "Content-Length": "9", "bad name": "x", "Content-Type": "a/b"})
    answer = set_by_handler(client, content_type="c/d", torchserve_headers=headers, torchserve_status=302)
    assert (answer.status, answer.body) == (302, b"done")
    assert (answer.headers["x-mine"], answer.headers["content-type"]) == ("1 X-Not: 2", "a/b")
    assert answer.headers["content-length"] == "4"
    assert not {"x-not", "bad name"} & set(answer.headers)


def test_a_status_of_400_and_more_closes_the_connection(client: RawClient) -> None:
    assert set_by_handler(client, torchserve_status=599).status == 599
    assert client.closed()


def test_no_content_has_no_body_and_no_length(client: RawClient) -> None:
    answer = set_by_handler(client, torchserve_status=204, torchserve_reason="Nothing")
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers
    assert client.request("POST", "/predictions/acts", b"raw").body == b"done"


@pytest.mark.parametrize("parameters", [{"torchserve_status": 99}, {"torchserve_headers": "no JSON"}])
def test_values_that_no_answer_can_have_are_the_servers_error(client: RawClient, parameters: dict[str, object]) -> None:
    answer = set_by_handler(client, **parameters)
    assert (answer.status, answer.json["type"]) == (500, "InternalServerException")


def test_head_has_the_headers_alone_and_http_1_0_closes(client: RawClient) -> None:
    answer = client.request("HEAD", "/predictions/acts")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 0
    client.send(b"GET /predictions/acts HTTP/1.0\r\n\r\n")
    assert client.answer().headers["connection"] == "close"
    assert client.closed()


def test_pipelined_predictions_are_answered_in_order(client: RawClient) -> None:
    request = b"POST /predictions/%s HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n%s"
    client.send(b"".join(request % one for one in ((b"acts", b"raw"), (b"acts", b"abc"), (b"streams", b"a,b"))))
    first, second, third = (client.answer() for _ in range(3))
    assert (first.body, second.json["parts"][0][3], third.body) == (b"done", "abc", b"ab")


def test_pieces_of_a_handler_leave_as_chunks_as_they_come(client: RawClient) -> None:
    answer = client.request("POST", "/predictions/streams", b"one ,two,!")
    assert (answer.status, answer.body) == (200, b"one two!")
    assert answer.headers["transfer-encoding"] == "chunked"
    whole = client.request("POST", "/predictions/streams", b"only")
    assert (whole.body, whole.headers["content-length"]) == (b"only", "4")


def test_a_stream_that_fails_ends_before_its_end(client: RawClient) -> None:
    client.send(b"POST /predictions/streams HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\none,raise")
    while client.file.readline() != b"\r\n":
        pass
    assert client.chunk() == b"one"
    assert client.closed()


def test_a_stream_that_fails_at_once_is_an_error(client: RawClient) -> None:
    answer = client.request("POST", "/predictions/streams", b"raise")
    assert (answer.status, answer.json["message"]) == (500, "oh no")


def test_a_client_that_leaves_cancels_its_request(torchserve: Apis) -> None:
    def busy() -> ModelStatistics:
        return next(one for one in torchserve.server.statistics() if one.model_name == "busy")

    with RawClient(torchserve.http) as client:
        client.send(b"POST /predictions/busy HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nsleep 2.0")
        wait_until(lambda: busy().status.in_flight)
    wait_until(lambda: busy().failures.get("CANCELED"))


def test_a_full_queue_is_503(torchserve: Apis) -> None:
    clients = [RawClient(torchserve.http) for _ in range(12)]
    try:
        for client in clients:
            client.send(b"POST /predictions/busy HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nsleep 0.3")
        answers = [client.answer() for client in clients]
    finally:
        for client in clients:
            client.__exit__()
    assert {answer.status for answer in answers} == {200, 503}
    refused = next(answer for answer in answers if answer.status == 503)
    assert refused.json["type"] == "ServiceUnavailableException"


def test_a_body_that_is_too_large_is_413_and_an_answer_500(client: RawClient, torchserve: Apis) -> None:
    answer = client.request("POST", "/predictions/acts", b"x" * (MAX_REQUEST + 1))
    assert (answer.status, answer.json["code"]) == (413, 413)
    with RawClient(torchserve.http) as other:
        answer = other.request("POST", "/predictions/acts", b"size %d" % (MAX_RESPONSE + 1))
        assert (answer.status, "max_response_size" in answer.json["message"]) == (500, True)


def test_a_model_with_other_inputs_takes_them_by_name(client: RawClient) -> None:
    body = json.dumps({"INPUT0": [1, 2, 3, 4], "INPUT1": [1, 1, 1, 1]}).encode()
    for path in ("/predictions/add_sub", "/predictions/add_sub/1.0", "/predictions/add_sub/1"):
        assert client.request("POST", path, body).json["OUTPUT0"] == [2, 3, 4, 5]


def test_kserves_v2_answers_with_the_same_headers_on_the_same_port(client: RawClient) -> None:
    body = b'{"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1, 1], "data": ["raw"]}]}'
    answer = client.request("POST", "/v2/models/acts/infer", body)
    assert answer.json["outputs"][0]["data"] == ["done"]
    assert len(answer.headers["x-request-id"]) == 36
    assert answer.headers["access-control-allow-origin"] == "https://shop.example"
    assert client.request("GET", "/v2/health/live").json == {"live": True}
    assert client.request("GET", "/v1/models").json == {"models": ["acts", "add_sub", "busy", "streams"]}
    assert client.request("GET", "/v1/models/acts").json == {"name": "acts", "ready": True}


def test_the_apis_and_each_model_are_described(client: RawClient) -> None:
    described = client.request("OPTIONS", "/").json
    assert described["openapi"] == "3.0.1"
    assert set(described["paths"]["/predictions/{model_name}/{model_version}"]["post"]["responses"]) == {
        *("200", "404", "500", "503")
    }
    assert client.request("GET", "/api-description").json == described
    assert "/predictions/acts" in client.request("OPTIONS", "/predictions/acts").json["paths"]
