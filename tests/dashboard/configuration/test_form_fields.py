"""The fields of the form: each is read from a text, laid over it, and leaves the rest of it as it was."""

from typing import Any

import pytest

from dashboard.configuration.field_values import FieldError
from dashboard.configuration.fields import apply_fields, field_for, fields_of
from dashboard.configuration.services import config_preview
from repository.config import model_config
from repository.config.document import Document
from repository.config.model_config import SLIPWAY_PREFIX

INPUTS = """max_batch_size: 8
input [
  { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] },
  { name: "words" data_type: TYPE_STRING dims: [ 2 ] },
  { name: "more" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
]
"""


def laid(text: str, **fields: Any) -> str:
    config = model_config.parse(text)
    apply_fields(config, fields)
    return Document.read(text).with_message(config).text


def read(text: str) -> dict[str, Any]:
    return dict(fields_of(model_config.parse(text)))


def test_an_empty_reshape_stays_and_is_taken_away_only_on_purpose() -> None:
    text = 'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { } }\n'
    fields = read(text)
    assert fields["inputs"][0]["reshape"] == []
    assert laid(text, inputs=fields["inputs"]) == text
    typed = {"name": "x", "data_type": "FP32", "dims": "1"}
    assert laid(text, inputs=[{**typed, "reshape": "[ ]"}]) == text
    assert "reshape" not in laid(text, inputs=[{**typed, "reshape": ""}])
    assert "reshape" in laid(laid(text, inputs=[{**typed, "reshape": ""}]), inputs=[{**typed, "reshape": "[]"}])


@pytest.mark.parametrize(
    ("fields", "parameter", "value"),
    [
        ({"residency": "evictable"}, "residency", {"mode": "evictable"}),
        ({"residency": "on_demand"}, "residency", {"mode": "on_demand"}),
        (
            {"residency": "on_demand", "residency_idle_seconds": "60"},
            "residency",
            {"mode": "on_demand", "idle_seconds": 60},
        ),
        ({"isolation": True}, "isolation", "process"),
        ({"execution_timeout_s": "2.5", "isolation": "true"}, "execution_timeout_s", 2.5),
        ({"inline_below_us": "0"}, "inline_below_us", 0),
    ],
)
def test_what_slipway_adds_is_written_as_its_parameter_and_read_again(
    fields: dict[str, Any], parameter: str, value: Any
) -> None:
    text = laid("# kept\nmax_batch_size: 8\n", **fields)
    assert text.startswith("# kept\n")
    assert model_config.get_parameter(model_config.parse(text), parameter) == value
    again = read(text)
    assert laid(text, **{name: again[name] for name in fields}) == text
    nothing: dict[str, Any] = {"residency": "", "isolation": False, "execution_timeout_s": "", "inline_below_us": ""}
    assert laid(text, **nothing) == "# kept\nmax_batch_size: 8\n"


def test_parameters_are_keys_and_values_without_those_that_have_a_place_of_their_own() -> None:
    text = (
        'parameters { key: "a" value { string_value: "1" } }\n'
        f'parameters {{ key: "{SLIPWAY_PREFIX}isolation" value {{ string_value: "\\"process\\"" }} }}\n'
        f'parameters {{ key: "{SLIPWAY_PREFIX}aliases" value {{ string_value: \'{{"a": 1}}\' }} }}\n'
        f'parameters {{ key: "{SLIPWAY_PREFIX}text_generation" value {{ string_value: "{{}}" }} }}\n'
    )
    found = read(text)["parameters"]
    assert [row["key"] for row in found] == ["a", "slipway.text_generation"]
    assert laid(text, parameters=found) == text
    emptied = model_config.parse(laid(text, parameters=[{"key": " b ", "value": "2"}, {"key": "", "value": ""}]))
    assert sorted(emptied.parameters) == ["b", "slipway.aliases", "slipway.isolation"]


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([{"key": "", "value": "1"}], "parameters[0].key"),
        ([{"key": "a", "value": "1"}, {"key": "a", "value": "2"}], "parameters[1].key"),
        ([{"key": "slipway.release", "value": "9"}], "parameters[0].key"),
        ([{"key": "slipway.residency", "value": "{}"}], "parameters[0].key"),
    ],
)
def test_the_error_of_a_wrong_parameter_stands_at_its_row(rows: list[dict[str, str]], field: str) -> None:
    with pytest.raises(FieldError) as refused:
        laid("", parameters=rows)
    assert refused.value.field == field


def test_a_warm_up_sample_is_made_from_the_inputs() -> None:
    text = laid(INPUTS, warmups=[{"name": "", "batch_size": "8", "count": "3", "content": "random"}])
    [sample] = model_config.parse(text).model_warmup
    assert (sample.name, sample.batch_size, sample.count) == ("sample 1", 8, 3)
    assert {name: list(tensor.dims) for name, tensor in sample.inputs.items()} == {"x": [1, 4], "words": [2]}
    assert sample.inputs["x"].random_data
    assert sample.inputs["words"].zero_data  # random bytes are no text
    zeros = laid(INPUTS, warmups=[{"content": "zeros"}])
    assert read(zeros)["warmups"] == [{"name": "sample 1", "batch_size": 1, "count": 0, "content": "zeros"}]
    assert laid(zeros, warmups=read(zeros)["warmups"]) == zeros
    assert laid(zeros, warmups=[]) == INPUTS


def test_a_warm_up_sample_of_ones_own_keeps_its_inputs() -> None:
    own = 'inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 9, 4 ] zero_data: true } }'
    sample = f'model_warmup {{ name: "cat" batch_size: 1 {own} }}\n'
    [row] = read(INPUTS + sample)["warmups"]
    assert row["content"] == "own"
    changed = model_config.parse(laid(INPUTS + sample, warmups=[{**row, "count": "5"}])).model_warmup[0]
    assert (changed.count, list(changed.inputs["x"].dims)) == (5, [9, 4])


def test_a_warm_up_sample_without_inputs_is_reported() -> None:
    with pytest.raises(FieldError) as refused:
        laid("max_batch_size: 8", warmups=[{"content": "zeros"}])
    assert refused.value.field == "warmups[0].content"


def test_queue_limits_of_all_requests_and_of_each_level() -> None:
    base = "max_batch_size: 8\ndynamic_batching { priority_levels: 2 default_priority_level: 1 }\n"
    level = {"level": "2", "queue_max_size": "10", "queue_timeout_microseconds": "500", "queue_timeout_action": "DELAY"}
    text = laid(base, queue_max_size="100", queue_allow_timeout_override=True, queue_policies=[level])
    batching = model_config.parse(text).dynamic_batching
    assert (batching.default_queue_policy.max_queue_size, batching.default_queue_policy.allow_timeout_override) == (
        100,
        True,
    )
    assert batching.priority_queue_policy[2].max_queue_size == 10
    assert read(text)["queue_policies"] == [
        {
            "level": 2,
            "queue_max_size": 10,
            "queue_timeout_microseconds": 500,
            "queue_timeout_action": "DELAY",
            "queue_allow_timeout_override": False,
        }
    ]
    # One limit taken back leaves the other.
    assert read(laid(text, queue_max_size=0))["queue_allow_timeout_override"] is True
    none = laid(text, queue_max_size="0", queue_allow_timeout_override=False, queue_policies=[])
    assert model_config.parse(none) == model_config.parse(base)


def test_the_response_cache_is_a_switch() -> None:
    text = laid("max_batch_size: 8\n", response_cache=True)
    assert model_config.parse(text).response_cache.enable
    assert laid(text, response_cache=False) == "max_batch_size: 8\n"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ('parameters["slipway.residency"]', "residency"),
        ('parameters["slipway.execution_timeout_s"]', "execution_timeout_s"),
        ('parameters["intra_op_thread_count"]', "parameters"),
        ("model_warmup[1].batch_size", "warmups[1].batch_size"),
        ("dynamic_batching.priority_queue_policy[5]", "queue_policies"),
        ("dynamic_batching.default_queue_policy.timeout_action", "queue_timeout_action"),
        ("input[0].dims[1]", "inputs[0].dims[1]"),
    ],
)
def test_what_is_wrong_with_a_text_is_said_at_a_field(path: str, field: str) -> None:
    assert field_for(path) == field


@pytest.mark.django_db
def test_a_wrong_value_of_slipways_own_is_said_at_its_control() -> None:
    preview = config_preview(model_name="new", base=Document.read(""), fields={"execution_timeout_s": "3"})
    assert [(problem.field, problem.severity) for problem in preview.problems] == [("execution_timeout_s", "error")]
