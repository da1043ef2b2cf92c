"""RFC 9113 on the gRPC port: valid bytes are understood however they are cut, wrong ones end with the right code."""

from collections.abc import Iterator

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.serving.frontends.http2.http2_peer import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SERVICE,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Peer,
    frame,
    framed,
    settings,
    window_update,
)
from tests.support.serving_process import ServerProcess

PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 1, 3, 5, 6
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11
EMPTY = framed(b"")


@pytest.fixture
def peer(http_server: ServerProcess) -> Iterator[Peer]:
    with Peer(http_server.grpc) as peer:
        yield peer


# -- what is right ---------------------------------------------------------------------------------------------------
def test_the_server_speaks_first_with_its_settings_and_acknowledges_ours(peer: Peer) -> None:
    first = peer.frame()
    assert first is not None
    assert (first.kind, first.flags, first.stream_id) == (SETTINGS, 0, 0)
    assert peer.next(SETTINGS).flags == ACK


def test_a_call_may_arrive_one_byte_at_a_time(http_server: ServerProcess) -> None:
    with Peer(http_server.grpc, handshake=False) as peer:
        block = peer.block()
        call = frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, EMPTY)
        for byte in PREFACE + settings() + call:
            peer.send(bytes([byte]))
        assert peer.answer(1).status == 0


def test_many_calls_may_arrive_in_one_piece(peer: Peer) -> None:
    calls = [
        frame(HEADERS, END_HEADERS, number, peer.block()) + frame(DATA, END_STREAM, number, EMPTY)
        for number in range(1, 200, 2)
    ]
    peer.send(*calls)
    assert [peer.answer(number).status for number in range(1, 200, 2)] == [0] * 100


def test_padding_priority_and_continuation_frames_are_understood(peer: Peer) -> None:
    block = peer.block()
    payload = b"\x03" + b"\0\0\0\0\x10" + block[:5] + b"\0" * 3
    peer.send(
        frame(HEADERS, PADDED | WITH_PRIORITY, 1, payload),
        frame(CONTINUATION, 0, 1, block[5:8]),
        frame(CONTINUATION, 0, 1),
        frame(CONTINUATION, END_HEADERS, 1, block[8:]),
        frame(PRIORITY, 0, 1, b"\0\0\0\0\x05"),
        frame(DATA, PADDED, 1, b"\x02" + EMPTY[:2] + b"\0\0"),
        frame(DATA, PADDED | END_STREAM, 1, b"\x00" + EMPTY[2:]),
    )
    assert peer.answer(1).status == 0


def test_unknown_frames_settings_and_flags_are_ignored(peer: Peer) -> None:
    peer.send(frame(0xEE, 0xFF, 0, b"whatever"), frame(0x0F, 0, 77, b""), frame(SETTINGS, 0, 0, b"\x00\xf0\0\0\0\x01"))
    peer.send(frame(HEADERS, END_HEADERS | 0xC2, 1, peer.block()), frame(DATA, END_STREAM | 0xC4, 1, EMPTY))
    assert peer.answer(1).status == 0


def test_the_reserved_bit_of_a_stream_identifier_is_ignored(peer: Peer) -> None:
    peer.send(frame(HEADERS, END_HEADERS, 1 | 1 << 31, peer.block()), frame(DATA, END_STREAM, 1 | 1 << 31, EMPTY))
    assert peer.answer(1).status == 0


def test_a_ping_is_answered_with_its_own_bytes(peer: Peer) -> None:
    peer.send(frame(PING, 0, 0, b"12345678"))
    pong = peer.next(PING)
    assert (pong.flags, pong.payload) == (ACK, b"12345678")


def test_trailers_may_end_a_request(peer: Peer) -> None:
    peer.open(1)
    peer.data(1, EMPTY, end=False)
    peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, peer._encoder.encode([("x-checksum", "1")])))
    assert peer.answer(1).status == 0


def test_header_blocks_are_read_right_when_the_dynamic_table_changes_between_equal_bytes(peer: Peer) -> None:
    """The same bytes may mean another path once entries have been added: nothing kept from before may be used."""
    for number in range(1, 40, 2):
        method = ("ServerLive", "ServerReady", "ServerMetadata")[number % 3]
        answer = peer.call(number, method, EMPTY, x_value=str(number % 7))
        response = {"ServerLive": pb.ServerLiveResponse, "ServerReady": pb.ServerReadyResponse}.get(
            method, pb.ServerMetadataResponse
        )
        parsed = response.FromString(answer.message)
        assert parsed.name if method == "ServerMetadata" else (parsed.live if method == "ServerLive" else parsed.ready)


def test_a_header_table_of_size_zero_is_followed(peer: Peer) -> None:
    peer._encoder.header_table_size = 0
    for number in (1, 3, 5):
        assert peer.is_served(number)


# -- flow control ----------------------------------------------------------------------------------------------------
def metadata_size(peer: Peer) -> int:
    return len(peer.call(1, "ServerMetadata", EMPTY).body)


def test_a_response_waits_for_the_streams_window(http_server: ServerProcess) -> None:
    with Peer(http_server.grpc) as peer:
        size = metadata_size(peer)
    with Peer(http_server.grpc, initial_window_size=10) as peer:
        peer.open(1, "ServerMetadata")
        peer.data(1, EMPTY)
        received = 0
        while received < size:
            piece = peer.next(DATA, 1)
            assert 0 < len(piece.payload) <= 10
            received += len(piece.payload)
            peer.send(window_update(1, 10))
        assert peer.answer(1).status == 0


def test_a_smaller_initial_window_may_make_windows_negative(http_server: ServerProcess) -> None:
    with Peer(http_server.grpc, initial_window_size=20) as peer:
        peer.open(1, "ServerMetadata")
        peer.data(1, EMPTY)
        assert len(peer.next(DATA, 1).payload) == 20
        peer.send(settings(initial_window_size=5), window_update(1, 15))  # 20 - 20 - 15 + 15 = 0
        peer.send(frame(PING, 0, 0, b"nothing!"))
        while (found := peer.frame()) is not None and found.kind != PING:
            assert found.kind != DATA
        peer.send(window_update(1, 3))
        assert len(peer.next(DATA, 1).payload) == 3


def test_a_larger_initial_window_lets_waiting_responses_go_on(http_server: ServerProcess) -> None:
    with Peer(http_server.grpc, initial_window_size=0) as peer:
        for number in (1, 3):
            peer.open(number, "ServerMetadata")
            peer.data(number, EMPTY)
        peer.next(HEADERS, 3)
        peer.send(settings(initial_window_size=65_535))
        assert peer.answer(1).status == 0
        assert peer.answer(3).status == 0


def identity(elements: int) -> bytes:
    request = pb.ModelInferRequest(model_name="identity_uint8", raw_input_contents=[bytes(elements)])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, elements])
    return framed(request.SerializeToString())


def test_large_messages_pass_through_the_connections_window_in_frames_of_the_size_we_take(peer: Peer) -> None:
    peer.open(1, "ModelInfer")
    peer.data(1, identity(300_000))
    received = 0
    credit = 65_535
    while received < 300_000:
        piece = peer.next(DATA, 1).payload
        assert len(piece) <= 16_384
        received += len(piece)
        credit -= len(piece)
        assert credit >= 0
        if credit == 0:
            credit = 50_000
            peer.send(window_update(0, credit), window_update(1, credit))
    assert peer.answer(1).status == 0


def test_our_windows_are_opened_again_while_a_large_request_comes_in(peer: Peer) -> None:
    peer.open(1, "ModelInfer")
    peer.data(1, identity(9 << 20), end=False)
    update = peer.next(WINDOW_UPDATE, 1)
    assert int.from_bytes(update.payload, "big") > 8 << 20
    peer.send(frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert peer.is_served(3)


def test_more_than_the_window_is_a_flow_control_error_of_the_stream(peer: Peer) -> None:
    """A streaming call with too many unanswered requests opens its window no more: a client that goes on is reset."""
    slow = pb.ModelInferRequest(model_name="slow", raw_input_contents=[bytes(4)])
    slow.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    peer.open(3, "ModelStreamInfer")
    one = framed(slow.SerializeToString())
    block = one * (16_384 // len(one))
    for _ in range((17 << 20) // len(block)):
        peer.send(frame(DATA, 0, 3, block))
    answer = peer.answer(3)
    assert answer.headers["reset"] == str(FLOW_CONTROL_ERROR)
    assert peer.is_served(5)


# -- what is wrong: the connection ends ------------------------------------------------------------------------------
CONNECTION_ERRORS = {
    "DATA on stream 0": (frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    "DATA on an idle stream": (frame(DATA, 0, 5, b"x"), PROTOCOL_ERROR),
    "HEADERS on stream 0": (frame(HEADERS, END_HEADERS, 0, b"\x82"), PROTOCOL_ERROR),
    "HEADERS on a stream of the server's": (frame(HEADERS, END_HEADERS, 2, b"\x82"), PROTOCOL_ERROR),
    "HEADERS without room for its priority": (frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"abc"), FRAME_SIZE_ERROR),
    "HEADERS with too much padding": (frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05\x82"), PROTOCOL_ERROR),
    "HEADERS without a pad length": (frame(HEADERS, END_HEADERS | PADDED, 1), FRAME_SIZE_ERROR),
    "an unreadable header block": (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"), COMPRESSION_ERROR),
    "a reference beyond the table": (frame(HEADERS, END_HEADERS, 1, b"\xfe"), COMPRESSION_ERROR),
    "an invalid Huffman code": (frame(HEADERS, END_HEADERS, 1, b"\x00\x84\xff\xff\xff\xff\x01a"), COMPRESSION_ERROR),
    "a frame inside a header block": (frame(HEADERS, 0, 1, b"\x82") + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR),
    "CONTINUATION of another stream": (
        frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, END_HEADERS, 3),
        PROTOCOL_ERROR,
    ),
    "CONTINUATION without HEADERS": (frame(CONTINUATION, END_HEADERS, 1, b"\x82"), PROTOCOL_ERROR),
    "PRIORITY on stream 0": (frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL_ERROR),
    "RST_STREAM on stream 0": (frame(RST_STREAM, 0, 0, bytes(4)), PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (frame(RST_STREAM, 0, 7, bytes(4)), PROTOCOL_ERROR),
    "RST_STREAM of the wrong length": (frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), PROTOCOL_ERROR),
    "SETTINGS of the wrong length": (frame(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    "SETTINGS ACK with settings": (frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE_ERROR),
    "ENABLE_PUSH 2": (settings(enable_push=2), PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE too large": (settings(initial_window_size=1 << 31), FLOW_CONTROL_ERROR),
    "MAX_FRAME_SIZE too small": (settings(max_frame_size=16_383), PROTOCOL_ERROR),
    "MAX_FRAME_SIZE too large": (settings(max_frame_size=1 << 24), PROTOCOL_ERROR),
    "PUSH_PROMISE": (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), PROTOCOL_ERROR),
    "PING on a stream": (frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "PING of the wrong length": (frame(PING, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "GOAWAY too short": (frame(GOAWAY, 0, 0, bytes(4)), FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0": (window_update(0, 0), PROTOCOL_ERROR),
    "WINDOW_UPDATE over the limit": (window_update(0, (1 << 31) - 1), FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE on an idle stream": (window_update(9, 1), PROTOCOL_ERROR),
    "WINDOW_UPDATE of the wrong length": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    "a frame that is too long": (b"\x10\0\0" + frame(PING, 0, 0)[3:], FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize(("data", "code"), CONNECTION_ERRORS.values(), ids=CONNECTION_ERRORS)
def test_an_error_of_the_connection_ends_it_with_its_code(peer: Peer, data: bytes, code: int) -> None:
    peer.send(data)
    assert peer.goaway().code == code


def test_a_stream_identifier_must_grow(peer: Peer) -> None:
    assert peer.is_served(5)
    peer.open(3)
    assert peer.goaway().code == STREAM_CLOSED


def test_an_http_1_client_is_told_the_protocol_of_the_port(http_server: ServerProcess) -> None:
    with Peer(http_server.grpc, handshake=False) as peer:
        peer.send(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        end = peer.goaway()
        assert end.code == PROTOCOL_ERROR
        assert b"gRPC" in end.payload


def test_the_first_frame_must_be_settings(http_server: ServerProcess) -> None:
    with Peer(http_server.grpc, handshake=False) as peer:
        peer.send(PREFACE, frame(PING, 0, 0, bytes(8)))
        assert peer.goaway().code == PROTOCOL_ERROR


def test_a_header_list_over_the_limit_ends_the_connection(peer: Peer) -> None:
    """A small block that names one large entry of the table again and again."""
    peer.open(1, x_large="v" * 3000)
    peer.data(1, EMPTY)
    assert peer.answer(1).status == 0
    peer.send(frame(HEADERS, END_HEADERS, 3, b"\xbe" * 1000))
    assert peer.goaway().code == ENHANCE_YOUR_CALM


# -- what is wrong: one stream ends ----------------------------------------------------------------------------------
def test_data_after_the_end_of_a_request_resets_the_stream(peer: Peer) -> None:
    slow = pb.ModelInferRequest(model_name="slow", raw_input_contents=[bytes(4)])
    slow.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    peer.open(1, "ModelInfer")
    # In one piece: the model could answer before the second frame.
    peer.send(frame(DATA, END_STREAM, 1, framed(slow.SerializeToString())), frame(DATA, END_STREAM, 1, b"more"))
    assert peer.answer(1).headers["reset"] == str(STREAM_CLOSED)
    assert peer.is_served(3)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE_ERROR),
        (window_update(1, 0), PROTOCOL_ERROR),
        (window_update(1, (1 << 31) - 1), FLOW_CONTROL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\x82"), PROTOCOL_ERROR),
    ],
    ids=["PRIORITY of the wrong length", "WINDOW_UPDATE of 0", "WINDOW_UPDATE over the limit", "HEADERS again"],
)
def test_an_error_of_a_stream_resets_that_stream_alone(peer: Peer, data: bytes, code: int) -> None:
    peer.open(1)
    peer.send(data)
    assert peer.answer(1).headers["reset"] == str(code)
    assert peer.is_served(3)


MALFORMED = {
    "no path": {"_path": None},
    "no method": {"_method": None},
    "no scheme": {"_scheme": None},
    "an unknown pseudo-header": {"_status": "200"},
    "an upper-case name": {"X-Upper": "1"},
    "a connection header": {"connection": "close"},
    "te that is not trailers": {"te": "gzip"},
}


@pytest.mark.parametrize("headers", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_resets_its_stream(peer: Peer, headers: dict[str, str]) -> None:
    peer.send(frame(HEADERS, END_HEADERS, 1, peer.block(SERVICE + "ServerLive", **headers)))
    assert peer.answer(1).headers["reset"] == str(PROTOCOL_ERROR)
    assert peer.is_served(3)


def test_requests_that_are_no_grpc_calls_get_an_http_status(peer: Peer) -> None:
    peer.open(1, _method="GET")
    assert peer.answer(1).headers[":status"] == "405"
    peer.open(3, content_type="application/json")
    assert peer.answer(3).headers[":status"] == "415"
    assert peer.is_served(5)
