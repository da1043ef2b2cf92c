"""Tensors that stay on the GPU: through an ensemble, and in the CUDA shared memory of another process."""

import base64
import subprocess
import sys

import numpy as np
import pytest

from serving.core.datatypes import DATATYPES
from serving.core.device_tensor import DeviceTensor
from serving.core.output_target import MemoryRange
from serving.extensions.shared_memory import SharedMemory
from serving.extensions.tensor_parameters import output_rule, read_input
from tests.serving.core.test_device_tensors import X, ask, pipeline, step
from tests.serving.in_process import core, infer
from tests.support import model_factory

ON_GPU = "instance_group { kind: KIND_GPU count: 2 } dynamic_batching { }"

# Allocates 4096 bytes, writes 0 .. 7 as FP32, prints its handle, and prints the bytes behind them when it is told to.
CLIENT = """
import base64, ctypes, sys
import numpy as np
import torch
torch.cuda.init()
for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
    try:
        runtime = ctypes.CDLL(name)
        break
    except OSError:
        continue
pointer, handle = ctypes.c_void_p(), (ctypes.c_char * 64)()
assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(4096)) == 0
values = np.arange(8, dtype=np.float32)
assert runtime.cudaMemcpy(pointer, ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(32), 1) == 0
assert runtime.cudaIpcGetMemHandle(ctypes.byref(handle), pointer) == 0
print(base64.b64encode(bytes(handle)).decode(), flush=True)
sys.stdin.readline()
found = np.zeros(8, np.float32)
assert runtime.cudaMemcpy(ctypes.c_void_p(found.ctypes.data), ctypes.c_void_p(pointer.value + 512), ctypes.c_size_t(32), 2) == 0
print(found.tolist(), flush=True)
"""


@pytest.fixture
def client():
    process = subprocess.Popen([sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.stdin.close()
    process.stdout.close()
    assert process.wait(60) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["onnx", "torch", "both"])
async def test_an_ensemble_on_the_gpu_answers_as_one_on_the_cpu(kind, tmp_path):
    first = model_factory.torchscript_add_sub if kind != "onnx" else model_factory.onnx_add_sub
    second = model_factory.onnx_add_sub if kind != "torch" else model_factory.torchscript_add_sub
    first(tmp_path, "first", extra=ON_GPU)
    second(tmp_path, "second", extra=ON_GPU)
    mark = {model_factory.onnx_add_sub: "", model_factory.torchscript_add_sub: "__"}
    one, two = mark[first], mark[second]
    pipeline(
        tmp_path,
        step("first", {f"INPUT{one}0": "X", f"INPUT{one}1": "X"}, {f"OUTPUT{one}0": "a", f"OUTPUT{one}1": "b"}),
        step("second", {f"INPUT{two}0": "a", f"INPUT{two}1": "b"}, {f"OUTPUT{two}0": "Y"}),
    )
    async with core(tmp_path, load_model=("pipeline",)) as server:
        for _ in range(20):
            assert (await infer(server, "pipeline", {"X": X}))["Y"].tolist() == (X * 2).tolist()


@pytest.mark.asyncio
async def test_a_model_reads_and_writes_the_gpu_memory_of_another_process(tmp_path, client):
    model_factory.torchscript_add_sub(tmp_path, "model", extra=ON_GPU)
    memory = SharedMemory(allowed=True)
    memory.register_cuda("gpu", base64.b64decode(client.stdout.readline()), 0, 4096)
    async with core(tmp_path, load_model=("model",)) as server:
        tensor = read_input(memory, "m", "x", DATATYPES["FP32"], (2, 4), MemoryRange("gpu", 0, 32))
        place = {"shared_memory_region": "gpu", "shared_memory_offset": 512, "shared_memory_byte_size": 32}
        rules = {"OUTPUT__0": output_rule("OUTPUT__0", place)}
        inputs = {"INPUT__0": tensor, "INPUT__1": tensor}
        answer = await ask(server, "model", inputs, memory, rules, requested=("OUTPUT__0",))
        assert isinstance(answer.outputs["OUTPUT__0"], DeviceTensor)
    memory.unregister_cuda()
    client.stdin.write("\n")
    client.stdin.flush()
    assert np.array_equal(np.fromstring(client.stdout.readline().strip("[]\n"), sep=","), np.arange(8) * 2.0)
