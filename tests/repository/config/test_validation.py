"""Every rule of a configuration: what breaks it, and that it is named with its field."""

import pytest
from hypothesis import given, settings
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import parse
from repository.config.validation import check, validate
from repository.config.validation_parameters import unknown_parameters
from repository.core.errors import InvalidConfig
from tests.repository.samples import BERT_CLASSIFIER, RESNET50, model_configs

BASE = """name: "m" backend: "onnxruntime" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2, 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
"""
ENSEMBLE = """name: "e" platform: "ensemble"
input { name: "in" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "out" data_type: TYPE_FP32 dims: [ 1 ] }
ensemble_scheduling {
  step { model_name: "a" model_version: -1 input_map { key: "x" value: "in" } output_map { key: "y" value: "mid" } }
  step { model_name: "b" model_version: -1 input_map { key: "x" value: "mid" } output_map { key: "y" value: "out" } }
}
"""


@pytest.mark.parametrize("text", [RESNET50, BERT_CLASSIFIER, BASE, ENSEMBLE])
def test_a_good_configuration_has_no_problems(text: str) -> None:
    config = parse(text)
    assert validate(config, name=config.name) == []
    check(config, name=config.name)


@pytest.mark.parametrize(
    ("extra", "field", "says"),
    [
        ("input { name: 'z' data_type: TYPE_FP32 dims: -2 }", "input[1].dims[0]", "expected a positive dim"),
        ("input { name: 'z' data_type: TYPE_FP32 dims: 0 }", "input[1].dims[0]", "not 0 in input 'z'"),
        (f"input {{ name: 'z' data_type: TYPE_FP32 dims: [ {1 << 40}, 2 ] }}", "input[1].dims", "elements"),
        ("input { name: 'x' data_type: TYPE_FP32 dims: 1 }", "input[1].name", "'x' is given twice"),
        ("input { data_type: TYPE_FP32 dims: 1 }", "input[1].name", "has no name"),
        ("input { name: 'z' dims: 1 }", "input[1].data_type", "has no data_type"),
        ("input { name: 'z' data_type: TYPE_FP32 }", "input[1].dims", "has no dims"),
        (
            "input { name: 'z' data_type: TYPE_FP32 dims: [2,3] reshape { shape: 5 } }",
            "input[1].reshape",
            "[2, 3] to [5]",
        ),
        (
            "input { name: 'z' data_type: TYPE_FP32 dims: [2,-1,3] reshape { shape: [6,-1] } }",
            "input[1].reshape",
            "from",
        ),
        ("input { name: 'z' data_type: TYPE_FP32 dims: 2 reshape { } }", "input[1].reshape", "from [2] to []"),
        ("input { name: 'z' data_type: TYPE_FP32 dims: 2 format: FORMAT_NCHW }", "input[1].format", "has 3 dims"),
        (
            "input { name: 'z' data_type: TYPE_FP32 dims: 2 is_shape_tensor: true }",
            "input[1].is_shape_tensor",
            "TensorRT",
        ),
        (
            "output { name: 'z' data_type: TYPE_FP32 dims: 2 label_filename: '../l' }",
            "output[1].label_filename",
            "inside",
        ),
        ("default_model_filename: '/etc/passwd'", "default_model_filename", "inside the model's folder"),
        ("platform: 'tensorrt_plan'", "platform", "does not belong to backend 'onnxruntime'"),
        ("version_policy { specific { } }", "version_policy.specific.versions", "names no version"),
        ("version_policy { specific { versions: 0 } }", "version_policy.specific.versions[0]", "count from 1"),
        ("instance_group { count: -1 }", "instance_group[0].count", "expected 1 to 1024"),
        ("instance_group { count: 5000 }", "instance_group[0].count", "not 5000"),
        ("instance_group { kind: KIND_CPU gpus: 0 }", "instance_group[0].gpus", "KIND_CPU"),
        ("instance_group { gpus: [0, 0] }", "instance_group[0].gpus", "given twice"),
        ("instance_group { gpus: -1 }", "instance_group[0].gpus[0]", "count from 0"),
        ("instance_group { profile: '1' }", "instance_group[0].profile", "only TensorRT"),
        (
            "dynamic_batching { preferred_batch_size: [4, 16] }",
            "dynamic_batching.preferred_batch_size[1]",
            "max_batch_size",
        ),
        ("dynamic_batching { preferred_batch_size: 0 }", "dynamic_batching.preferred_batch_size[0]", "1 or more"),
        ("dynamic_batching { priority_levels: 2 }", "dynamic_batching.default_priority_level", "expected 1 to 2"),
        (
            "dynamic_batching { priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 2 value { } } }",
            "dynamic_batching.priority_queue_policy[2]",
            "priority level 2: expected 1 to 1",
        ),
        (
            "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
            "dynamic_batching.priority_levels",
            "one priority level",
        ),
        (
            "dynamic_batching { preserve_ordering: true"
            " default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9 } }",
            "dynamic_batching.default_queue_policy.timeout_action",
            "DELAY",
        ),
        ("sequence_batching { control_input { } }", "sequence_batching.control_input[0].name", "no name"),
        (
            "sequence_batching { control_input { name: 'S' control { kind: CONTROL_SEQUENCE_START } } }",
            "sequence_batching.control_input[0].control[0]",
            "exactly one of",
        ),
        (
            "sequence_batching { control_input { name: 'C' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }",
            "sequence_batching.control_input[0].control[0].data_type",
            "correlation ID",
        ),
        (
            "sequence_batching { direct { minimum_slot_utilization: 2 } }",
            "sequence_batching.direct.minimum_slot_utilization",
            "between 0 and 1",
        ),
        (
            "sequence_batching { state { input_name: 'i' output_name: 'o' dims: 2 } }",
            "sequence_batching.state[0].data_type",
            "no data_type",
        ),
        *(
            (
                "sequence_batching { state { input_name: 'i' output_name: 'o' data_type: TYPE_FP32 dims: [2, -1] "
                f"initial_state {{ {text} }} }} }}",
                f"sequence_batching.state[0].initial_state{field}",
                wrong,
            )
            for text, field, wrong in (
                ("data_type: TYPE_FP32 dims: [2, 5] zero_data: true", "[0].name", "has no name"),
                (
                    "name: 'n' data_type: TYPE_INT32 dims: [2, 5] zero_data: true",
                    "[0].data_type",
                    "TYPE_FP32 as in the state",
                ),
                ("name: 'n' data_type: TYPE_FP32 dims: [3, 5] zero_data: true", "[0].dims", "none of"),
                ("name: 'n' data_type: TYPE_FP32 dims: [2, -1] zero_data: true", "[0].dims", "none of"),
                ("name: 'n' data_type: TYPE_FP32 dims: 2 zero_data: true", "[0].dims", "none of"),
                ("name: 'n' data_type: TYPE_FP32 dims: [2, 5]", "[0]", "neither zero_data nor data_file"),
                (
                    "name: 'n' data_type: TYPE_FP32 dims: [2, 5] zero_data: true } "
                    "initial_state { name: 'm' data_type: TYPE_FP32 dims: [2, 5] zero_data: true",
                    "",
                    "several initial states",
                ),
            )
        ),
        ("batch_input { source_input: 'q' data_type: TYPE_FP32 }", "batch_input[0].source_input[0]", "no input 'q'"),
        ("batch_output { source_input: 'x' target_name: 'q' }", "batch_output[0].target_name[0]", "no output 'q'"),
        (
            "parameters { key: 'intra_op_thread_count' value { string_value: 'two' } }",
            'parameters["intra_op_thread_count"]',
            "two",
        ),
        (
            "parameters { key: 'execution_mode' value { string_value: '3' } }",
            'parameters["execution_mode"]',
            "parallel",
        ),
        (
            "parameters { key: 'slipway.rollout' value { string_value: '{' } }",
            'parameters["slipway.rollout"]',
            "not JSON",
        ),
        ("optimization { graph { level: 7 } }", "optimization.graph.level", "expected -1"),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tpu' } } }",
            "optimization.execution_accelerators.gpu_execution_accelerator[0].name",
            "not 'tpu'",
        ),
        (
            "model_warmup { batch_size: 9 inputs { key: 'x' value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }",
            "model_warmup[0].batch_size",
            "at most 8",
        ),
        (
            "model_warmup { inputs { key: 'q' value { zero_data: true } } }",
            'model_warmup[0].inputs["q"]',
            "no input 'q'",
        ),
        (
            "model_warmup { inputs { key: 'x' value { data_type: TYPE_INT8 dims: 1 zero_data: true } } }",
            'model_warmup[0].inputs["x"].data_type',
            "expected TYPE_FP32",
        ),
        (
            "model_warmup { inputs { key: 'x' value { data_type: TYPE_FP32 } } }",
            'model_warmup[0].inputs["x"]',
            "none of",
        ),
        ("response_cache { enable: true } sequence_batching { }", "response_cache", "sequence batching"),
        ("model_metrics { metric_control { } }", "model_metrics.metric_control[0].metric_identifier.family", "family"),
        ("ensemble_scheduling { step { } }", "backend", "an ensemble has no backend"),
    ],
)
def test_a_broken_rule_is_named_with_its_field(extra: str, field: str, says: str) -> None:
    problems = validate(parse(BASE + extra), name="m")
    assert [problem for problem in problems if problem.field == field and says in problem.message], problems


@pytest.mark.parametrize(
    ("old", "new", "field", "says"),
    [
        ('value: "mid" } output_map { key: "y" value: "out"', 'value: "q" } output_map { key: "y" value: "out"',
         'ensemble_scheduling.step[1].input_map["x"]', "nothing writes it"),
        ('value: "in" }', 'value: "out" }', 'ensemble_scheduling.step[0].input_map["x"]', "only a step that waits"),
        ('value: "mid" } }\n', 'value: "out" } }\n', 'ensemble_scheduling.step[1].output_map["y"]', "writes tensor 'out'"),
        ('name: "out"', 'name: "other"', "output[0].name", "no step writes output 'other'"),
        ('model_name: "a"', 'model_name: "e"', "ensemble_scheduling.step[0].model_name", "the ensemble itself"),
        ('model_name: "a"', "", "ensemble_scheduling.step[0].model_name", "names no model"),
        ('input_map { key: "x" value: "in" }', "", "ensemble_scheduling.step[0].input_map", "maps no tensor"),
        ('platform: "ensemble"', 'platform: "ensemble" instance_group { }', "instance_group", "does not apply"),
        ('platform: "ensemble"', "", "platform", 'needs platform: "ensemble"'),
    ],
)  # fmt: skip
def test_a_broken_ensemble_is_explained(old: str, new: str, field: str, says: str) -> None:
    assert old in ENSEMBLE
    problems = validate(parse(ENSEMBLE.replace(old, new, 1)), name="e")
    assert [problem for problem in problems if problem.field == field and says in problem.message], problems


def test_the_name_must_be_the_folders() -> None:
    assert [problem.field for problem in validate(parse(BASE), name="other")] == ["name"]


def test_all_problems_are_reported_at_once() -> None:
    config = parse("max_batch_size: -1 input { name: 'x' dims: 0 } instance_group { count: -4 }")
    with pytest.raises(InvalidConfig) as caught:
        check(config)
    fields = {problem.field for problem in caught.value.problems}
    assert {
        "name",
        "backend",
        "max_batch_size",
        "input[0].dims[0]",
        "input[0].data_type",
        "instance_group[0].count",
    } <= fields


def test_what_the_server_completes_may_be_missing() -> None:
    config = parse("max_batch_size: 4 input { name: 'x' }")
    assert validate(config, name="m", complete=False) == []
    assert validate(config, name="m") != []


@settings(deadline=None, max_examples=150)
@given(model_configs())
def test_validation_never_fails_itself(config: ModelConfig) -> None:
    for problem in validate(config, name="m"):
        assert problem.message


TEXT_MODEL = """name: "t" backend: "python"
input { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "pixels" data_type: TYPE_UINT8 dims: [ -1 ] }
input { name: "pair" data_type: TYPE_STRING dims: [ 2 ] }
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
"""


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object such as"),
        ('{"prompt": "prompt"}', "not 'prompt'"),
        ('{"output": 5}', "expected 'output' to be a text, not 5"),
        ('{"prompt_input": "prompt", "message": 5}', "expected 'message' to be a text, or an object"),
        ('{"prompt_input": "prompt", "message": {}}', "expected 'message' to be a text, or an object"),
        ('{"prompt_input": "prompt", "message": {"user": "hello"}}', "where its {content} goes"),
        ("{}", "'prompt_input': the model has no input 'text_input'"),
        ('{"prompt_input": "pixels"}', "expected input 'pixels' to be TYPE_STRING, not TYPE_UINT8"),
        ('{"prompt_input": "pair"}', "expected input 'pair' to hold one text, but its dims are [2]"),
        ('{"prompt_input": "prompt", "output": "x"}', "'output': the model has no output 'x'"),
        ('{"messages_input": "x"}', "'messages_input': the model has no input 'x'"),
    ],
)
def test_a_declaration_of_text_generation_is_checked_against_the_model(value: str, says: str) -> None:
    config = parse(TEXT_MODEL)
    config.parameters["slipway.text_generation"].string_value = value
    [problem] = validate(config)
    assert problem.field == 'parameters["slipway.text_generation"]'
    assert says in problem.message


@pytest.mark.parametrize("value", ['{"prompt_input": "prompt"}', '{"messages_input": "prompt"}'])
def test_a_good_declaration_of_text_generation_is_none_of_the_problems(value: str) -> None:
    config = parse(TEXT_MODEL)
    config.parameters["slipway.text_generation"].string_value = value
    assert validate(config) == []


def test_tensors_that_are_not_known_yet_are_not_missed() -> None:
    config = parse('name: "t" backend: "python"')
    config.parameters["slipway.text_generation"].string_value = '{"prompt_input": "any"}'
    assert validate(config, complete=False) == []


def test_a_misspelt_parameter_of_slipways_is_said_and_one_of_others_is_not() -> None:
    config = parse('name: "t" backend: "python"')
    for key in ("slipway.Trafic", "slipway.from_the_future", "slipway.isolation", "traffic"):
        config.parameters[key].string_value = '"none"'
    future, misspelt = (problem.message for problem in sorted(unknown_parameters(config), reverse=True))
    assert misspelt == "'slipway.Trafic' means nothing and is ignored; did you mean 'slipway.traffic'?"
    assert future == "'slipway.from_the_future' means nothing and is ignored"


@pytest.mark.parametrize(
    ("value", "says"), [('"thread"', 'not "thread"'), ("process", "(character 1: expecting value)")]
)
def test_the_word_for_isolation_is_checked(value: str, says: str) -> None:
    config = parse('name: "t" backend: "python"')
    config.parameters["slipway.isolation"].string_value = value
    (problem,) = validate(config, complete=False)
    assert says in problem.message


BOUND = 'parameters["slipway.execution_timeout_s"]'


@pytest.mark.parametrize("value", ["0", "-1", "true", '"5"', "1e12", "[1]"])
def test_a_bound_on_batches_is_a_number_of_seconds(value: str) -> None:
    config = parse(BASE.replace("onnxruntime", "python"))
    config.parameters["slipway.execution_timeout_s"].string_value = value
    [problem] = validate(config, name="m")
    assert problem.field == BOUND
    assert "expected a number of seconds over 0" in problem.message


@pytest.mark.parametrize(
    ("backend", "isolation", "fields"),
    [
        ("python", None, []),
        ("tensorflow", None, []),
        ("onnxruntime", '"process"', []),
        ("onnxruntime", '"none"', [BOUND]),
        ("onnxruntime", None, [BOUND]),
        ("onnxruntime", "{", ['parameters["slipway.isolation"]']),
    ],
)
def test_a_bound_on_batches_needs_a_process_that_can_be_ended(
    backend: str, isolation: str | None, fields: list[str]
) -> None:
    config = parse(BASE.replace("onnxruntime", backend))
    config.parameters["slipway.execution_timeout_s"].string_value = "2.5"
    if isolation is not None:
        config.parameters["slipway.isolation"].string_value = isolation
    assert [problem.field for problem in validate(config, name="m")] == fields


@pytest.mark.parametrize(
    ("value", "wrong"), [("0", False), ("250.5", False), ("-1", True), ("10001", True), ('"fast"', True)]
)
def test_a_bound_of_inline_execution_is_a_number_of_microseconds(value: str, wrong: bool) -> None:
    config = parse(BASE)
    config.parameters["slipway.inline_below_us"].string_value = value
    found = [problem.field for problem in validate(config, name="m")]
    assert found == ['parameters["slipway.inline_below_us"]'] * wrong


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ('{"first": {"retries": 0, "timeout_ms": 1}}', False),
        ('{"first": {}}', False),
        ("[]", True),
        ('{"second": {"retries": 1}}', True),
        ('{"first": 1}', True),
        ('{"first": {"retry": 1}}', True),
        ('{"first": {"retries": -1}}', True),
        ('{"first": {"retries": true}}', True),
        ('{"first": {"timeout_ms": 0}}', True),
        ('{"first": {"timeout_ms": 2147483648}}', True),
    ],
)
def test_retries_are_said_of_steps_that_there_are(value: str, wrong: bool) -> None:
    config = parse(
        """name: "m" platform: "ensemble"
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        ensemble_scheduling { step { model_name: "first" model_version: -1
            input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }"""
    )
    config.parameters["slipway.step_retries"].string_value = value
    found = [problem.field for problem in validate(config, name="m")]
    assert found == ['parameters["slipway.step_retries"]'] * wrong
