"""A cheap gRPC load: pre-encoded ModelInfer frames over raw sockets, one request under way on each connection.

python -m benchmarks.grpc_load 127.0.0.1:8001 --model mlp --input INPUT:1,512 --clients 32 --seconds 5
"""

import argparse
import asyncio
from typing import Any, cast

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from benchmarks import closed_loop
from benchmarks.closed_loop import LoadClient, Outcome
from benchmarks.http2_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    Http2Client,
    frame,
    length_prefixed,
)


class Client(Http2Client, LoadClient):
    """Sends the same message again and again, each on a stream of its own."""

    def __init__(self, message: bytes, *load: Any) -> None:
        LoadClient.__init__(self, *load)
        body = length_prefixed(message)
        if len(body) > 16_384:
            raise ValueError(f"the request is {len(body)} bytes; this load sends one frame of at most 16384")
        self._body = body
        self._block = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        self.start_http2()
        super().connection_made(transport)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def write_request(self) -> None:
        self.stream_id += 2
        if (
            self.stream_id <= 3
        ):  # the second block refers to the fields that the first one has put into the dynamic table
            self._block = self.header_block("ModelInfer")
        self.transport.write(
            frame(HEADERS, END_HEADERS, self.stream_id, self._block)
            + frame(DATA, END_STREAM, self.stream_id, self._body)
        )

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == HEADERS and flags & END_STREAM:
            self.answered(payload.endswith(b"\x010"))  # grpc-status: 0, a literal of one byte
        elif kind in (RST_STREAM, GOAWAY):
            self.outcome.failures += 1
            self.transport.close()


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
