"""TensorRT where there is none: what is missing is named. What needs no GPU is checked against a double of an engine."""

import importlib.util
from enum import Enum

import pytest

from serving.backends.tensorrt import engine as tensorrt_engine
from serving.backends.tensorrt.engine import choose_profile, engine_signature, plan_error, tensor_names
from serving.core.devices import Device
from serving.core.errors import Code, ServingError
from tests.serving.backends.driving import loaded, spec_of
from tests.support import model_factory

RESNET50 = """
name: "resnet50"
platform: "tensorrt_plan"
max_batch_size: 64
input [ { name: "input" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
output [ { name: "output" data_type: TYPE_FP32 dims: [ 1000 ] } ]
dynamic_batching { preferred_batch_size: [ 8, 16, 32 ] max_queue_delay_microseconds: 5000 }
instance_group [ { kind: KIND_GPU count: 2 } ]
"""


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(tensorrt_engine, "gpu_count", lambda: 0)
    tensorrt_engine.why_missing.cache_clear()
    yield
    tensorrt_engine.why_missing.cache_clear()


@pytest.fixture
def resnet50(tmp_path):
    folder = model_factory.write_config(tmp_path / "resnet50", RESNET50)
    (folder / "1").mkdir()
    (folder / "1" / "model.plan").write_bytes(b"ftrt" + bytes(1000))
    return folder


def test_the_seeds_resnet50_fails_to_load_in_one_sentence_with_the_missing_parts(no_gpu, resnet50):
    with pytest.raises(ServingError) as failed, loaded(resnet50):
        pass
    assert failed.value.code is Code.UNAVAILABLE
    assert "this machine has no CUDA device" in failed.value.message
    if importlib.util.find_spec("tensorrt") is None:
        assert "the Python package 'tensorrt' is not installed" in failed.value.message
    assert failed.value.message.startswith("model 'resnet50' needs TensorRT, but ")


def test_a_missing_plan_is_named_before_a_missing_gpu(no_gpu, resnet50):
    (resnet50 / "1" / "model.plan").unlink()
    with pytest.raises(ServingError, match=r"the version folder has no 'model\.plan'"):
        spec_of(resnet50)


def test_a_plan_without_a_configuration_needs_tensorrt_to_be_read(no_gpu, resnet50):
    (resnet50 / "config.pbtxt").unlink()
    with pytest.raises(ServingError, match="needs TensorRT, but"):
        spec_of(resnet50)


def test_a_plan_of_another_version_is_refused_with_both_versions():
    error = plan_error(
        "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is not compatible with this "
        "version of TensorRT, expecting library version 10.3.0.26 got 8.6.1.6, please rebuild.)",
        "10.3.0",
    )
    assert error.message == "the plan was built by TensorRT 8.6.1.6, but this machine has 10.3.0.26: build it again"


def test_the_sentence_of_any_other_refusal_has_no_error_code():
    error = plan_error(
        "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Magic tag does not match)", "10.3.0"
    )
    assert error.message == "TensorRT 10.3.0 cannot load the plan: Serialization (Magic tag does not match"


class Mode(Enum):
    INPUT = 0
    OUTPUT = 1


class DataType(Enum):
    FLOAT = 0
    FP8 = 6


class EngineDouble:
    """The part of ICudaEngine that describes tensors: two inputs, one output, three profiles."""

    num_io_tensors = 3
    num_optimization_profiles = 3
    _limits = {
        "images": [((1, 8), (4, 8), (8, 8)), ((8, 8), (16, 8), (64, 8)), ((1, 9), (1, 9), (1, 9))],
        "scale": [((1, 1), (4, 1), (8, 1)), ((8, 1), (16, 1), (32, 1)), ((1, 1), (1, 1), (1, 1))],
    }

    def __init__(self, output_type: DataType = DataType.FLOAT) -> None:
        self._types = {"images": DataType.FLOAT, "scores": output_type, "scale": DataType.FLOAT}

    def get_tensor_name(self, index):
        return ("images", "scores", "scale")[index]

    def get_tensor_mode(self, name):
        return Mode.OUTPUT if name == "scores" else Mode.INPUT

    def get_tensor_dtype(self, name):
        return self._types[name]

    def get_tensor_shape(self, name):
        return {"images": (-1, -1), "scale": (-1, 1), "scores": (-1, 10)}[name]

    def get_tensor_profile_shape(self, name, profile):
        return self._limits[name][profile]


def test_inputs_and_outputs_keep_the_engines_order():
    assert tensor_names(EngineDouble(), Mode.INPUT) == (["images", "scale"], ["scores"])


def test_the_largest_batch_that_every_input_of_a_profile_takes_is_the_limit():
    signature = engine_signature(EngineDouble(), ["images", "scale"], ["scores"])
    assert (signature.max_batch_size, signature.batch_limit) == (32, 32)
    assert signature.inputs[0].shape == (-1, -1)
    assert signature.can_batch


def test_a_type_without_a_counterpart_is_named():
    with pytest.raises(ServingError, match="tensor 'scores' is FP8"):
        engine_signature(EngineDouble(DataType.FP8), ["images"], ["scores"])


@pytest.mark.parametrize(
    ("rows", "columns", "profiles", "chosen"),
    [(2, 8, [0, 1, 2], 0), (8, 8, [0, 1, 2], 0), (8, 8, [1], 1), (20, 8, [0, 1], 1), (1, 9, [0, 1, 2], 2)],
)
def test_the_profile_with_the_nearest_optimum_is_chosen_among_those_that_fit(rows, columns, profiles, chosen):
    shapes = {"images": (rows, columns), "scale": (rows, 1)}
    assert choose_profile(EngineDouble(), shapes, profiles) == chosen


def test_a_shape_that_no_profile_takes_is_the_clients_mistake():
    with pytest.raises(
        ServingError, match=r"input 'images' has shape \[65, 8\], but .* \[1, 8\] to \[8, 8\]"
    ) as refused:
        choose_profile(EngineDouble(), {"images": (65, 8), "scale": (65, 1)}, [0, 1])
    assert refused.value.code is Code.INVALID_ARG


def test_a_device_without_a_gpu_is_refused(resnet50):
    from serving.backends.tensorrt.backend import TensorrtBackend

    backend = TensorrtBackend(spec_of(resnet50))
    with pytest.raises(ServingError, match="a TensorRT plan cannot run on the CPU"):
        backend.create_instance(Device("cpu"), "resnet50_0_0")
