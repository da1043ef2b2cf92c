"""TensorRT on a GPU, with plans that the test builds: profiles, dynamic shapes, data-dependent outputs, versions."""

import numpy as np
import pytest

from serving.core.device_tensor import DeviceTensor
from serving.core.devices import Device
from serving.core.errors import Code, ServingError
from tests.serving.backends.driving import config, execute, infer, instance_of, loaded, request, spec_of
from tests.support import model_factory

trt = pytest.importorskip("tensorrt", reason="the Python package 'tensorrt' is not installed")

GPU = Device("gpu", 0)
PROFILES = (((1, 4), (4, 4), (8, 4)), ((8, 4), (16, 4), (32, 4)))


def build(onnx: bytes, inputs: tuple[str, ...], profiles=PROFILES) -> bytes:
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(onnx), [parser.get_error(index).desc() for index in range(parser.num_errors)]
    settings = builder.create_builder_config()
    for least, best, most in profiles:
        profile = builder.create_optimization_profile()
        for name in inputs:
            profile.set_shape(name, least, best, most)
        settings.add_optimization_profile(profile)
    return bytes(builder.build_serialized_network(network, settings))


@pytest.fixture(scope="module")
def add_sub_plan(tmp_path_factory) -> bytes:
    folder = model_factory.onnx_add_sub(tmp_path_factory.mktemp("onnx"))
    return build((folder / "1" / "model.onnx").read_bytes(), ("INPUT0", "INPUT1"))


def write_plan(root, plan: bytes):
    folder = root / "plan" / "1"
    folder.mkdir(parents=True)
    (folder / "model.plan").write_bytes(plan)
    return folder.parent


def test_a_plan_completes_its_configuration_from_its_profiles(add_sub_plan, tmp_path):
    completed = spec_of(write_plan(tmp_path, add_sub_plan)).config
    assert completed.max_batch_size == 32
    assert completed.HasField("dynamic_batching")
    assert [(entry.name, list(entry.dims)) for entry in completed.input] == [("INPUT0", [4]), ("INPUT1", [4])]


@pytest.mark.parametrize("rows", [1, 5, 8, 20, 32])
def test_every_shape_of_every_profile_is_served(rows, add_sub_plan, tmp_path):
    given = config('backend: "tensorrt" instance_group { kind: KIND_GPU count: 1 profile: ["0", "1"] }')
    folder = write_plan(tmp_path, add_sub_plan)
    a = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    with instance_of(folder, given, GPU) as instance:
        outputs = infer(instance, INPUT0=a, INPUT1=a)
    np.testing.assert_array_equal(outputs["OUTPUT0"], a + a)
    np.testing.assert_array_equal(outputs["OUTPUT1"], a - a)


def test_a_shape_outside_the_profiles_is_the_clients_mistake_and_the_next_run_works(add_sub_plan, tmp_path):
    with instance_of(write_plan(tmp_path, add_sub_plan), device=GPU) as instance:
        large, small = np.ones((9, 4), np.float32), np.ones((1, 4), np.float32)
        with pytest.raises(ServingError, match=r"has shape \[9, 4\], but the plan was built for") as refused:
            infer(instance, INPUT0=large, INPUT1=large)
        assert refused.value.code is Code.INVALID_ARG
        assert infer(instance, INPUT0=small, INPUT1=small)["OUTPUT0"].tolist() == [[2, 2, 2, 2]]


def test_a_profile_that_the_plan_lacks_is_named(add_sub_plan, tmp_path):
    given = config('backend: "tensorrt" instance_group { kind: KIND_GPU count: 1 profile: "7" }')
    refused = pytest.raises(ServingError, match="optimisation profile '7' is not in the plan, which has 2")
    with refused, instance_of(write_plan(tmp_path, add_sub_plan), given, GPU):
        pass


def test_instances_share_the_engine_and_have_their_own_streams(add_sub_plan, tmp_path):
    with loaded(write_plan(tmp_path, add_sub_plan)) as backend:
        one, two = (backend.create_instance(GPU, f"plan_0_{index}") for index in range(2))
        assert one._engine is two._engine
        assert one._stream.cuda_stream != two._stream.cuda_stream
        one.close()
        ones = np.ones((1, 4), np.float32)
        assert infer(two, INPUT0=ones, INPUT1=ones)["OUTPUT0"].tolist() == [[2, 2, 2, 2]]
        two.close()


def test_a_tensor_on_the_device_is_taken_and_left_there(add_sub_plan, tmp_path):
    import torch

    with instance_of(write_plan(tmp_path, add_sub_plan), device=GPU) as instance:
        a = torch.arange(8, dtype=torch.float32, device="cuda").reshape(2, 4)
        torch.cuda.synchronize()
        asked = request({"INPUT0": DeviceTensor.of(a), "INPUT1": DeviceTensor.of(a)})
        asked.device_outputs = True
        (answer,) = execute(instance, asked)
        assert answer["OUTPUT0"].tensor.is_cuda
        assert torch.equal(answer["OUTPUT0"].tensor, a + a)


def test_an_output_whose_size_the_data_decides_is_allocated_during_the_run(tmp_path):
    content = model_factory.onnx_bytes(
        [model_factory.helper.make_node("NonZero", ["x"], ["where"])],
        [("x", "FP32", ["n", 4])],
        [("where", "INT64", [2, "found"])],
    )
    folder = write_plan(tmp_path, build(content, ("x",), PROFILES[:1]))
    given = config(
        'backend: "tensorrt" input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] } '
        'output { name: "where" data_type: TYPE_INT64 dims: [2, -1] }'
    )
    with instance_of(folder, given, GPU) as instance:
        for array in (np.eye(4, dtype=np.float32)[:2], np.ones((3, 4), np.float32), np.zeros((1, 4), np.float32)):
            (answer,) = execute(instance, request({"x": array}, batched=False))
            assert answer["where"].tolist() == [list(part) for part in np.nonzero(array)]


def test_a_damaged_plan_is_refused_in_one_sentence(add_sub_plan, tmp_path):
    folder = write_plan(tmp_path, add_sub_plan[: len(add_sub_plan) // 2])
    with pytest.raises(ServingError, match=r"TensorRT .* cannot load the plan") as refused:
        spec_of(folder)
    assert refused.value.code is Code.INVALID_ARG
    assert "\n" not in refused.value.message
