"""System shared memory with the stock clients and their own helpers: inputs are read from it, outputs written into it."""

import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.clients.tritonclient_suite import sample
from tests.e2e.extensions.clients import PROTOCOLS, client_of, refused
from tests.support.model_factory import ONNX_TYPES, onnx_add_sub, onnx_identity
from tests.support.serving_process import ServerProcess

X = np.array([[1, 2, 3, 4]], np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for datatype in ONNX_TYPES:
        onnx_identity(repository, f"identity_{datatype.lower()}", datatype)
    onnx_add_sub(repository)
    with ServerProcess(repository, "--allow-client-shm=true") as server:
        yield server
        assert "Traceback" not in server.log


@pytest.fixture(params=PROTOCOLS)
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    with client_of(server, request.param) as client:
        yield client
        client.call("unregister_system_shared_memory")


class Region:
    """A region of the stock helper, registered under its own name."""

    def __init__(self, client: TritonClient, size: int, name: str = "") -> None:
        self.name = name or f"region-{uuid.uuid4().hex[:8]}"
        self.key = f"/slipway-test-{uuid.uuid4().hex}"
        self.size = size
        self.handle = shm.create_shared_memory_region(self.name, self.key, size)
        client.call("register_system_shared_memory", self.name, self.key, size)

    def fill(self, *arrays: np.ndarray, offset: int = 0) -> None:
        shm.set_shared_memory_region(self.handle, arrays, offset)

    def read(self, dtype: Any, shape: list[int], offset: int = 0) -> np.ndarray:
        return shm.get_contents_as_numpy(self.handle, dtype, shape, offset)

    def close(self) -> None:
        shm.destroy_shared_memory_region(self.handle)


@contextlib.contextmanager
def region(client: TritonClient, size: int) -> Iterator[Region]:
    one = Region(client, size)
    try:
        yield one
    finally:
        one.close()


def placed_input(
    client: TritonClient, name: str, array: np.ndarray, datatype: str, place: Region, size: int, offset: int = 0
) -> Any:
    tensor = client.library.InferInput(name, list(array.shape), datatype)
    tensor.set_shared_memory(place.name, size, offset)
    return tensor


def placed_output(client: TritonClient, name: str, place: Region, size: int, offset: int = 0) -> Any:
    output = client.library.InferRequestedOutput(name)
    output.set_shared_memory(place.name, size, offset)
    return output


@pytest.mark.parametrize("datatype", [*ONNX_TYPES])
def test_every_datatype_passes_through_regions(client: TritonClient, datatype: str) -> None:
    array = sample(datatype)
    data = array
    if datatype == "BYTES":
        from tritonclient.utils import serialize_byte_tensor

        data = serialize_byte_tensor(array)
        size = len(data.item())
    else:
        data = array.view(np.int16) if datatype == "BF16" else array
        size = array.nbytes
    with region(client, 4096) as place:
        place.fill(data)
        model = f"identity_{datatype.lower()}"
        inputs = [placed_input(client, "INPUT0", array, datatype, place, size)]
        result = client.call("infer", model, inputs, outputs=[placed_output(client, "OUTPUT0", place, 2048, 1024)])
        output = result.get_output("OUTPUT0")
        if client.protocol == "http":
            assert set(output) == {"name", "datatype", "shape"}, "as Triton's, whose C++ client takes no others"
        else:
            found = {key: value.string_param or value.int64_param for key, value in output.parameters.items()}
            assert found == {
                "shared_memory_region": place.name,
                "shared_memory_byte_size": size,
                "shared_memory_offset": 1024,
            }
        if datatype == "BYTES":
            assert bytes(place.read(np.uint8, [size], 1024)) == data.item()
        else:
            assert np.array_equal(place.read(data.dtype, list(data.shape), 1024), data)


def test_shared_memory_and_plain_data_may_be_mixed(client: TritonClient) -> None:
    with region(client, 64) as place:
        place.fill(X)
        plain = client.tensors({"INPUT1": X * 10})
        shared = [placed_input(client, "INPUT0", X, "FP32", place, 16)]
        outputs = [client.library.InferRequestedOutput("OUTPUT1"), placed_output(client, "OUTPUT0", place, 16, 16)]
        for inputs in (plain + shared, shared + plain):
            result = client.call("infer", "add_sub", inputs, outputs=outputs)
            assert np.array_equal(result.as_numpy("OUTPUT1"), X - X * 10)
            assert np.array_equal(place.read(np.float32, [1, 4], 16), X * 11)


def test_an_offset_need_not_be_aligned(client: TritonClient) -> None:
    with region(client, 64) as place:
        place.fill(np.frombuffer(b"\0\0\0" + X.tobytes(), np.uint8))
        inputs = [placed_input(client, "INPUT0", X, "FP32", place, 16, 3)]
        client.call("infer", "identity_fp32", inputs, outputs=[placed_output(client, "OUTPUT0", place, 16, 33)])
        assert place.read(np.uint8, [16], 33).tobytes() == X.tobytes()


def test_a_region_that_is_too_small_is_told_and_not_written_to(client: TritonClient) -> None:
    with region(client, 64) as place:
        place.fill(X, np.full(12, 7, np.float32))
        outputs = [placed_output(client, "OUTPUT0", place, 12, 16)]
        message = refused(
            client, "INVALID_ARG", client.call, "infer", "identity_fp32", client.tensors({"INPUT0": X}), outputs=outputs
        )
        assert "16 bytes" in message
        assert "12 bytes" in message
        assert set(place.read(np.float32, [12], 16).tolist()) == {7.0}


@pytest.mark.parametrize(
    ("size", "offset", "said"),
    [(16, 60, "do not fit"), (65, 0, "do not fit"), (12, 0, "Expected 16"), (20, 0, "Expected 16")],
)
def test_bounds_of_inputs_are_checked(client: TritonClient, size: int, offset: int, said: str) -> None:
    with region(client, 64) as place:
        inputs = [placed_input(client, "INPUT0", X, "FP32", place, size, offset)]
        message = refused(client, "INVALID_ARG", client.call, "infer", "identity_fp32", inputs)
        assert said in message
        assert place.key not in message


def test_bounds_of_outputs_are_checked(client: TritonClient) -> None:
    with region(client, 64) as place:
        outputs = [placed_output(client, "OUTPUT0", place, 16, 52)]
        message = refused(
            client, "INVALID_ARG", client.call, "infer", "identity_fp32", client.tensors({"INPUT0": X}), outputs=outputs
        )
        assert "do not fit" in message


def test_a_region_is_described_until_it_is_unregistered(client: TritonClient) -> None:
    with region(client, 64) as place, region(client, 32) as other:
        found = client.call("get_system_shared_memory_status", place.name)
        if client.protocol == "http":
            assert found == [{"name": place.name, "key": place.key, "offset": 0, "byte_size": 64}]
        else:
            assert found.regions[place.name].key == place.key
            assert found.regions[place.name].byte_size == 64
        client.call("unregister_system_shared_memory", place.name)
        left = client.call("get_system_shared_memory_status")
        assert [one["name"] for one in left] if client.protocol == "http" else list(left.regions) == [other.name]
        refused(client, "NOT_FOUND", client.call, "get_system_shared_memory_status", place.name)
        inputs = [placed_input(client, "INPUT0", X, "FP32", place, 16)]
        assert place.name in refused(client, "NOT_FOUND", client.call, "infer", "identity_fp32", inputs)


def test_a_name_is_registered_once(client: TritonClient) -> None:
    with region(client, 64) as place:
        code = "INVALID_ARG" if client.protocol == "http" else "ALREADY_EXISTS"
        message = refused(client, code, client.call, "register_system_shared_memory", place.name, place.key, 64)
        assert place.key not in message


@pytest.mark.parametrize(("key", "size"), [("/slipway-none", 8), ("/../etc/passwd", 8), ("", 8)])
def test_what_is_no_region_is_not_registered(client: TritonClient, key: str, size: int) -> None:
    message = refused(client, "INTERNAL", client.call, "register_system_shared_memory", "bad", key, size)
    assert f"Unable to open shared memory region: '{key}'" in message


def test_cuda_memory_says_what_this_machine_lacks(client: TritonClient) -> None:
    code = "UNAVAILABLE"
    message = refused(client, code, client.call, "register_cuda_shared_memory", "gpu", b"QUJD", 99, 64)
    assert "GPU 99" in message
    found = client.call("get_cuda_shared_memory_status")
    assert found == [] if client.protocol == "http" else not found.regions
    client.call("unregister_cuda_shared_memory")


def test_shared_memory_is_off_unless_allowed(server: ServerProcess) -> None:
    with ServerProcess(server.repositories, "--model-control-mode=explicit") as strict:
        for kind in PROTOCOLS:
            with client_of(strict, kind) as client:
                call = client.call
                message = refused(client, "UNAVAILABLE", call, "register_system_shared_memory", "x", "/x", 8)
                assert "--allow-client-shm" in message


def test_a_large_tensor_costs_its_size_once(client: TritonClient, server: ServerProcess) -> None:
    """Resident memory without what is shared with the client: one output of the model, and no copy of the input."""
    size = 256 << 20
    array = np.ones((1, size // 4), np.float32)
    process = psutil.Process(server.pid)
    with region(client, 2 * size) as place:
        place.fill(array)
        inputs = [placed_input(client, "INPUT0", array, "FP32", place, size)]
        outputs = [placed_output(client, "OUTPUT0", place, size, size)]
        before = _private_peak(process, reset=True)
        client.call("infer", "identity_fp32", inputs, outputs=outputs)
        assert _private_peak(process) - before < 1.1 * size
        assert place.read(np.float32, [1, size // 4], size)[0, -1] == 1


def _private_peak(process: psutil.Process, reset: bool = False) -> int:
    """Peak resident bytes since the last reset, less the shared ones of now."""
    proc = Path(f"/proc/{process.pid}")
    if reset:
        (proc / "clear_refs").write_text("5")
    fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    peak = int(fields["VmHWM"].split()[0]) * 1024
    return peak - int(fields["RssShmem"].split()[0]) * 1024


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_a_token_for_one_model_may_register_regions(server: ServerProcess, tmp_path: Path, kind: str) -> None:
    digest = hashlib.sha256(b"secret").hexdigest()
    grant = {"name": "shop", "sha256": digest, "models": ["add_sub"], "rights": ["infer"], "expires_at": None}
    (tmp_path / "tokens.json").write_text(json.dumps({"tokens": [grant]}))
    flags = ("--allow-client-shm=true", "--model-control-mode=explicit", f"--auth-file={tmp_path / 'tokens.json'}")
    with ServerProcess(server.repositories, *flags) as guarded, client_of(guarded, kind) as client:
        with pytest.raises(InferenceServerException):
            client.call("get_system_shared_memory_status")
        headers = {"authorization": "Bearer secret"}
        client.call("unregister_system_shared_memory", "mine", headers=headers)
        client.call("get_system_shared_memory_status", headers=headers)
