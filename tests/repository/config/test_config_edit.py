"""Edits that leave alone what they need not change, and say what they drop."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config
from repository.config.document import Document
from repository.config.lines import unified
from repository.config.text import Places, dropped_comments
from repository.core.errors import InvalidConfig
from tests.repository.samples import BERT_CLASSIFIER, RESNET50, model_configs

WRITTEN = """# served since May
name: "resnet50"   # the name
max_batch_size: 64
input [ { name: "input" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
dynamic_batching { preferred_batch_size: [ 8, 16, 32 ] max_queue_delay_microseconds: 5000 }
instance_group [
  {
    # two on each
    kind: KIND_GPU
    count: 2
  }
]
parameters { key: "a" value { string_value: "1" } }
parameters: { key: "b", value: { string_value: "2" } }  # why
"""


def applied(text: str, config: ModelConfig) -> str:
    return Document.read(text).with_message(config).text


def edited(change: Callable[[ModelConfig], None], text: str = WRITTEN) -> str:
    config = model_config.parse(text)
    change(config)
    result = applied(text, config)
    assert model_config.parse(result) == config
    return result


def changed_lines(before: str, after: str) -> list[str]:
    return [line for line in unified(before, after, context=0).splitlines()[2:] if not line.startswith("@@")]


@pytest.mark.parametrize("text", [RESNET50, BERT_CLASSIFIER, WRITTEN])
def test_nothing_changed_leaves_the_text_as_it_is(text: str) -> None:
    assert applied(text, model_config.parse(text)) == text


def test_a_number_is_changed_in_its_place() -> None:
    result = edited(lambda config: setattr(config, "max_batch_size", 8))
    assert changed_lines(WRITTEN, result) == ["-max_batch_size: 64", "+max_batch_size: 8"]


def test_a_list_of_numbers_is_changed_in_its_place() -> None:
    def change(config: ModelConfig) -> None:
        config.dynamic_batching.preferred_batch_size[:] = [4]

    assert "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 5000 }" in edited(change)


def test_a_nested_value_keeps_the_comments_around_it() -> None:
    def change(config: ModelConfig) -> None:
        config.instance_group[0].count = 4

    result = edited(change)
    assert changed_lines(WRITTEN, result) == ["-    count: 2", "+    count: 4"]
    assert dropped_comments(WRITTEN, result) == []


def test_a_new_field_stands_where_the_proto_has_it() -> None:
    def change(config: ModelConfig) -> None:
        config.version_policy.specific.versions[:] = [3]

    result = edited(change)
    assert result.index("name:") < result.index("version_policy") < result.index("max_batch_size")
    assert "\n  specific {\n    versions: [3]\n  }\n" in result


def test_an_entry_of_a_map_is_added_and_removed() -> None:
    def change(config: ModelConfig) -> None:
        del config.parameters["b"]
        config.parameters["slipway.isolation"].string_value = '"process"'

    result = edited(change)
    assert 'parameters { key: "a" value { string_value: "1" } }' in result
    assert dropped_comments(WRITTEN, result) == ["why"]


def test_a_removed_section_names_the_comment_it_takes_along() -> None:
    result = edited(lambda config: config.ClearField("instance_group"))
    assert "instance_group" not in result
    assert dropped_comments(WRITTEN, result) == ["two on each"]


def test_a_switch_of_the_scheduler_replaces_the_old_one() -> None:
    result = edited(lambda config: config.sequence_batching.SetInParent())
    assert "dynamic_batching" not in result


def test_a_text_that_does_not_parse_is_not_edited() -> None:
    with pytest.raises(InvalidConfig):
        applied("nonsense: 1", ModelConfig())


@settings(deadline=None, max_examples=250)
@given(model_configs(), model_configs())
def test_any_text_can_be_brought_to_any_configuration(old: ModelConfig, new: ModelConfig) -> None:
    text = model_config.format(old)
    assert model_config.parse(applied(text, new)) == new


@settings(deadline=None, max_examples=60)
@given(model_configs())
def test_comments_outside_of_what_changed_stay(new: ModelConfig) -> None:
    result = applied("# kept, whatever happens\n\n" + RESNET50, new)
    assert model_config.parse(result) == new
    assert dropped_comments("# kept, whatever happens", result) == []


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("name", (2, 1)),
        ("input[0].dims[1]", (4, 57)),
        ("instance_group[0].count", (10, 5)),
        ("instance_group[0].gpus", (7, 3)),
        ('parameters["b"]', (14, 13)),
        ("dynamic_batching.preferred_batch_size[2]", (5, 51)),
        ("version_policy.specific.versions", None),
        ("", None),
    ],
)
def test_a_field_is_found_in_the_text(path: str, place: tuple[int, int] | None) -> None:
    assert Places(WRITTEN).locate(path) == place
