"""Measures the memory that the server needs for one request with a large tensor.

    python -m benchmarks.large_tensors --megabytes 256

An ONNX model returns the tensor unchanged. The program reports the growth of the server's peak memory, as a multiple of the
tensor, over HTTP binary, gRPC and system shared memory. The client's shared memory regions, which the server only maps, do not
count. Shared memory is measured a second time, for a model whose file gives the shape of the output. The exit status is 1 if
the growth exceeds 3 x the tensor over HTTP binary, 5 x over gRPC, or 1 x in either measurement with shared memory.
"""

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from tritonclient.utils import shared_memory

from tests.support.model_factory import onnx_identity
from tests.support.serving_process import ServerProcess

LIMITS = {"HTTP binary": 3.0, "gRPC": 5.0, "shared memory": 1.0, "shared memory, shape known": 1.0}
MB = 1_000_000
ONE_INSTANCE = "instance_group [ { count: 1 kind: KIND_CPU } ]"
Array = NDArray[np.float32]


class Peak:
    """The peak of a process's anonymous memory during the block. Mapped files do not count."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.before = self.now()
        self.largest = self.before

    def now(self) -> int:
        line = next(line for line in self._status.read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) << 10

    def _watch(self) -> None:
        while not self._end.wait(0.001):
            self.largest = max(self.largest, self.now())

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self.largest - self.before


def over_http(server: ServerProcess, model: str, array: Array) -> None:
    client = tritonclient.http.InferenceServerClient(server.http, network_timeout=120)
    tensor = tritonclient.http.InferInput("INPUT0", array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    answer = client.infer(model, [tensor], outputs=[tritonclient.http.InferRequestedOutput("OUTPUT0")])
    assert np.array_equal(answer.as_numpy("OUTPUT0")[0, ::4096], array[0, ::4096])
    client.close()


def over_grpc(server: ServerProcess, model: str, array: Array) -> None:
    client = tritonclient.grpc.InferenceServerClient(server.grpc)
    tensor = tritonclient.grpc.InferInput("INPUT0", array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    answer = client.infer(model, [tensor])
    assert np.array_equal(answer.as_numpy("OUTPUT0")[0, ::4096], array[0, ::4096])
    client.close()


def over_shared_memory(server: ServerProcess, model: str, array: Array) -> None:
    client = tritonclient.http.InferenceServerClient(server.http, network_timeout=120)
    with _region("large_in", array.nbytes) as given, _region("large_out", array.nbytes) as taken:
        shared_memory.set_shared_memory_region(given, [array])
        for name in ("large_in", "large_out"):
            client.register_system_shared_memory(name, _key(name), array.nbytes)
        tensor = tritonclient.http.InferInput("INPUT0", array.shape, "FP32")
        tensor.set_shared_memory("large_in", array.nbytes)
        output = tritonclient.http.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("large_out", array.nbytes)
        client.infer(model, [tensor], outputs=[output])
        answer = shared_memory.get_contents_as_numpy(taken, np.float32, array.shape)
        assert np.array_equal(answer[0, ::4096], array[0, ::4096])
        client.unregister_system_shared_memory()
    client.close()


def _key(name: str) -> str:
    """Return a key that no other run uses at the same time."""
    return f"/slipway_{name}_{os.getpid()}"


@contextmanager
def _region(name: str, size: int) -> "Iterator[object]":
    region = shared_memory.create_shared_memory_region(name, _key(name), size)
    try:
        yield region
    finally:
        shared_memory.destroy_shared_memory_region(region)


WAYS: dict[str, tuple[str, Callable[[ServerProcess, str, Array], None]]] = {
    "HTTP binary": ("any_shape", over_http),
    "gRPC": ("any_shape", over_grpc),
    "shared memory": ("any_shape", over_shared_memory),
    "shared memory, shape known": ("one_shape", over_shared_memory),
}


def measure(megabytes: int) -> dict[str, float]:
    """Return transport -> growth as a multiple of the tensor. Each has a separate server, warmed up by a small request."""
    found = {}
    array = np.ones((1, megabytes * MB // 4), np.float32)
    for way, (model, ask) in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            onnx_identity(Path(folder), "any_shape", extra=ONE_INSTANCE)
            onnx_identity(Path(folder), "one_shape", dims=[array.size], extra=ONE_INSTANCE)
            flags = (f"--http-max-input-size={2 * array.nbytes}", "--allow-client-shm=true")
            with ServerProcess(folder, *flags) as server:
                ask(server, "any_shape", array[:, :1000])
                with Peak(server.pid) as peak:
                    ask(server, model, array)
                found[way] = peak.growth / array.nbytes
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    found = measure(parser.parse_args().megabytes)
    print("| way | peak growth, of the tensor | limit |\n| --- | ---: | ---: |")
    for way, growth in found.items():
        print(f"| {way} | {growth:.2f} x | {LIMITS[way]:g} x |")
    sys.exit(any(round(growth, 1) > LIMITS[way] for way, growth in found.items()))


if __name__ == "__main__":
    main()
