"""Tensors that stay on a GPU: between the steps of an ensemble, in batches, and in CUDA shared memory.

A double stands for the GPU: torch tensors in host memory, and torch instances that leave their outputs where they are. The
same code runs on a GPU in tests/gpu.
"""

import asyncio

import ml_dtypes
import numpy as np
import pytest
import torch

from serving.backends.base import backend as base
from serving.backends.onnxruntime.backend import OnnxRuntimeInstance
from serving.backends.pytorch.backend import PytorchInstance
from serving.core.datatypes import DATATYPES, datatype_of
from serving.core.device_tensor import DeviceTensor, concatenate, host_array
from serving.core.errors import ServingError
from serving.core.output_target import MemoryRange
from serving.extensions.shared_memory import CudaRegion, SharedMemory
from serving.extensions.tensor_parameters import all_on_device, find_targets, output_rule, read_input
from tests.serving.backends.driving import instance_of, random_array, request
from tests.serving.in_process import core
from tests.serving.requests import in_flight
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def gpu_double(monkeypatch):
    """Every torch instance behaves as one on a GPU, every ONNX instance as one on the CPU beside it; the inputs they saw."""
    seen = []

    def execute(self, batch):
        self._stay_on_device = all(request.asked.device_outputs for request in batch.requests)
        seen.append({name: type(tensor) for request in batch.requests for name, tensor in request.inputs.items()})
        super(PytorchInstance, self).execute(batch)

    monkeypatch.setattr(PytorchInstance, "execute", execute)
    monkeypatch.setattr(base, "gpu_count", lambda: 1)
    return seen


@pytest.fixture
def memory():
    shared = SharedMemory(allowed=True)
    shared._cuda["gpu"] = CudaRegion("gpu", 0, 4096, torch.zeros(4096, dtype=torch.uint8))
    return shared


def step(model, inputs, outputs):
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'


def pipeline(repository, *steps, outputs=("Y",), dims=4):
    (repository / "pipeline" / "1").mkdir(parents=True)
    names = [("input", "X"), *(("output", name) for name in outputs)]
    tensors = "".join(f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [{dims}] }}' for kind, name in names)
    (repository / "pipeline" / "config.pbtxt").write_text(
        f'platform: "ensemble" max_batch_size: 8 {tensors} ensemble_scheduling {{ {" ".join(steps)} }}'
    )


async def ask(server, model, inputs, memory=None, rules=None, **fields):
    answered = asyncio.get_running_loop().create_future()
    if rules:
        targets = find_targets(rules, memory, inputs=())
        fields |= {"output_targets": targets, "device_outputs": all_on_device(targets, fields.get("requested", ()))}
    server.infer(in_flight(model, inputs, lambda answer, final: answered.set_result(answer), **fields))
    answer = await asyncio.wait_for(answered, PATIENCE_S)
    if isinstance(answer, ServingError):
        raise answer
    return answer


@pytest.mark.parametrize("name", [name for name, row in DATATYPES.items() if row.itemsize])
def test_every_datatype_goes_in_and_out_of_device_memory(name):
    array = random_array(name, (3, 4))
    region = torch.zeros(256, dtype=torch.uint8)
    region[64 : 64 + array.nbytes] = torch.frombuffer(bytearray(array.tobytes()), dtype=torch.uint8)
    for start in (64, 65):  # aligned and not
        bytes_of = region[64 : 64 + array.nbytes] if start == 64 else torch.roll(region, 1)[65 : 65 + array.nbytes]
        tensor = DeviceTensor.from_bytes(bytes_of, array.dtype, array.shape)
        assert (tensor.shape, tensor.nbytes, len(tensor), datatype_of(tensor).name) == ((3, 4), array.nbytes, 3, name)
        assert host_array(tensor).dtype == array.dtype
        assert host_array(tensor[1:]).tolist() == array[1:].tolist()
        room = torch.zeros(array.nbytes, dtype=torch.uint8)
        tensor.reshape(4, 3).copy_to(room)
        assert room.numpy().tobytes() == array.tobytes()


def test_onnxruntime_takes_and_gives_device_tensors_of_each_type_by_reference(tmp_path):
    for name in ("BOOL", "INT64", "FP16", "BF16", "FP32"):
        array = random_array(name, (3, 4))
        tensor = DeviceTensor.of(torch.from_numpy(array.view(np.int16) if name == "BF16" else array).clone())
        if name == "BF16":
            tensor = DeviceTensor.of(tensor.tensor.view(torch.bfloat16))
        folder = model_factory.onnx_identity(tmp_path, name.lower(), datatype=name, dims=[4])
        with instance_of(folder) as instance:
            assert isinstance(instance, OnnxRuntimeInstance)
            instance._run = instance._run_bound
            found = instance.run({"INPUT0": tensor}, ["OUTPUT0"])["OUTPUT0"]
            assert found.dtype == array.dtype
            assert found.tolist() == array.tolist()


def test_rows_of_one_device_are_joined_there_and_others_on_the_host():
    one, two = (DeviceTensor.of(torch.full((rows, 2), float(rows))) for rows in (1, 2))
    joined = concatenate([one, two])
    assert isinstance(joined, DeviceTensor)
    assert host_array(joined).tolist() == [[1, 1], [2, 2], [2, 2]]
    mixed = concatenate([one, np.zeros((1, 2), np.float32)])
    assert isinstance(mixed, np.ndarray)
    assert mixed.tolist() == [[1, 1], [0, 0]]


@pytest.mark.asyncio
async def test_the_tensors_of_an_ensemble_stay_on_the_device_until_the_client_gets_them(tmp_path, gpu_double):
    batching = "dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: 4 }"
    for name in ("first", "second"):
        model_factory.torchscript_add_sub(tmp_path, name, extra=batching)
    pipeline(
        tmp_path,
        step("first", {"INPUT__0": "X", "INPUT__1": "X"}, {"OUTPUT__0": "a", "OUTPUT__1": "b"}),
        step("second", {"INPUT__0": "a", "INPUT__1": "b"}, {"OUTPUT__0": "Y"}),
    )
    async with core(tmp_path, load_model=("pipeline",)) as server:
        answers = await asyncio.gather(*(ask(server, "pipeline", {"X": X}) for _ in range(2)))
        for answer in answers:
            assert isinstance(answer.outputs["Y"], np.ndarray)
            assert answer.outputs["Y"].tolist() == (X * 2).tolist()
    first, second = gpu_double[-2:]
    assert set(first.values()) == {np.ndarray}
    assert set(second.values()) == {DeviceTensor}


@pytest.mark.asyncio
async def test_a_step_on_the_cpu_takes_the_outputs_of_a_step_on_a_gpu(tmp_path, gpu_double):
    model_factory.torchscript_add_sub(tmp_path, "on_gpu", dims=[1])
    model_factory.onnx_add_sub(tmp_path, "on_cpu", dims=[1])
    model_factory.python_scale(tmp_path, "in_process", factor=3)
    pipeline(
        tmp_path,
        step("on_gpu", {"INPUT__0": "X", "INPUT__1": "X"}, {"OUTPUT__0": "a", "OUTPUT__1": "b"}),
        step("on_cpu", {"INPUT0": "a", "INPUT1": "b"}, {"OUTPUT0": "c"}),
        step("in_process", {"INPUT0": "a"}, {"OUTPUT0": "d"}),
        step("on_cpu", {"INPUT0": "c", "INPUT1": "d"}, {"OUTPUT0": "Y"}),
        dims=1,
    )
    async with core(tmp_path, load_model=("pipeline",)) as server:
        answer = await ask(server, "pipeline", {"X": X[:, :1]})
        assert answer.outputs["Y"].tolist() == (X[:, :1] * 8).tolist()


@pytest.mark.asyncio
async def test_an_output_that_is_read_again_reaches_the_client_too(tmp_path, gpu_double):
    model_factory.torchscript_add_sub(tmp_path, "on_gpu")
    pipeline(
        tmp_path,
        step("on_gpu", {"INPUT__0": "X", "INPUT__1": "X"}, {"OUTPUT__0": "Y"}),
        step("on_gpu", {"INPUT__0": "Y", "INPUT__1": "Y"}, {"OUTPUT__0": "Z"}),
        outputs=("Y", "Z"),
    )
    async with core(tmp_path, load_model=("pipeline",)) as server:
        answer = await ask(server, "pipeline", {"X": X})
        assert isinstance(answer.outputs["Y"], np.ndarray)
        assert {name: array.tolist() for name, array in answer.outputs.items()} == {
            "Y": (X * 2).tolist(),
            "Z": (X * 4).tolist(),
        }


@pytest.mark.asyncio
async def test_cuda_shared_memory_is_read_and_written_where_it_is(tmp_path, gpu_double, memory):
    model_factory.torchscript_add_sub(tmp_path, "model")
    memory.view("gpu", 0, X.nbytes)[:] = torch.from_numpy(X.view(np.uint8).reshape(-1))
    async with core(tmp_path, load_model=("model",)) as server:
        inputs = {
            f"INPUT__{index}": read_input(
                memory, "m", f"INPUT__{index}", DATATYPES["FP32"], (2, 4), MemoryRange("gpu", 0, 32)
            )
            for index in (0, 1)
        }
        place = {"shared_memory_region": "gpu", "shared_memory_offset": 101, "shared_memory_byte_size": 64}
        rules = {"OUTPUT__0": output_rule("OUTPUT__0", place)}
        answer = await ask(server, "model", inputs, memory, rules, requested=("OUTPUT__0",))
        assert isinstance(answer.outputs["OUTPUT__0"], DeviceTensor)  # it never was on the host
        assert answer.in_shared_memory["OUTPUT__0"] == ("gpu", 101, 32)
        assert memory.view("gpu", 101, 32).numpy().tobytes() == (X * 2).tobytes()
        answer = await ask(server, "model", inputs, memory, rules)  # the other output goes with the answer
        assert isinstance(answer.outputs["OUTPUT__1"], np.ndarray)
        assert memory.view("gpu", 101, 32).numpy().tobytes() == (X * 2).tobytes()
    assert set(gpu_double[-1].values()) == {DeviceTensor}


def test_strings_booleans_and_wrong_sizes_in_device_memory(memory):
    memory.view("gpu", 0, 8)[:] = torch.tensor([2, 0, 0, 0, 104, 105, 7, 0], dtype=torch.uint8)
    text = read_input(memory, "m", "text", DATATYPES["BYTES"], (1,), MemoryRange("gpu", 0, 6))
    assert text.tolist() == [b"hi"]
    flags = read_input(memory, "m", "flags", DATATYPES["BOOL"], (4,), MemoryRange("gpu", 4, 4))
    assert host_array(flags).tolist() == [True, True, True, False]
    with pytest.raises(ServingError, match="Expected 6, got 8 in 'shared_memory_byte_size'"):
        read_input(memory, "m", "x", DATATYPES["BF16"], (3,), MemoryRange("gpu", 0, 8))
    assert (
        host_array(read_input(memory, "m", "x", DATATYPES["BF16"], (4,), MemoryRange("gpu", 0, 8))).dtype
        == ml_dtypes.bfloat16
    )
    assert request({"x": np.zeros((1, 2))}).asked.device_outputs is False
