"""gRPC's own rules, call by call: statuses, deadlines, compression, message limits, cancellation, streams, restricted keys."""

import gzip
import hashlib
import json
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.serving.frontends.http2.http2_peer import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    Answer,
    Peer,
    frame,
    framed,
)
from tests.support.serving_process import ServerProcess

CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = 1, 3, 4, 5
PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED = 7, 8, 12, 16
LIMIT = 4 << 20


@pytest.fixture
def peer(http_server: ServerProcess) -> Iterator[Peer]:
    with Peer(http_server.grpc) as peer:
        yield peer


def infer(model: str = "fixed", values: Any = (1, 2, 3, 4), **fields: Any) -> pb.ModelInferRequest:
    array = np.array([values], np.float32)
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=[array.tobytes()], **fields)
    message.inputs.add(name="INPUT0", datatype="FP32", shape=array.shape)
    return message


def output(answer: Answer) -> list[float]:
    assert answer.status == 0, answer.headers
    return np.frombuffer(pb.ModelInferResponse.FromString(answer.message).raw_output_contents[0], np.float32).tolist()


def words(answer: Answer) -> str:
    return unquote(answer.headers["grpc-message"])


# -- statuses --------------------------------------------------------------------------------------------------------
def test_a_unary_call_is_headers_one_message_and_a_status(peer: Peer) -> None:
    answer = peer.call(1, "ModelInfer", infer(id="é"))
    assert output(answer) == [1, 2, 3, 4]
    assert pb.ModelInferResponse.FromString(answer.message).id == "é"
    assert (answer.headers[":status"], answer.headers["content-type"]) == ("200", "application/grpc")


def test_an_error_comes_alone_with_its_message_percent_encoded(peer: Peer) -> None:
    answer = peer.call(1, "ModelInfer", infer("nö%\nsuch"))
    assert (answer.status, answer.body) == (NOT_FOUND, b"")
    assert answer.headers["grpc-message"].isascii()
    assert "nö%\nsuch" in words(answer)


@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/Nope", "/other.Service/Method", "/", "*"])
def test_an_unknown_method_is_unimplemented_and_named(peer: Peer, path: str) -> None:
    peer.send(frame(HEADERS, END_HEADERS, 1, peer.block(path)))
    peer.data(1, framed(b""))
    answer = peer.answer(1)
    assert answer.status == UNIMPLEMENTED
    assert path in words(answer)
    assert peer.is_served(3)


@pytest.mark.parametrize("method", ["ServerLive", "ModelInfer", "ModelConfig", "RepositoryModelLoad"])
@pytest.mark.parametrize(
    "body",
    [b"", framed(b"")[:3], framed(b"x" * 9)[:-1], framed(b"\xff\xff\xff"), framed(b"") * 2, b"\x02" + framed(b"")[1:]],
    ids=["no message", "half a prefix", "a cut message", "no protobuf", "two messages", "a strange flag"],
)
def test_a_body_that_is_not_one_message_is_an_invalid_argument(peer: Peer, method: str, body: bytes) -> None:
    answer = peer.call(1, method, body)
    assert answer.status in (INVALID_ARGUMENT, NOT_FOUND)
    assert peer.is_served(3)


def test_a_call_may_be_answered_before_its_request_is_whole(peer: Peer) -> None:
    peer.open(1, "Nope")
    answer = peer.answer(1)
    assert answer.status == UNIMPLEMENTED
    assert peer.next(RST_STREAM, 1).code == 0
    peer.data(1, bytes(100_000))
    assert peer.is_served(3)


# -- deadlines and cancellation --------------------------------------------------------------------------------------
def test_a_deadline_that_passes_ends_the_call(peer: Peer) -> None:
    before = time.monotonic()
    peer.open(1, "ModelInfer", grpc_timeout="100m")
    answer = peer.answer(1)
    assert answer.status == DEADLINE_EXCEEDED
    assert time.monotonic() - before > 0.09


def test_a_deadline_that_does_not_pass_changes_nothing(peer: Peer) -> None:
    for number, timeout in enumerate(["1H", "2M", "30S", "90000m", "90000000u", "99999999n"]):
        answer = peer.call(2 * number + 1, "ServerLive", framed(b""), grpc_timeout=timeout)
        assert answer.status in (0, DEADLINE_EXCEEDED) if timeout.endswith("n") else answer.status == 0


@pytest.mark.parametrize("timeout", ["", "S", "5", "-1S", "1.5S", "123456789S", "1s"])
def test_a_malformed_deadline_is_an_invalid_argument(peer: Peer, timeout: str) -> None:
    assert peer.call(1, "ServerLive", framed(b""), grpc_timeout=timeout).status == INVALID_ARGUMENT


# -- compression -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", None)]
)
@pytest.mark.parametrize("elements", [4, 1_500_000])
def test_compressed_requests_are_understood(peer: Peer, encoding: str, compress: Any, elements: int) -> None:
    array = np.arange(elements) % 7
    message = infer("identity_fp32", array.tolist()).SerializeToString()
    body = framed(compress(message), 1) if compress else framed(message)
    peer.send(frame(8, 0, 0, (1 << 30).to_bytes(4, "big")))
    peer.open(1, "ModelInfer", grpc_encoding=encoding)
    peer.send(frame(8, 0, 1, (1 << 30).to_bytes(4, "big")))
    peer.data(1, body)
    assert output(peer.answer(1)) == array.tolist()


def test_a_message_may_stay_uncompressed_although_an_encoding_is_named(peer: Peer) -> None:
    assert output(peer.call(1, "ModelInfer", infer(), grpc_encoding="gzip")) == [1, 2, 3, 4]


def test_an_unknown_encoding_is_unimplemented_and_the_answer_names_the_known_ones(peer: Peer) -> None:
    answer = peer.call(1, "ServerLive", framed(b""), grpc_encoding="snappy")
    assert answer.status == UNIMPLEMENTED
    assert answer.headers["grpc-accept-encoding"] == "identity,deflate,gzip"


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (framed(b"not gzip", 1), "gzip"),
        (framed(gzip.compress(bytes(100), mtime=0)[:-9], 1), "gzip"),
        (framed(gzip.compress(infer().SerializeToString(), mtime=0), 1), "identity"),
    ],
    ids=["garbage", "cut", "not announced"],
)
def test_a_broken_compressed_message_is_an_invalid_argument(peer: Peer, body: bytes, encoding: str) -> None:
    assert peer.call(1, "ModelInfer", body, grpc_encoding=encoding).status == INVALID_ARGUMENT


# -- limits ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def strict(http_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with small messages, restricted groups and tokens."""
    tokens = tmp_path_factory.mktemp("auth") / "tokens.json"
    entry = {"name": "shop", "sha256": hashlib.sha256(b"s3cret").hexdigest(), "models": ["fixed"], "rights": ["infer"]}
    tokens.write_text(json.dumps({"tokens": [entry]}))
    with ServerProcess(
        http_models,
        "--model-control-mode=explicit",
        "--load-model=fixed",
        f"--grpc-max-message-size={LIMIT}",
        "--grpc-restricted-protocol=model-repository,statistics:admin-key=k3y",
        f"--auth-file={tokens}",
    ) as server:
        yield server


TOKEN = {"authorization": "Bearer s3cret"}


def test_a_message_over_the_limit_is_refused_when_its_prefix_comes(strict: ServerProcess) -> None:
    with Peer(strict.grpc) as peer:
        peer.open(1, "ModelInfer", **TOKEN)
        peer.send(frame(DATA, 0, 1, b"\0" + (LIMIT + 1).to_bytes(4, "big")))
        answer = peer.answer(1)
        assert answer.status == RESOURCE_EXHAUSTED
        assert str(LIMIT) in words(answer)


def test_a_message_without_tensors_or_files_may_not_be_large(strict: ServerProcess) -> None:
    claim = b"\0" + (2 << 20).to_bytes(4, "big")
    with Peer(strict.grpc) as peer:
        for number, method in ((1, "ServerLive"), (3, "ModelMetadata"), (5, "TraceSetting")):
            peer.open(number, method)
            peer.data(number, claim, end=False)
            assert peer.answer(number).status == RESOURCE_EXHAUSTED


def test_a_compressed_bomb_is_refused(strict: ServerProcess) -> None:
    with Peer(strict.grpc) as peer:
        answer = peer.call(1, "ModelInfer", framed(gzip.compress(bytes(1 << 28)), 1), grpc_encoding="gzip", **TOKEN)
        assert answer.status == RESOURCE_EXHAUSTED
        assert output(peer.call(3, "ModelInfer", infer(), **TOKEN)) == [1, 2, 3, 4]


# -- who may call what -----------------------------------------------------------------------------------------------
def test_a_restricted_group_needs_its_header(strict: ServerProcess) -> None:
    with Peer(strict.grpc) as peer:
        for number, (method, key, status) in enumerate(
            [
                ("RepositoryIndex", {}, PERMISSION_DENIED),
                ("RepositoryIndex", {"triton_grpc_protocol_admin_key": "wrong"}, PERMISSION_DENIED),
                ("RepositoryIndex", {"triton_grpc_protocol_admin_key": "k3y"}, 0),
                ("RepositoryModelLoad", {}, PERMISSION_DENIED),
                ("RepositoryModelUnload", {}, PERMISSION_DENIED),
                ("ModelStatistics", {}, PERMISSION_DENIED),
                ("ServerMetadata", {}, 0),
            ]
        ):
            answer = peer.call(2 * number + 1, method, framed(b""), **key)
            assert answer.status == status, method
            if status:
                assert "triton-grpc-protocol-admin-key" in words(answer)


def test_inference_needs_a_token_for_the_model(strict: ServerProcess) -> None:
    with Peer(strict.grpc) as peer:
        assert peer.call(1, "ModelInfer", infer()).status == UNAUTHENTICATED
        assert peer.call(3, "ModelInfer", infer(), authorization="Bearer wrong").status == UNAUTHENTICATED
        assert peer.call(5, "ModelInfer", infer(), **TOKEN).status == 0
        assert peer.call(7, "ModelInfer", infer("add_sub"), **TOKEN).status == PERMISSION_DENIED
        assert peer.call(9, "ModelStreamInfer", infer()).status == UNAUTHENTICATED
        streamed = peer.call(11, "ModelStreamInfer", infer("add_sub"), **TOKEN)
        assert "token" in pb.ModelStreamInferResponse.FromString(streamed.message).error_message


def test_a_client_without_the_right_is_refused_before_its_message_is_taken(strict: ServerProcess) -> None:
    with Peer(strict.grpc) as peer:
        for number, method in ((1, "RepositoryModelLoad"), (3, "ModelInfer")):
            peer.open(number, method)
            assert peer.answer(number).status in (PERMISSION_DENIED, UNAUTHENTICATED)


# -- streams ---------------------------------------------------------------------------------------------------------
def messages(body: bytes) -> list[pb.ModelStreamInferResponse]:
    found = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        found.append(pb.ModelStreamInferResponse.FromString(body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def test_a_stream_is_answered_in_order_with_errors_inside(peer: Peer) -> None:
    requests = [infer("slow", [0.0], id="0"), infer(id="1"), infer("nope", id="2"), infer(id="3")]
    peer.open(1, "ModelStreamInfer")
    peer.data(1, b"".join(framed(request.SerializeToString()) for request in requests))
    answer = peer.answer(1)
    assert answer.status == 0
    found = messages(answer.body)
    assert [message.infer_response.id for message in found] == ["0", "1", "2", "3"]
    assert [bool(message.error_message) for message in found] == [False, False, True, False]


def test_a_stream_answers_each_request_while_it_stays_open(peer: Peer) -> None:
    peer.open(1, "ModelStreamInfer")
    for number in range(20):
        peer.data(1, framed(infer(id=str(number)).SerializeToString()), end=False)
        (message,) = messages(peer.next(DATA, 1).payload)
        assert message.infer_response.id == str(number)
    peer.send(frame(DATA, END_STREAM, 1))
    assert peer.answer(1).status == 0


def test_a_stream_without_a_request_ends_well(peer: Peer) -> None:
    assert peer.call(1, "ModelStreamInfer", b"").status == 0


def test_thousands_of_wrong_requests_in_one_stream_get_an_error_each(peer: Peer) -> None:
    peer.send(frame(8, 0, 0, (1 << 30).to_bytes(4, "big")))
    peer.open(1, "ModelStreamInfer")
    peer.send(frame(8, 0, 1, (1 << 30).to_bytes(4, "big")))
    peer.data(1, framed(infer("nope").SerializeToString()) * 5000)
    found = messages(peer.answer(1).body)
    assert len(found) == 5000
    assert all("nope" in message.error_message for message in found)
