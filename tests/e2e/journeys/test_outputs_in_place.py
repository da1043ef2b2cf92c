"""Large outputs of a known shape are written straight into a client's shared memory, unless that would disturb an input."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http
import tritonclient.utils.shared_memory as shm
from onnx import helper

from benchmarks.large_tensors import Peak
from tests.support.model_factory import onnx_bytes, onnx_identity, write_config, write_onnx
from tests.support.serving_process import PATIENCE_S, ServerProcess

SIZE = 1 << 24
VALUES = np.arange(SIZE, dtype=np.float32).reshape(1, SIZE)  # 64 MB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_identity(repository, dims=[SIZE])
    _reversed(repository)
    _positive(repository)
    with ServerProcess(repository, "--allow-client-shm=true") as server:
        yield server
        assert "Traceback" not in server.log


def _reversed(repository: Path) -> None:
    """The elements in the other order: a model that cannot work in place."""
    ends = {"starts": -1, "ends": -SIZE - 1, "axes": 1, "steps": -1}
    node = helper.make_node("Slice", ["INPUT0", *ends], ["OUTPUT0"])
    weights = {name: np.array([value], np.int64) for name, value in ends.items()}
    tensors = [("INPUT0", "FP32", ["batch", SIZE])], [("OUTPUT0", "FP32", ["batch", SIZE])]
    write_onnx(repository, "reversed", onnx_bytes([node], *tensors, weights))
    write_config(repository / "reversed", 'backend: "onnxruntime" max_batch_size: 2')


def _positive(repository: Path) -> None:
    """The elements over 0; the file says wrongly that all are."""
    nodes = [
        helper.make_node("Greater", ["INPUT0", "zero"], ["over"]),
        helper.make_node("Compress", ["INPUT0", "over"], ["OUTPUT0"], axis=0),
    ]
    tensors = [("INPUT0", "FP32", [1 << 21])], [("OUTPUT0", "FP32", [1 << 21])]
    write_onnx(repository, "positive", onnx_bytes(nodes, *tensors, {"zero": np.zeros((), np.float32)}))
    write_config(repository / "positive", 'backend: "onnxruntime"')


class Shared:
    """One object in shared memory, registered under several names that each are the whole of it."""

    def __init__(self, client: http.InferenceServerClient, size: int, names: tuple[str, ...]) -> None:
        key = f"/slipway-test-{uuid.uuid4().hex}"
        self.handle = shm.create_shared_memory_region(names[0], key, size)
        for name in names:
            client.register_system_shared_memory(name, key, size)

    def read(self, count: int, offset: int = 0) -> np.ndarray:
        return shm.get_contents_as_numpy(self.handle, np.float32, [count], offset)


@contextlib.contextmanager
def shared(server: ServerProcess, size: int, *names: str) -> Iterator[tuple[http.InferenceServerClient, Shared]]:
    client = http.InferenceServerClient(server.http, network_timeout=PATIENCE_S)
    one = Shared(client, size, names)
    try:
        yield client, one
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(one.handle)
        client.close()


def tensor(values: np.ndarray, region: str) -> http.InferInput:
    one = http.InferInput("INPUT0", list(values.shape), "FP32")
    one.set_shared_memory(region, values.nbytes)
    return one


def output(region: str, size: int, offset: int = 0) -> http.InferRequestedOutput:
    one = http.InferRequestedOutput("OUTPUT0")
    one.set_shared_memory(region, size, offset)
    return one


def test_an_output_of_a_known_shape_takes_no_memory_of_the_server(server: ServerProcess) -> None:
    size = VALUES.nbytes
    with shared(server, 2 * size, "both") as (client, memory):
        shm.set_shared_memory_region(memory.handle, [VALUES])
        with Peak(server.pid) as peak:
            client.infer("identity", [tensor(VALUES, "both")], outputs=[output("both", size, size)])
        assert np.array_equal(memory.read(SIZE, size), VALUES[0])
    assert peak.growth < size / 2


@pytest.mark.parametrize(("names", "offset"), [(("both",), 0), (("given", "taken"), 0), (("given", "taken"), 1 << 20)])
def test_an_output_may_lie_where_the_input_does(server: ServerProcess, names: tuple[str, ...], offset: int) -> None:
    size = VALUES.nbytes
    with shared(server, size + offset, *names) as (client, memory):
        shm.set_shared_memory_region(memory.handle, [VALUES])
        client.infer("reversed", [tensor(VALUES, names[0])], outputs=[output(names[-1], size, offset)])
        assert np.array_equal(memory.read(SIZE, offset), VALUES[0, ::-1])


@pytest.mark.parametrize("negative", [0, 1000])
def test_a_file_may_be_wrong_about_a_shape(server: ServerProcess, negative: int) -> None:
    values = np.arange(1, (1 << 21) + 1, dtype=np.float32) - negative
    wanted = values[values > 0]
    with shared(server, 2 * values.nbytes, "both") as (client, memory):
        shm.set_shared_memory_region(memory.handle, [values])
        answer = client.infer(
            "positive", [tensor(values, "both")], outputs=[output("both", values.nbytes, values.nbytes)]
        )
        assert answer.get_output("OUTPUT0")["shape"] == [len(wanted)]
        assert np.array_equal(memory.read(len(wanted), values.nbytes), wanted)
