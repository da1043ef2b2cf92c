"""Broken HTTP/1.1 and HTTP/2 bytes, in any pieces: answered or closed, and everyone else is served meanwhile."""

import itertools
import json
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.e2e.fuzzing.inputs import KEPT, fuzzed
from tests.serving.frontends.http2 import http2_peer
from tests.serving.frontends.http2.http2_peer import PREFACE, Peer, framed, request_block
from tests.serving.frontends.raw_http import RawClient, build, infer_body, tensor
from tests.support.serving_process import PATIENCE_S, ServerProcess

ADD_SUB = infer_body(tensor([1.0] * 4), tensor([2.0] * 4, name="INPUT1"))
GOOD = build("POST", f"/v2/models/{KEPT}/infer", ADD_SUB)
CHUNKED = (
    f"POST /v2/models/{KEPT}/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    f"{len(ADD_SUB):x}\r\n{ADD_SUB.decode()}\r\n0\r\n\r\n"
).encode()
BINARY = build("POST", "/v2/models/plain/infer", b'{"inputs":[]}' + bytes(8), Inference_Header_Content_Length="13")
SEEDS = [GOOD, CHUNKED, BINARY, build("GET", "/v2"), build("GET", "/v2", Expect="100-continue"), GOOD + GOOD]
PIECES = [
    *(b"\r\n", b"\n", b"\r", b" ", b"\0", b":", b"\t", b"\r\n\r\n", b"HTTP/1.1", b"HTTP/9.9", b"POST ", b"\xff\xfe"),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n", b"Host: y\r\n"),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"0\r\n\r\n",
        b"ffffffffffffffff\r\n",
    ),
    *(
        b"Expect: 100-continue\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\n",
        b"Content-Encoding: gzip\r\n",
        b"a" * 9000,
    ),
    *(b"5;x=y\r\n", b"GET / HTTP/1.1\r\n\r\n", b"{", b"}", b'"', PREFACE),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fuzzed(tmp_path_factory.mktemp("fuzz")) as server:
        yield server


@st.composite
def changed(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes with up to four places cut out, doubled, overwritten or filled."""
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(whole)))
        stop = min(start + draw(st.sampled_from([0, 0, 1, 2, 9, 40])), len(whole))
        piece = draw(st.sampled_from([*PIECES, whole[start:stop] * 2, b""]) | st.binary(max_size=6))
        whole = whole[:start] + piece + whole[stop:]
    return whole


def exchanged(address: str, data: bytes, cuts: list[int], close: bool) -> bytes:
    """Send the data in these pieces, say that nothing follows, and read until the server closes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
        received = b""
        with suppress(ConnectionError):
            for start, stop in itertools.pairwise(places):
                connection.sendall(data[start:stop])
            if close:
                return b""
            with suppress(OSError):  # the server may have closed already
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                received += piece
    return received


@settings(max_examples=250)
@given(
    data=st.sampled_from(SEEDS).flatmap(changed), cuts=st.lists(st.integers(0, 400), max_size=4), close=st.booleans()
)
def test_broken_http_is_answered_or_closed(server: ServerProcess, data: bytes, cuts: list[int], close: bool) -> None:
    received = exchanged(server.http, data, cuts, close)
    assert not received or re.match(rb"HTTP/1\.[01] [1-5]\d\d ", received), received[:300]
    assert b" 500 " not in received.partition(b"\r\n")[0], received[:600]
    with RawClient(server.http) as client:
        assert client.request("POST", f"/v2/models/{KEPT}/infer", ADD_SUB).status == 200


# -- HTTP/2 ----------------------------------------------------------------------------------------------------------
MESSAGE = pb.ModelInferRequest(model_name=KEPT)
for _row in json.loads(ADD_SUB)["inputs"]:
    MESSAGE.inputs.add(name=_row["name"], datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend(_row["data"])
BODY = framed(MESSAGE.SerializeToString())
STREAM_IDS = st.sampled_from([0, 1, 1, 3, 5, 7, 2, 2**31 - 1, 2**32 - 1])
METHODS = ["ModelInfer", "ModelStreamInfer", "ServerLive", "RepositoryIndex", "Nothing"]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One frame: as it should be, or with anything as its kind, flags, stream and payload."""
    stream_id, shape = draw(STREAM_IDS), draw(st.integers(0, 5))
    if shape == 0:
        path = draw(st.sampled_from([http2_peer.SERVICE + method for method in METHODS] + ["", "/", "/a/b"]))
        more = draw(
            st.dictionaries(st.sampled_from(["grpc-timeout", "grpc_encoding", "te", "_method"]), TEXT, max_size=2)
        )
        block = request_block(hpack.Encoder(), path, **{key.replace("-", "_"): text for key, text in more.items()})
        return http2_peer.frame(http2_peer.HEADERS, draw(st.sampled_from([4, 5, 0, 1])), stream_id, block)
    if shape == 1:
        return http2_peer.frame(http2_peer.DATA, draw(st.sampled_from([0, 1])), stream_id, draw(changed(BODY)))
    if shape == 2:
        pairs = draw(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 2**14, 2**24, 2**31, 2**32 - 1]))))
        return http2_peer.frame(http2_peer.SETTINGS, 0, 0, b"".join(struct.pack(">HL", *pair) for pair in pairs[:5]))
    if shape == 3:
        number = draw(st.sampled_from([0, 1, 8, 2**31 - 1, 2**32 - 1])).to_bytes(4, "big")
        return http2_peer.frame(draw(st.sampled_from([2, 3, 7, 8])), 0, stream_id, number * draw(st.integers(1, 2)))
    kind, flags = draw(st.integers(0, 12)), draw(st.integers(0, 255))
    return http2_peer.frame(kind, flags, stream_id, draw(st.binary(max_size=40)))


TEXT = st.sampled_from(["", "1S", "99999999H", "0n", "gzip", "identity", "GET", "trailers", "x" * 5000])


@settings(max_examples=250)
@given(
    sent=st.lists(frames(), min_size=1, max_size=8),
    begin=st.booleans(),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    close=st.booleans(),
)
def test_broken_http2_is_answered_or_closed(
    server: ServerProcess, sent: list[bytes], begin: bool, cuts: list[int], close: bool
) -> None:
    start = PREFACE + http2_peer.settings()
    if begin:  # a good call first, so that the rest finds an open stream
        block = request_block(hpack.Encoder(), http2_peer.SERVICE + "ModelStreamInfer")
        start += http2_peer.frame(http2_peer.HEADERS, 4, 1, block)
    received = exchanged(server.grpc, start + b"".join(sent), cuts, close)
    assert close or received[3:4] == b"\x04", "the server's SETTINGS come first"
    with Peer(server.grpc) as peer:
        assert peer.call(1, "ModelInfer", MESSAGE).status == 0
