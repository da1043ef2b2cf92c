"""A client's side of HTTP/2 over a plain socket, which sends right and wrong frames."""

import socket
import struct
from types import TracebackType
from typing import Any, NamedTuple

import hpack
from tritonclient.grpc import service_pb2 as pb

from tests.support.serving_process import PATIENCE_S

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
SERVICE = "/inference.GRPCInferenceService/"


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        return int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload[:4], "big")


class Answer(NamedTuple):
    """What a stream was answered with; `message` is the first message of its body."""

    headers: dict[str, str]
    body: bytes

    @property
    def status(self) -> int:
        return int(self.headers["grpc-status"])

    @property
    def message(self) -> bytes:
        return self.body[5 : 5 + int.from_bytes(self.body[1:5], "big")]


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">HBBBL", len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream_id) + payload


def settings(**values: int) -> bytes:
    numbers = {"enable_push": 2, "initial_window_size": 4, "max_frame_size": 5}
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", numbers[key], value) for key, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def framed(message: bytes, compressed: int = 0) -> bytes:
    """A gRPC message after its prefix."""
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


def request_block(encoder: hpack.Encoder, path: str = SERVICE + "ServerLive", **headers: str | None) -> bytes:
    """A request's header block; keywords replace or add headers (`_` is `-`, a leading `_` is `:`), None removes one."""
    fields: dict[str, str | None] = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "test",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    for key, value in headers.items():
        fields[":" + key[1:] if key.startswith("_") else key.replace("_", "-")] = value
    return bytes(encoder.encode([(key, value) for key, value in fields.items() if value is not None]))


class Peer:
    """One connection. `handshake=False` leaves preface and SETTINGS to the test."""

    def __init__(self, address: str, handshake: bool = True, source: str = "", **our_settings: int) -> None:
        """source: the address that the server sees."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S, (source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        if handshake:
            self.send(PREFACE, settings(**our_settings))

    def __enter__(self) -> "Peer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # -- out ---------------------------------------------------------------------------------------------------------
    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def block(self, path: str = SERVICE + "ServerLive", **headers: str | None) -> bytes:
        return request_block(self._encoder, path, **headers)

    def open(self, stream_id: int, method: str = "ServerLive", **headers: str) -> None:
        self.send(frame(HEADERS, END_HEADERS, stream_id, self.block(SERVICE + method, **headers)))

    def data(self, stream_id: int, body: bytes, end: bool = True) -> None:
        """DATA frames of at most 16 KiB."""
        pieces = [body[start : start + 16_384] for start in range(0, len(body), 16_384)] or [b""]
        for index, piece in enumerate(pieces):
            self.send(frame(DATA, END_STREAM if end and index == len(pieces) - 1 else 0, stream_id, piece))

    def call(self, stream_id: int, method: str, message: Any, **headers: str) -> Answer:
        """One unary call, from headers to trailers. `message`: a protobuf message, or the body's bytes."""
        self.open(stream_id, method, **headers)
        self.data(stream_id, message if isinstance(message, bytes) else framed(message.SerializeToString()))
        return self.answer(stream_id)

    def is_served(self, stream_id: int) -> bool:
        """Whether this connection still answers calls."""
        answer = self.call(stream_id, "ServerLive", pb.ServerLiveRequest())
        return pb.ServerLiveResponse.FromString(answer.message).live

    # -- in ----------------------------------------------------------------------------------------------------------
    def frame(self) -> Frame | None:
        """The next frame; None when the server has closed the connection."""
        header = self._take(9)
        if header is None:
            return None
        high, low, kind, flags, stream_id = struct.unpack(">HBBBL", header)
        payload = self._take(high << 8 | low)
        return None if payload is None else Frame(kind, flags, stream_id, payload)

    def next(self, kind: int, stream_id: int | None = None) -> Frame:
        """The next frame of this kind; those before it are dropped (header blocks still update the table)."""
        while True:
            found = self.frame()
            assert found is not None, f"the connection was closed before a frame of kind {kind}"
            if found.kind == HEADERS and kind != HEADERS:
                self._decoder.decode(found.payload)
            if found.kind == kind and stream_id in (None, found.stream_id):
                return found

    def answer(self, stream_id: int) -> Answer:
        """Everything up to the stream's end. Headers and trailers are put together; RST_STREAM is header "reset"."""
        headers: dict[str, str] = {}
        body = b""
        while True:
            found = self.frame()
            assert found is not None, f"the connection was closed before stream {stream_id} was answered"
            if found.kind == HEADERS:
                fields = dict(self._decoder.decode(found.payload))
                if found.stream_id == stream_id:
                    headers |= fields
            elif found.stream_id == stream_id and found.kind == DATA:
                body += found.payload
            elif found.stream_id == stream_id and found.kind == RST_STREAM:
                return Answer(headers | {"reset": str(found.code)}, body)
            if found.stream_id == stream_id and found.kind in (DATA, HEADERS) and found.flags & END_STREAM:
                return Answer(headers, body)

    def goaway(self) -> Frame:
        """The GOAWAY that ends the connection; asserts that it is then closed."""
        found = self.next(GOAWAY)
        while self.frame() is not None:
            pass
        return found

    def _take(self, size: int) -> bytes | None:
        while len(self._received) < size:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._received += data
        taken, self._received = self._received[:size], self._received[size:]
        return taken
