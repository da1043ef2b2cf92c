"""A cheap gRPC load: pre-encoded ModelInfer frames over raw sockets, one request under way on each connection.

python -m benchmarks.grpc_load 127.0.0.1:8001 --model mlp --input INPUT:1,512 --clients 32 --seconds 5
"""

import argparse
import asyncio
import struct
from typing import Any, cast

import hpack
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from benchmarks import closed_loop
from benchmarks.closed_loop import LoadClient, Outcome

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME = struct.Struct(">HBBBL")
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
PATH = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return FRAME.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream_id) + payload


class Client(LoadClient):
    """Sends the same message again and again, each on a stream of its own."""

    def __init__(self, message: bytes, *load: Any) -> None:
        super().__init__(*load)
        body = b"\0" + len(message).to_bytes(4, "big") + message
        if len(body) > 16_384:
            raise ValueError(f"the request is {len(body)} bytes; this load sends one frame of at most 16384")
        self._body = body
        self._encoder = hpack.Encoder()
        self._stream_id = -1
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Windows so large that this side never has to open them again.
        settings = frame(SETTINGS, 0, 0, struct.pack(">HL", 4, (1 << 31) - 1))
        window = frame(WINDOW_UPDATE, 0, 0, ((1 << 31) - 1 - 65_535).to_bytes(4, "big"))
        cast(asyncio.WriteTransport, transport).write(PREFACE + settings + window)
        super().connection_made(transport)

    def write_request(self) -> None:
        self._stream_id += 2
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", PATH),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        block = self._encoder.encode(fields) if self._stream_id <= 3 else self._block
        self._block = block
        self.transport.write(frame(HEADERS, 4, self._stream_id, block) + frame(DATA, 1, self._stream_id, self._body))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        position = 0
        while len(data) - position >= 9:
            high, low, kind, flags, _ = FRAME.unpack_from(data, position)
            stop = position + 9 + (high << 8 | low)
            if stop > len(data):
                break
            if kind == HEADERS and flags & 1:
                self.answered(data[position + 9 : stop].endswith(b"\x010"))  # grpc-status: 0, a literal of one byte
            elif kind == PING and not flags & 1:
                self.transport.write(frame(PING, 1, 0, data[position + 9 : stop]))
            elif kind == SETTINGS and not flags & 1:
                self.transport.write(frame(SETTINGS, 1, 0, b""))
            elif kind in (RST_STREAM, GOAWAY):
                self.outcome.failures += 1
                self.transport.close()
            position = stop
        self._rest = data[position:]


def measure(address: str, message: bytes, clients: int, seconds: float, limit: int = 10_000_000) -> Outcome:
    """The load with a serialised ModelInferRequest."""
    return closed_loop.measure(address, lambda *load: Client(message, *load), clients, seconds, limit)


def infer_message(model: str, inputs: dict[str, np.ndarray], datatype: str = "FP32") -> bytes:
    """A serialised ModelInferRequest with raw contents."""
    request = pb.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="host:port of the gRPC endpoint")
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True, help="name and shape of the FP32 input: INPUT:1,512")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    name, _, dims = arguments.input.partition(":")
    array = np.random.default_rng(0).random([int(dim) for dim in dims.split(",")], np.float32)
    message = infer_message(arguments.model, {name: array})
    for clients in arguments.clients:
        outcome = measure(arguments.address, message, clients, arguments.seconds)
        print(
            f"{clients:4d} clients: {outcome.per_second:9.0f} infer/s, p50 {outcome.percentile_ms(50):7.2f} ms, "
            f"p99 {outcome.percentile_ms(99):7.2f} ms, {outcome.failures} failed"
        )


if __name__ == "__main__":
    main()
