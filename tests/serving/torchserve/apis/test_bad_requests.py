"""Mistakes of clients: TorchServe's form of an error, the right code, and never 500."""

import gzip
import hashlib
import json
from pathlib import Path

import grpc
import pytest

from serving.torchserve.apis.messages import INFERENCE, PredictionsRequest
from serving.torchserve.apis.parts import MAX_PARTS, form_parts
from serving.torchserve.registry.errors import TorchServeError
from tests.serving.frontends.raw_http import RawClient
from tests.serving.torchserve.apis.apis import Apis, apis
from tests.support.model_factory import onnx_add_sub
from tests.support.serving_process import PATIENCE_S
from tests.support.work_meter import grows_evenly

FORM = "multipart/form-data; boundary=xx"
HEAD = b"POST /predictions/acts HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/", 405, "MethodNotAllowedException"),
        ("GET", "/nothing", 404, "ResourceNotFoundException"),
        ("POST", "/predictions", 404, "ResourceNotFoundException"),
        ("GET", "/models", 404, "ResourceNotFoundException"),
        ("POST", "/predictions/nobody", 404, "ModelNotFoundException"),
        ("OPTIONS", "/predictions/nobody", 404, "ModelNotFoundException"),
        ("POST", "/predictions/%FF%FE", 404, "ModelNotFoundException"),
        ("POST", "/explanations/nobody/1.0", 404, "ModelNotFoundException"),
        ("POST", "/v1/models/nobody:predict", 404, "ModelNotFoundException"),
        ("GET", "/v1/models/nobody", 404, "ModelNotFoundException"),
        ("POST", "/predictions/acts/7.0", 404, "ModelVersionNotFoundException"),
        ("POST", "/predictions/acts/1", 404, "ModelVersionNotFoundException"),
        ("POST", "/nobody/predict", 404, "ModelNotFoundException"),
        ("POST", "/invocations", 400, "BadRequestException"),
        ("POST", "/v1/models/acts:think", 404, "ResourceNotFoundException"),
        ("DELETE", "/v1/models", 405, "MethodNotAllowedException"),
    ],
)
def test_an_error_names_its_class_and_closes_the_connection(
    client: RawClient, method: str, path: str, status: int, kind: str
) -> None:
    answer = client.request(method, path, b"x")
    assert (answer.status, answer.json["code"], answer.json["type"]) == (status, status, kind)
    assert answer.body.startswith(b'{\n  "code": ')
    assert answer.body.endswith(b"\n}\n")
    assert answer.headers["connection"] == "close"
    assert client.closed()


@pytest.mark.parametrize(
    "body",
    [
        b"no part",
        b"--xx",
        b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\ncut off',
        b"--xx\r\nContent-Disposition: form-data\r\n\r\nno name\r\n--xx--\r\n",
        b'--xx\r\nContent-Disposition: form-data; name="a"\r\n--xx--\r\n',
        b'--xx\r\nContent-Disposition: form-data; name="a"\r\nX: ' + b"y" * 10_000 + b"\r\n\r\nv\r\n--xx--\r\n",
    ],
)
def test_a_broken_form_is_400(client: RawClient, body: bytes) -> None:
    answer = client.request("POST", "/predictions/acts", body, content_type=FORM)
    assert (answer.status, answer.json["type"]) == (400, "BadRequestException")
    assert "multipart" in answer.json["message"]


def test_a_thousand_parts_are_taken_and_too_many_refused(client: RawClient) -> None:
    part = b'--xx\r\nContent-Disposition: form-data; name="n%d"\r\n\r\n%d\r\n'
    body = b"".join(part % (number, number) for number in range(1000)) + b"--xx--\r\n"
    parts = client.request("POST", "/predictions/acts", body, content_type=FORM).json["parts"]
    assert parts[999] == ["n999", None, None, "999"]
    with pytest.raises(TorchServeError, match="at most"):
        form_parts(FORM, part % (0, 0) * (MAX_PARTS + 1) + b"--xx--")
    answer = client.request(
        "POST", "/predictions/acts", b"a=1&" * MAX_PARTS + b"b=2", content_type="application/x-www-form-urlencoded"
    )
    assert answer.status == 400


@pytest.mark.parametrize(
    "piece", [b"\r\n--xxy", b"\r\n--", b'\r\n--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n']
)
def test_a_form_is_read_in_proportion_to_its_length(piece: bytes) -> None:
    begins = b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
    assert grows_evenly(lambda n: lambda: form_parts(FORM, begins + piece * n + b"\r\n--xx--"), 1000)


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/mixed; boundary=xx", "text/plain; charset=klingon", ";;="]
)
def test_a_body_that_is_no_form_is_one_part_of_any_type(client: RawClient, kind: str) -> None:
    answer = client.request("POST", "/predictions/acts", b"\xff\xfe", content_type=kind)
    assert answer.json["parts"] == [["body", kind.partition(";")[0] or None, None, "\u00ff\u00fe"]]


def test_a_large_form_is_cut_elsewhere_than_on_the_loop(client: RawClient) -> None:
    body = (
        b'--xx\r\nContent-Disposition: form-data; name="a"; filename="f"\r\n\r\n' + b"x" * (2 << 20) + b"\r\n--xx--\r\n"
    )
    answer = client.request("POST", "/predictions/busy", body, content_type=FORM)
    assert answer.status == 500  # it shows its parts, which is more than max_response_size
    assert "max_response_size" in answer.json["message"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (HEAD + b"content-length: x\r\n\r\n", 400),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (HEAD + b"transfer-encoding: gzip\r\n\r\n", 400),
        (HEAD + b"x: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (HEAD + b"x: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /%zz HTTP/1.1\r\nhost: x\r\n\r\n", 404),
    ],
)
def test_invalid_http_is_an_error_of_the_same_form(client: RawClient, request_: bytes, status: int) -> None:
    client.send(request_)
    answer = client.answer()
    assert answer.status == answer.json["code"]
    assert answer.status == status
    assert len(answer.headers["x-request-id"]) == 36


def test_kserves_v2_has_its_own_form_of_errors(client: RawClient) -> None:
    packed = gzip.compress(b'{"inputs": [{"name": "data", "shape": [1, 1], "datatype": "NONE", "data": []}]}')
    answer = client.request("POST", "/v2/models/acts/infer", packed, content_encoding="gzip")
    assert (answer.status, set(answer.json)) == (400, {"error"})
    answer = client.request("GET", "/v2/models/nobody")
    assert (answer.status, set(answer.json)) == (404, {"error"})


def test_json_of_a_model_with_other_inputs_must_fit_them(client: RawClient, torchserve: Apis) -> None:
    for body in (b"[1, 2]", b"{", b'{"INPUT0": [1]}', b""):
        with RawClient(torchserve.http) as other:
            answer = other.request("POST", "/predictions/add_sub", body)
            assert (answer.status, answer.json["type"]) == (400, "BadRequestException")


def test_a_token_is_for_its_models_however_a_request_names_them(tmp_path: Path) -> None:
    onnx_add_sub(tmp_path / "models")
    grant = {"sha256": hashlib.sha256(b"key").hexdigest(), "models": ["other"], "rights": ["infer"], "expires_at": None}
    tokens = tmp_path / "auth.json"
    tokens.write_text(json.dumps({"tokens": [grant]}))
    form = {"content_type": "application/x-www-form-urlencoded", "authorization": "Bearer key"}
    with apis(tmp_path / "models", tokens) as running:
        for path in ("/predictions/add_sub", "/invocations?model_name=add_sub", "/invocations", "/wfpredict/add_sub"):
            with RawClient(running.http) as client:
                answer = client.request("POST", path, b"model_name=add_sub", **form)
                assert (answer.status, answer.json["type"]) == (400, "InvalidKeyException")
                assert answer.json["message"] == "the token is not for model 'add_sub'"
        with RawClient(running.http) as client:
            assert client.request("GET", "/ping").status == 200
        with grpc.insecure_channel(running.grpc) as channel:
            call = channel.unary_unary(f"/{INFERENCE}.InferenceAPIsService/Predictions")
            message = PredictionsRequest(model_name="add_sub").SerializeToString()
            with pytest.raises(grpc.RpcError) as caught:
                call(message, metadata=[("authorization", "Bearer key")], timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
