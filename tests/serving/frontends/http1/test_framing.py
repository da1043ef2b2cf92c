"""However a client cuts its bytes, its requests are answered whole, in order; broken framing ends that connection alone."""

import asyncio
import gc
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.frontends.http1.body import ChunkedBody
from serving.frontends.http1.exchange import Exchange
from tests.serving.frontends.http_in_process import connection, http_frontend, read_answer
from tests.serving.frontends.raw_http import RawClient, build, infer_body, samples, tensor
from tests.support.serving_process import ServerProcess, wait_until

INFER = "/v2/models/add_sub/infer"
BODY = infer_body(tensor([1, 2, 3, 4]), tensor([4, 3, 2, 1], name="INPUT1"))
SUM = [5.0, 5.0, 5.0, 5.0]


def chunked(body: bytes, sizes: list[int], extension: str = "", trailer: bytes = b"") -> bytes:
    parts = []
    for size in sizes:
        piece, body = body[:size], body[size:]
        if not piece:
            break
        parts.append(f"{len(piece):x}{extension}\r\n".encode() + piece + b"\r\n")
    return b"".join(parts) + b"0\r\n" + trailer + b"\r\n"


def chunked_head(path: str = INFER) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def sums(answer: object) -> list[float]:
    return json.loads(answer.body)["outputs"][0]["data"]  # type: ignore[attr-defined]


def test_a_request_may_arrive_one_byte_at_a_time(raw: RawClient) -> None:
    for byte in build("POST", INFER, BODY):
        raw.send(bytes([byte]))
    assert sums(raw.answer()) == SUM


def test_an_empty_line_before_a_request_is_passed_over(raw: RawClient) -> None:
    """RFC 9112, section 2.2: at the beginning of a connection, and between two requests."""
    for _ in range(2):
        raw.send(b"\r\n" + build("GET", "/v2"))
        assert raw.answer().status == 200


def test_pipelined_requests_are_answered_in_order(raw: RawClient) -> None:
    requests = []
    for number in range(100):
        body = infer_body(tensor([number] * 4), tensor([0] * 4, name="INPUT1"), id=str(number))
        requests.append(build("POST", INFER, body) + build("GET", "/v2/models/add_sub/ready"))
    sender = threading.Thread(target=raw.send, args=(b"".join(requests),))
    sender.start()
    for number in range(100):
        answer = raw.answer().json
        assert (answer["id"], answer["outputs"][0]["data"]) == (str(number), [float(number)] * 4)
        assert raw.answer().status == 200
    sender.join()


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("DELETE", "/v2", 405)])
def test_a_request_whose_parts_surround_a_refused_one_is_answered(
    raw: RawClient, method: str, path: str, status: int
) -> None:
    refused, good = build(method, path), build("GET", "/v2/models/add_sub/ready")
    raw.send(build("GET", "/v2") + refused[:10])
    assert raw.answer().status == 200
    raw.send(refused[10:] + good[:10])
    assert raw.answer().status == status
    raw.send(good[10:])
    assert raw.answer().status == 200


def test_refused_requests_leave_nothing_in_memory(tmp_path: Path) -> None:
    request = build("GET", "/nowhere")

    async def run() -> int:
        async with http_frontend(tmp_path) as (frontend, _), connection(frontend) as (reader, writer):
            for _ in range(100):
                writer.write(request)
                assert (await read_answer(reader))[0] == 404
            gc.collect()
            return sum(issubclass(type(each), Exchange) for each in gc.get_objects())

    assert asyncio.run(run()) < 10


def test_a_slow_request_does_not_let_a_later_one_overtake_it(raw: RawClient) -> None:
    slow = build("POST", "/v2/models/slow/infer", infer_body(tensor([1.0]), id="first"))
    raw.send(slow + build("GET", "/v2"))
    assert raw.answer().json["id"] == "first"
    assert raw.answer().json["name"] == "slipway"


@pytest.mark.parametrize("sizes", [[len(BODY)], [1] * len(BODY), [7, 100, 1000]])
def test_a_chunked_body_is_put_together(raw: RawClient, sizes: list[int]) -> None:
    raw.send(chunked_head() + chunked(BODY, sizes, ";name=value", b"Trailer: 1\r\n") + build("GET", "/v2"))
    assert sums(raw.answer()) == SUM
    assert raw.answer().json["name"] == "slipway"


def test_a_chunked_body_may_arrive_one_byte_at_a_time(raw: RawClient) -> None:
    for byte in chunked_head() + chunked(BODY, [50, 50, 1000]):
        raw.send(bytes([byte]))
    assert sums(raw.answer()) == SUM


@settings(max_examples=200, deadline=None, database=None)
@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=20), st.data())
def test_a_chunked_body_is_the_same_however_it_is_cut(body: bytes, sizes: list[int], data: st.DataObject) -> None:
    encoded = chunked(body, [*sizes, len(body)] if body else [])
    decoder = ChunkedBody(1000)
    stream = memoryview(encoded + b"next")
    position = 0
    while not decoder.done:
        end = data.draw(st.integers(position + 1, len(stream)))
        position += decoder.feed(stream[position:end])
    assert (bytes(decoder.data), position) == (body, len(encoded))


def test_a_large_body_is_received_whole_and_the_next_request_is_understood(raw: RawClient) -> None:
    values = np.arange(500_000, dtype=np.float32)
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "datatype": "FP32",
                    "shape": [1, 500000],
                    "parameters": {"binary_data_size": 2000000},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    request = build(
        "POST",
        "/v2/models/identity_fp32/infer",
        header + values.tobytes(),
        Inference_Header_Content_Length=str(len(header)),
    )
    sender = threading.Thread(target=raw.send, args=((request + build("GET", "/v2")) * 3,))
    sender.start()
    for _ in range(3):
        answer = raw.answer()
        split = int(answer.headers["inference-header-content-length"])
        assert np.array_equal(np.frombuffer(answer.body[split:], np.float32), values)
        assert raw.answer().json["name"] == "slipway"
    sender.join()


def test_continue_is_sent_before_the_body_and_not_for_a_refused_one(http_server: ServerProcess, raw: RawClient) -> None:
    head, _, body = build("POST", INFER, BODY, Expect="100-continue").partition(b"\r\n\r\n")
    raw.send(head + b"\r\n\r\n")
    assert raw.answer().status == 100
    raw.send(body)
    assert sums(raw.answer()) == SUM
    raw.send(build("POST", "/v2/nowhere", BODY, Expect="100-continue").partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    assert raw.answer().status == 404
    assert raw.closed()


def test_continue_is_sent_after_the_earlier_answers(raw: RawClient) -> None:
    slow = build("POST", "/v2/models/slow/infer", infer_body(tensor([1.0])))
    head, _, body = build("POST", INFER, BODY, Expect="100-continue").partition(b"\r\n\r\n")
    raw.send(slow + head + b"\r\n\r\n")
    assert [raw.answer().status, raw.answer().status] == [200, 100]
    raw.send(body)
    assert sums(raw.answer()) == SUM


def test_connection_close_is_honoured_after_the_answers_before_it(raw: RawClient) -> None:
    raw.send(build("POST", INFER, BODY) + build("GET", "/v2", Connection="close") + build("GET", "/v2"))
    first = raw.answer()
    assert sums(first) == SUM
    assert "connection" not in first.headers
    assert raw.answer().headers["connection"] == "close"
    assert raw.closed()


@pytest.mark.parametrize(
    "broken",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nContent-Length: 1, 2\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nBad Header: 1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nX: a\r\n folded\r\n\r\n",
        b"GET /v2 HTTP/1.1\nHost: x\n\n\r\n\r\n",
        chunked_head() + b"zz\r\n",
        chunked_head() + b"-1\r\n",
        chunked_head() + b"5\r\nabcdeXX\r\n",
        chunked_head() + b"5\nabcde\r\n0\r\n\r\n",
        chunked_head() + b"1" * 300,
    ],
)
def test_broken_framing_is_400_and_closes(http_server: ServerProcess, raw: RawClient, broken: bytes) -> None:
    raw.send(broken)
    answer = raw.answer()
    assert answer.status == 400
    assert answer.json["error"]
    assert raw.closed()
    assert http_server.get("/v2/health/live")[0] == 200


def test_an_unknown_transfer_encoding_is_501(raw: RawClient) -> None:
    raw.send(b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n")
    assert raw.answer().status == 501


@pytest.mark.parametrize(
    "head", [b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 20000, b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n"]
)
def test_a_head_that_is_too_long_is_431(raw: RawClient, head: bytes) -> None:
    raw.send(head)
    assert raw.answer().status == 431
    assert raw.closed()


def test_too_many_headers_are_431(raw: RawClient) -> None:
    raw.send(b"GET /v2 HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(120)) + b"\r\n")
    assert raw.answer().status == 431


def test_clients_that_leave_in_the_middle_of_a_body_disturb_nobody(http_server: ServerProcess) -> None:
    whole = build("POST", INFER, BODY)
    for end in (10, len(whole) - len(BODY), len(whole) - 5):
        with RawClient(http_server.http) as client:
            client.send(whole[:end])
    large = b"POST /v2/models/add_sub/infer HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 200_000
    with RawClient(http_server.http) as client:
        client.send(large)
    assert http_server.get("/v2/health/live")[0] == 200


def test_a_client_that_leaves_cancels_its_requests(http_server: ServerProcess) -> None:
    def cancelled() -> int:
        return int(samples(http_server)['nv_inference_request_failure{model="slow",reason="CANCELED",version="1"}'])

    before = cancelled()
    with RawClient(http_server.http) as client:
        client.send(build("POST", "/v2/models/slow/infer", infer_body(tensor([1.0]))) * 20)
    wait_until(lambda: cancelled() > before, what="a cancelled request in the metrics")
