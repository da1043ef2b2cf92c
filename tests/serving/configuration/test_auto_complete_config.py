"""A missing or partial configuration is completed from the model file as Triton does; a contradiction is named."""

import pytest
from tritonclient.grpc.model_config_pb2 import TYPE_FP32, ModelConfig, ModelInstanceGroup

from serving.configuration.effective_config import auto_complete_config
from serving.core.errors import Code, ServingError
from tests.serving.backends.driving import config
from tests.serving.in_process import core
from tests.support import model_factory


def completed(folder, text: str = "", version: int = 1) -> ModelConfig:
    return auto_complete_config(config(text), folder, version)


@pytest.fixture
def add_sub(tmp_path):
    return model_factory.onnx_add_sub(tmp_path, config=None)


def test_nothing_given_becomes_a_whole_configuration(add_sub):
    result = completed(add_sub)
    assert result.name == "add_sub"
    assert result.backend == "onnxruntime"
    assert result.platform == "onnxruntime_onnx"
    assert result.default_model_filename == "model.onnx"
    assert result.max_batch_size == 4
    assert result.HasField("dynamic_batching")
    assert [(entry.name, list(entry.dims)) for entry in result.input] == [("INPUT0", [4]), ("INPUT1", [4])]
    assert [(entry.name, list(entry.dims)) for entry in result.output] == [("OUTPUT0", [4]), ("OUTPUT1", [4])]
    (group,) = result.instance_group
    assert (group.name, group.count, group.kind) == ("add_sub", 2, ModelInstanceGroup.KIND_CPU)


def test_given_fields_are_not_changed(add_sub):
    given = config("max_batch_size: 2 instance_group { count: 3 kind: KIND_CPU }")
    before = given.SerializeToString()
    result = auto_complete_config(given, add_sub, 1)
    assert given.SerializeToString() == before
    assert result.max_batch_size == 2
    assert result.instance_group[0].count == 3


def test_only_missing_fields_of_a_tensor_are_filled(add_sub):
    result = completed(add_sub, 'max_batch_size: 8 input { name: "INPUT1" } input { name: "INPUT0" dims: 4 }')
    assert [entry.name for entry in result.input] == ["INPUT1", "INPUT0"]
    assert list(result.input[0].dims) == [4]
    assert list(result.input[1].dims) == [4]
    assert result.input[1].data_type == TYPE_FP32


def test_a_whole_configuration_of_a_model_without_batching_gets_none(add_sub):
    text = (add_sub / "config.pbtxt").read_text() if (add_sub / "config.pbtxt").exists() else ""
    assert not text
    tensors = "".join(
        f"{kind} {{ name: '{kind.upper()}{index}' data_type: TYPE_FP32 dims: [-1, 4] }}"
        for kind in ("input", "output")
        for index in (0, 1)
    )
    result = completed(add_sub, tensors)
    assert result.max_batch_size == 0
    assert not result.HasField("dynamic_batching")


def test_another_scheduler_is_left_alone(add_sub):
    result = completed(add_sub, "sequence_batching { }")
    assert result.WhichOneof("scheduling_choice") == "sequence_batching"


def test_a_batch_of_one_gets_no_dynamic_batcher(add_sub):
    assert not completed(add_sub, "max_batch_size: 1").HasField("dynamic_batching")


def test_a_model_with_a_fixed_first_dimension_does_not_batch(tmp_path):
    folder = model_factory.onnx_identity(tmp_path, dims=[3, 4], max_batch_size=0, config=None)
    result = completed(folder)
    assert result.max_batch_size == 0
    assert list(result.input[0].dims) == [3, 4]
    with pytest.raises(ServingError, match=r"max_batch_size is 4, but the model cannot batch: .* shape \[3, 4\]"):
        completed(folder, "max_batch_size: 4")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'max_batch_size: 8 input { name: "INPUT0" data_type: TYPE_INT32 dims: 4 } input { name: "INPUT1" }',
            "input 'INPUT0' has data_type INT32, but the model expects FP32",
        ),
        (
            'max_batch_size: 8 input { name: "INPUT0" dims: 5 } input { name: "INPUT1" }',
            "input 'INPUT0' has shape [-1, 5], the batch dimension included, but the model expects [-1, 4]",
        ),
        (
            'max_batch_size: 8 input { name: "INPUT0" dims: [4, 1] } input { name: "INPUT1" }',
            "input 'INPUT0' has shape [-1, 4, 1], the batch dimension included, but the model expects [-1, 4]",
        ),
        (
            'max_batch_size: 8 input { name: "image" } input { name: "INPUT1" }',
            "input 'image' is not in the model, whose inputs are 'INPUT0', 'INPUT1'",
        ),
        (
            'max_batch_size: 8 output { name: "label" }',
            "output 'label' is not in the model, whose outputs are 'OUTPUT0', 'OUTPUT1'",
        ),
        (
            'max_batch_size: 8 input { name: "INPUT0" }',
            "the model's input 'INPUT1' is not in the configuration, whose inputs are 'INPUT0'",
        ),
    ],
)
def test_a_contradiction_names_the_tensor_and_both_sides(text, expected, add_sub):
    with pytest.raises(ServingError) as refused:
        completed(add_sub, text)
    assert refused.value.code is Code.INVALID_ARG
    assert refused.value.message == expected


def test_outputs_may_be_fewer_than_the_model_has(add_sub):
    result = completed(add_sub, 'max_batch_size: 8 output { name: "OUTPUT1" }')
    assert [entry.name for entry in result.output] == ["OUTPUT1"]


def test_a_reshape_is_checked_in_the_models_shape(add_sub):
    text = 'max_batch_size: 8 input { name: "INPUT0" dims: [2, 2] reshape { shape: 4 } } input { name: "INPUT1" }'
    assert list(completed(add_sub, text).input[0].dims) == [2, 2]


def test_inputs_of_the_sequence_batcher_need_no_entry(add_sub):
    control = 'sequence_batching { control_input { name: "INPUT1" control { kind: CONTROL_SEQUENCE_START } } }'
    result = completed(add_sub, f'max_batch_size: 8 input {{ name: "INPUT0" }} {control}')
    assert [entry.name for entry in result.input] == ["INPUT0"]


def test_the_platform_names_the_backend(add_sub):
    assert completed(add_sub, 'platform: "onnxruntime_onnx"').backend == "onnxruntime"


def test_a_folder_without_a_model_file_names_the_expected_files(tmp_path):
    (tmp_path / "empty" / "1").mkdir(parents=True)
    with pytest.raises(ServingError, match=r"none of MAR-INF, model\.onnx, model\.pt") as refused:
        completed(tmp_path / "empty")
    assert refused.value.code is Code.INVALID_ARG
    with pytest.raises(ServingError, match=r"the version folder has no 'model\.onnx'") as missing:
        completed(tmp_path / "empty", 'backend: "onnxruntime"')
    assert missing.value.code is Code.NOT_FOUND


def test_an_unknown_backend_is_named(add_sub):
    with pytest.raises(ServingError, match="unknown backend 'caffe'"):
        completed(add_sub, 'backend: "caffe" default_model_filename: "model.onnx"')


def test_an_ensemble_is_left_as_it_is(tmp_path):
    (tmp_path / "pipeline" / "1").mkdir(parents=True)
    text = 'ensemble_scheduling { step { model_name: "a" model_version: -1 } }'
    result = completed(tmp_path / "pipeline", text)
    assert result.platform == "ensemble"
    assert not result.instance_group


def test_each_version_is_completed_from_its_own_file(tmp_path):
    model_factory.onnx_identity(tmp_path, dims=[3], config=None, version=1)
    folder = model_factory.onnx_identity(tmp_path, dims=[7], config=None, version=2)
    assert [list(completed(folder, version=version).input[0].dims) for version in (1, 2)] == [[3], [7]]


@pytest.mark.parametrize(
    ("default", "expected"),
    [({}, 4), ({"": "16"}, 16), ({"": "16", "onnxruntime": "32"}, 32), ({"pytorch": "16"}, 4), ({"": "0"}, 0)],
)
def test_the_default_batch_size_may_be_set_for_all_backends_or_for_one(tmp_path, default, expected):
    folder = model_factory.onnx_add_sub(tmp_path, config=None)
    completed = auto_complete_config(config(""), folder, 1, default)
    assert completed.max_batch_size == expected
    assert completed.HasField("dynamic_batching") == (expected > 1)
    assert list(completed.input[0].dims) == ([4] if expected else [-1, 4])
    assert not completed.parameters


@pytest.mark.asyncio
async def test_the_configuration_in_force_has_the_defaults_that_triton_fills_in(tmp_path):
    """Compared with tritonserver 2.51 over 45 models: these fields are all that it adds."""
    model_factory.onnx_scale(
        tmp_path, "batched", extra="dynamic_batching {} instance_group [{ count: 2 }, { kind: KIND_CPU }]"
    )
    model_factory.onnx_scale(
        tmp_path,
        "ordered",
        extra="sequence_batching { oldest { max_candidate_sequences: 4 } } optimization { input_pinned_memory {} }",
    )
    for strict in (False, True):
        async with core(tmp_path, load_model=("*",), disable_auto_complete_config=strict) as server:
            config = server.model_config("batched")
            assert config.version_policy.latest.num_versions == 1
            assert list(config.dynamic_batching.preferred_batch_size) == [8]
            assert config.optimization.input_pinned_memory.enable
            assert config.optimization.output_pinned_memory.enable
            assert [group.name for group in config.instance_group] == ["batched_0", "batched_1"]
            config = server.model_config("ordered")
            assert list(config.sequence_batching.oldest.preferred_batch_size) == [8]
            assert config.sequence_batching.max_sequence_idle_microseconds == 1_000_000
            assert not config.optimization.input_pinned_memory.enable, "what is given stays"
            assert config.optimization.output_pinned_memory.enable
