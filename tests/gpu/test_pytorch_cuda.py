"""PyTorch on CUDA: one stream per instance, tensors that stay on the device, memory that goes with the model."""

import gc

import numpy as np
import pytest
import torch

from serving.core.device_tensor import DeviceTensor
from serving.core.devices import Device
from tests.serving.backends.cases import CASES, AddSub, write_export
from tests.serving.backends.driving import config, execute, infer, instance_of, loaded, random_array, request
from tests.support import model_factory

GPU = Device("gpu", 0)
TORCHSCRIPT = next(case for case in CASES if case.name == "torchscript")


def test_each_instance_has_a_stream_of_its_own(tmp_path):
    with loaded(TORCHSCRIPT.add_sub(tmp_path)) as backend:
        one, two = (backend.create_instance(GPU, f"add_sub_0_{index}") for index in range(2))
        default = torch.cuda.default_stream(0).cuda_stream
        assert len({one._stream.cuda_stream, two._stream.cuda_stream, default}) == 3
        ones = np.ones((2, 4), np.float32)
        assert infer(two, INPUT0=ones, INPUT1=ones)["OUTPUT0"].tolist() == [[2] * 4] * 2
        one.close()
        two.close()


@pytest.mark.parametrize("datatype", ["BOOL", "INT64", "FP16", "BF16", "FP32", "FP64"])
def test_datatypes_cross_to_the_device_and_back(datatype, tmp_path):
    array = random_array(datatype, (3, 4))
    with instance_of(TORCHSCRIPT.identity(tmp_path, datatype), device=GPU) as instance:
        assert infer(instance, INPUT0=array)["OUTPUT0"].tolist() == array.tolist()


def test_an_exported_program_is_moved_to_the_device(tmp_path):
    folder = write_export(tmp_path, "model", torch.nn.Linear(3, 2), torch.ones(2, 3))
    array = random_array("FP32", (5, 3))
    with instance_of(folder) as instance:
        expected = infer(instance, input=array)["OUTPUT__0"]
    with instance_of(folder, device=GPU) as instance:
        np.testing.assert_allclose(infer(instance, input=array)["OUTPUT__0"], expected, rtol=1e-3, atol=1e-4)


def test_a_tensor_on_the_device_is_taken_and_left_there(tmp_path):
    with instance_of(TORCHSCRIPT.add_sub(tmp_path), device=GPU) as instance:
        a = torch.arange(8, dtype=torch.float32, device="cuda").reshape(2, 4)
        torch.cuda.synchronize()
        asked = request({"INPUT0": DeviceTensor.of(a), "INPUT1": DeviceTensor.of(a)})
        asked.device_outputs = True
        (answer,) = execute(instance, asked)
        assert answer["OUTPUT0"].tensor.is_cuda
        assert torch.equal(answer["OUTPUT0"].tensor, a + a)


def test_device_memory_goes_with_the_model(tmp_path):
    model_factory.write_torchscript(tmp_path, "large", torch.nn.Linear(4096, 4096))
    given = config(
        'backend: "pytorch" max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: 4096 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 4096 }'
    )
    before = torch.cuda.memory_allocated(0)
    with instance_of(tmp_path / "large", given, device=GPU) as instance:
        infer(instance, x=np.ones((1, 4096), np.float32))
        assert torch.cuda.memory_allocated(0) >= before + (64 << 20)
    del instance
    gc.collect()
    assert torch.cuda.memory_allocated(0) <= before + (1 << 20)


def test_an_aotinductor_package_for_the_cpu_is_refused_on_a_gpu(tmp_path):
    from serving.core.errors import ServingError

    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    program = torch.export.export(AddSub(), (torch.ones(1, 2), torch.ones(1, 2)))
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
    given = config(
        'backend: "pytorch" input { name: "INPUT__0" data_type: TYPE_FP32 dims: [1, 2] } '
        'input { name: "INPUT__1" data_type: TYPE_FP32 dims: [1, 2] } '
        'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [1, 2] }'
    )
    refused = pytest.raises(ServingError, match="compiled for cpu, but the instance runs on cuda")
    with refused, instance_of(folder.parent, given, device=GPU):
        pass
