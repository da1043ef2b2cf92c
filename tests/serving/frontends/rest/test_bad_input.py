"""A client's mistake is answered with the right code and one sentence, and the server goes on serving."""

import json
from typing import Any

import pytest

from tests.serving.conftest import MAX_BODY
from tests.serving.frontends.raw_http import RawClient, build, infer_body, tensor
from tests.support.serving_process import ServerProcess

IDENTITY = "/v2/models/identity_fp32/infer"
GOOD = infer_body(tensor([1.0, 2.0]))


def one(**fields: Any) -> bytes:
    return infer_body({"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]} | fields)


def shaped(shape: Any) -> bytes:
    return one(shape=shape)


def output(**parameters: Any) -> bytes:
    return infer_body(tensor([1.0]), outputs=[{"name": "OUTPUT0", "parameters": parameters}])


BAD_JSON = [
    (b"", 400, "failed to parse"),
    (b"{", 400, "failed to parse"),
    (b"\xff\xfe", 400, "failed to parse"),
    (b"[" * 100_000, 400, "failed to parse"),
    (b'{"inputs":' + b"[" * 5_000 + b"]" * 5_000 + b"}", 400, ""),
    (b"[]", 400, "JSON object"),
    (b"null", 400, "JSON object"),
    (b"NaN", 400, "JSON object"),
    (b"{}", 400, "'inputs' to be an array"),
    (b'{"inputs": {}}', 400, "'inputs' to be an array"),
    (b'{"inputs": [1]}', 400, "to be an object"),
    (b'{"inputs": []}', 400, "missing required input(s) ['INPUT0']"),
    (infer_body({"datatype": "FP32", "shape": [1], "data": [1]}), 400, "'name'"),
    (one(name=5), 400, "'name'"),
    (one(name="nope"), 400, "INPUT0"),
    (
        b'{"inputs": [{"name": "\\ud800", "datatype": "\\udfff", "shape": [1], "data": [NaN]}]}',
        400,
        "unknown datatype '?'",
    ),
    (infer_body(tensor([1.0]), id="\ud800", parameters={"x": float("nan")}), 400, ""),
    (infer_body(tensor([1.0] * 1000), id="\ud800"), 400, ""),
    (b'{"' + b"a" * 2100 + b'": 1, "\\u0000\\ud800\\udc00": null}', 400, "'inputs'"),
    (infer_body(tensor([1.0]), tensor([1.0])), 400, "more than once"),
    (infer_body(tensor([1.0]), tensor([1.0], name="nope")), 400, "unexpected inference input 'nope'"),
    (one(datatype="FLOAT"), 400, "unknown datatype 'FLOAT'"),
    (one(datatype=None), 400, "unknown datatype"),
    (one(datatype=["FP32"]), 400, "unknown datatype"),
    (one(datatype="INT32"), 400, "INT32"),
    (shaped(None), 400, "'shape'"),
    (shaped("1,2"), 400, "'shape'"),
    (shaped([1, -2]), 400, "negative"),
    (shaped([1, 2.0]), 400, "whole numbers"),
    (shaped([True, 2]), 400, "whole numbers"),
    (shaped([1, 3]), 400, "has 3 elements, but 'data' has 2"),
    (shaped([1] * 40), 400, "at most 32"),
    (shaped([2**62, 2]), 400, "too many elements"),
    (shaped([0, 2**62, 2**62]), 400, "too many elements"),
    (shaped([10**30]), 400, ""),
    (shaped([1, 2**40]), 400, "but 'data' has 2"),
    (shaped([2]), 400, "shape"),
    (shaped([]), 400, "1 elements"),
    (infer_body(tensor([1.0] * 9, [9, 1])), 400, "batch"),
    (infer_body(tensor([], [0, 1])), 400, "batch"),
    (one(data=[{"a" * 2100: 10**30}, 2]), 400, ""),
    (b'{"inputs": [{"data": ' + b"[" * 1500 + b"]" * 1500 + b"}]}", 400, ""),
    (one(data=None), 400, "'data' to be an array"),
    (one(data="12"), 400, "'data' to be an array"),
    (one(data=[1, "2"]), 400, "FP32 elements"),
    (one(data=[1, None]), 400, "FP32 elements"),
    (one(data=[1, {}]), 400, "FP32 elements"),
    (one(data=[[1], [2, 3]]), 400, "nested"),
    (one(data=[True, False]), 400, "FP32 elements"),
    (infer_body({"name": "INPUT0", "datatype": "FP32", "shape": [1, 2]}), 400, "expected 'data'"),
    (one(parameters=[]), 400, "'parameters'"),
    (one(parameters={"binary_data_size": 8}), 400, "either"),
    (one(parameters={"shared_memory_region": "x"}), 400, "'shared_memory_byte_size'"),
    (infer_body(tensor([1.0]), id=5), 400, "'id'"),
    (infer_body(tensor([1.0]), parameters=5), 400, "'parameters'"),
    (infer_body(tensor([1.0]), parameters={"priority": -1}), 400, "'priority'"),
    (infer_body(tensor([1.0]), parameters={"timeout": "soon"}), 400, "'timeout'"),
    (infer_body(tensor([1.0]), parameters={"sequence_id": 1.5}), 400, "'sequence_id'"),
    (infer_body(tensor([1.0]), parameters={"sequence_start": 1}), 400, "'sequence_start'"),
    (infer_body(tensor([1.0]), parameters={"mine": [1]}), 400, "'mine'"),
    (infer_body(tensor([1.0]), parameters={"binary_data_output": "yes"}), 400, "'binary_data_output'"),
    (infer_body(tensor([1.0]), outputs={}), 400, "'outputs'"),
    (infer_body(tensor([1.0]), outputs=[1]), 400, "'outputs'"),
    (infer_body(tensor([1.0]), outputs=[{"name": "nope"}]), 400, "nope"),
    (output(binary_data=1), 400, "'binary_data'"),
    (output(classification="2"), 400, "'classification'"),
    (output(shared_memory_region="x", shared_memory_byte_size=4), 404, "shared memory region"),
]


@pytest.mark.parametrize(("body", "status", "said"), BAD_JSON)
def test_wrong_json_is_refused_in_one_sentence(raw: RawClient, body: bytes, status: int, said: str) -> None:
    answer = raw.request("POST", IDENTITY, body)
    assert (answer.status, said in answer.json["error"]) == (status, True), answer
    assert "\n" not in answer.json["error"]
    assert raw.request("POST", IDENTITY, GOOD).status == 200


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("INT8", [128]),
        ("UINT8", [-1]),
        ("INT32", [2**31]),
        ("INT64", [2**63]),
        ("UINT64", [-1]),
        ("UINT64", [2**64]),
        ("INT32", [1.5]),
        ("INT32", [1.0]),
        ("INT32", [None]),
        ("BOOL", [1]),
        ("BOOL", ["true"]),
        ("BYTES", [1]),
        ("BYTES", [None]),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_json_elements_of_another_type_or_range_are_refused(
    raw: RawClient, datatype: str, data: list[Any], size: int
) -> None:
    filler = {"BOOL": True, "BYTES": "a"}.get(datatype, 1)
    body = infer_body(tensor([filler] * (size - 1) + data, datatype=datatype))
    answer = raw.request("POST", f"/v2/models/identity_{datatype.lower()}/infer", body)
    assert (answer.status, "INPUT0" in answer.json["error"] or data == [2**64]) == (400, True), answer


def binary(size: int, datatype: str = "FP32", shape: Any = None, data: bytes = b"\0" * 8) -> tuple[bytes, bytes]:
    described = {
        "name": "INPUT0",
        "datatype": datatype,
        "shape": shape or [1, 2],
        "parameters": {"binary_data_size": size},
    }
    return infer_body(described), data


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (*binary(8, data=b"\0" * 7), "expecting 1 additional bytes"),
        (*binary(8, data=b"\0" * 9), "1 bytes after the last binary input"),
        (*binary(4), "Expected 8 for shape [1, 2] of FP32, got 4"),
        (*binary(8, shape=[1, 2**40]), "got 8"),
        (*binary(-8), "'binary_data_size'"),
        (*binary("8"), "'binary_data_size'"),  # type: ignore[arg-type]
        (*binary(8, "BYTES"), ""),
        (*binary(8, "BYTES", data=b"\xff\xff\xff\xff\0\0\0\0"), "claims"),
        (*binary(8, "BYTES", [1, 2**40]), "cannot hold"),
        (*binary(8, "BYTES", [1, 1]), "bytes follow"),
        (b"{", b"\0" * 8, "failed to parse"),
    ],
)
def test_binary_data_that_does_not_fit_its_description_is_refused(
    raw: RawClient, header: bytes, data: bytes, said: str
) -> None:
    model = "identity_bytes" if b"BYTES" in header else "identity_fp32"
    answer = raw.request(
        "POST", f"/v2/models/{model}/infer", header + data, Inference_Header_Content_Length=str(len(header))
    )
    if said:
        assert (answer.status, said in answer.json["error"]) == (400, True), answer
    else:
        assert answer.status == 200
    assert raw.request("POST", IDENTITY, GOOD).status == 200


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "99999999999999999999"])
def test_a_malformed_header_length_is_refused(raw: RawClient, length: str) -> None:
    answer = raw.request("POST", IDENTITY, GOOD, Inference_Header_Content_Length=length)
    assert (answer.status, "Inference-Header-Content-Length" in answer.json["error"]) == (400, True)


def test_a_header_length_beyond_the_body_is_refused(raw: RawClient) -> None:
    answer = raw.request("POST", IDENTITY, GOOD, Inference_Header_Content_Length=str(len(GOOD) + 1))
    assert (answer.status, "inference header size" in answer.json["error"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/nope/infer", 404),
        ("/v2/models/identity_fp32/versions/9/infer", 404),
        ("/v2/models/identity_fp32/versions/one/infer", 400),
        ("/v2/models/identity_fp32/versions/99999999999999999999/infer", 400),
        ("/v2/models/..%2F..%2Fetc/infer", 404),
        ("/v2/models/%00/infer", 404),
    ],
)
def test_an_unknown_model_or_version_is_refused(raw: RawClient, path: str, status: int) -> None:
    answer = raw.request("POST", path, GOOD)
    assert answer.status == status, answer
    assert answer.json["error"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_before_it_is_read(
    http_server: ServerProcess, raw: RawClient, chunked: bool
) -> None:
    if chunked:
        head = b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        raw.send(head + b"%x\r\n" % (MAX_BODY + 1))
    else:
        raw.send(build("POST", IDENTITY, GOOD).replace(b"Content-Length: ", b"Content-Length: 99999"))
    answer = raw.answer()
    assert answer.status == 400
    assert f"exceeds the maximum allowed value of {MAX_BODY} bytes" in answer.json["error"]
    assert raw.closed()
    assert http_server.get("/v2/health/live")[0] == 200


def test_a_client_that_sends_on_after_a_refusal_can_still_read_it(http_server: ServerProcess) -> None:
    with RawClient(http_server.http) as client:
        client.send(f"POST {IDENTITY} HTTP/1.1\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n".encode())
        client.send(b"\0" * (1 << 20))
        assert client.answer().status == 400


def test_errors_carry_no_path_and_no_stack(raw: RawClient, http_models: Any) -> None:
    for path in ("/v2/models/nope/infer", "/v2/models/identity_int8/infer", "/v2/repository/models/nope/load"):
        message = json.dumps(raw.request("POST", path, GOOD if "infer" in path else b"").json)
        assert str(http_models) not in message
        assert "Traceback" not in message


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/logging", "/v2/trace/setting", "/v2/nothing"])
def test_a_body_without_tensors_or_files_may_not_be_large(http_server: ServerProcess, path: str) -> None:
    with RawClient(http_server.http) as client:
        client.send(f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {2 << 20}\r\n\r\n".encode())
        assert client.answer().status == 400
