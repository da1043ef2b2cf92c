"""ONNX Runtime on CUDA: it does not fall back silently, binds device memory, and shares one session per device."""

import threading

import numpy as np
import pytest

from serving.backends.onnxruntime.backend import OnnxRuntimeBackend
from serving.core.device_tensor import DeviceTensor
from serving.core.devices import Device
from tests.serving.backends.driving import execute, infer, instance_of, loaded, random_array, request
from tests.support import model_factory

GPU = Device("gpu", 0)


def test_cuda_is_usable_where_there_is_a_device():
    assert OnnxRuntimeBackend.gpu_available() == (True, "")


def test_a_gpu_instance_runs_on_cuda_and_agrees_with_the_cpu(tmp_path):
    folder = model_factory.onnx_mlp(tmp_path, sizes=(64, 128, 10))
    array = random_array("FP32", (7, 64))
    with instance_of(folder, device=GPU) as instance:
        assert instance._session.get_providers()[0] == "CUDAExecutionProvider"
        on_gpu = infer(instance, INPUT=array)["OUTPUT"]
    with instance_of(folder) as instance:
        np.testing.assert_allclose(on_gpu, infer(instance, INPUT=array)["OUTPUT"], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("datatype", ["BOOL", "INT64", "FP16", "BF16", "FP32", "FP64"])
def test_datatypes_cross_to_the_device_and_back(datatype, tmp_path):
    array = random_array(datatype, (3, 4))
    with instance_of(model_factory.onnx_identity(tmp_path, datatype=datatype, dims=[4]), device=GPU) as instance:
        assert infer(instance, INPUT0=array)["OUTPUT0"].tolist() == array.tolist()


def test_a_tensor_on_the_device_is_taken_and_left_there(tmp_path):
    import torch

    with instance_of(model_factory.onnx_add_sub(tmp_path), device=GPU) as instance:
        a = torch.arange(8, dtype=torch.float32, device="cuda").reshape(2, 4)
        torch.cuda.synchronize()
        asked = request({"INPUT0": DeviceTensor.of(a), "INPUT1": DeviceTensor.of(a)})
        asked.device_outputs = True
        (answer,) = execute(instance, asked)
        assert answer["OUTPUT0"].tensor.is_cuda
        assert torch.equal(answer["OUTPUT0"].tensor, a + a)


def test_instances_of_one_device_share_a_session_and_run_at_once(tmp_path):
    array = random_array("FP32", (4, 512))
    with loaded(model_factory.onnx_mlp(tmp_path)) as backend:
        instances = [backend.create_instance(GPU, f"mlp_0_{index}") for index in range(3)]
        assert len({id(instance._session) for instance in instances}) == 1
        expected = infer(instances[0], INPUT=array)["OUTPUT"]
        wrong: list[int] = []

        def work(number: int) -> None:
            answers = (infer(instances[number], INPUT=array)["OUTPUT"] for _ in range(50))
            wrong.extend(number for answer in answers if not np.allclose(answer, expected, atol=1e-4))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        for instance in instances:
            instance.close()


def test_provider_options_are_accepted_by_the_runtime(tmp_path):
    extra = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {
            "cudnn_conv_algo_search": "1",
            "gpu_mem_limit": str(1 << 30),
            "arena_extend_strategy": "1",
            "do_copy_in_default_stream": "0",
            "memory.enable_memory_arena_shrinkage": "gpu:0",
        }.items()
    )
    with instance_of(model_factory.onnx_add_sub(tmp_path, extra=extra), device=GPU) as instance:
        options = instance._session.get_provider_options()["CUDAExecutionProvider"]
        assert options["cudnn_conv_algo_search"] == "HEURISTIC"
        assert options["gpu_mem_limit"] == str(1 << 30)
        ones = np.ones((1, 4), np.float32)
        assert infer(instance, INPUT0=ones, INPUT1=ones)["OUTPUT0"].tolist() == [[2, 2, 2, 2]]


def test_a_model_on_the_cpu_takes_tensors_from_a_gpu(tmp_path):
    import torch

    a = DeviceTensor.of(torch.ones((1, 4), device="cuda"))
    torch.cuda.synchronize()
    with instance_of(model_factory.onnx_add_sub(tmp_path)) as instance:
        for count in (1, 3):
            answers = execute(instance, *(request({"INPUT0": a, "INPUT1": a}) for _ in range(count)))
            assert [answer["OUTPUT0"].tolist() for answer in answers] == [[[2, 2, 2, 2]]] * count
