"""config.pbtxt to message and back, overlays, slipway's parameters."""

import contextlib
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config
from repository.core.errors import InvalidConfig
from tests.repository.samples import BERT_CLASSIFIER, RESNET50, model_configs


@pytest.mark.parametrize("text", [RESNET50, BERT_CLASSIFIER])
def test_the_seed_configurations_round_trip_unchanged(text: str) -> None:
    config = model_config.parse(text)
    assert model_config.parse(model_config.format(config)) == config


def test_the_seed_configurations_mean_what_they_say() -> None:
    resnet, bert = model_config.parse(RESNET50), model_config.parse(BERT_CLASSIFIER)
    assert list(resnet.input[0].dims) == [3, 224, 224]
    assert list(resnet.dynamic_batching.preferred_batch_size) == [8, 16, 32]
    assert resnet.instance_group[0].count == 2
    assert [tensor.name for tensor in bert.input] == ["input_ids", "attention_mask"]
    assert bert.version_policy.latest.num_versions == 2


@settings(deadline=None, max_examples=150)
@given(model_configs())
def test_every_message_survives_its_text(config: ModelConfig) -> None:
    assert model_config.parse(model_config.format(config)) == config


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(), st.text('name:{}[]<>"#, \n1-_dims input', max_size=60)))
def test_any_text_is_a_configuration_or_a_stated_error(text: str) -> None:
    with contextlib.suppress(InvalidConfig):
        model_config.parse(text)


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ('name: "x"\nfoo: 3', 2, 1, "unknown field 'foo' in ModelConfig"),
        ('input [ { nmae: "a" } ]', 1, 11, "unknown field 'nmae' in ModelInput; did you mean 'name'?"),
        ('name: "a"\nname: "b"', 2, 7, "'name' is given more than once"),
        ("input { data_type: TYPE_FP99 }", 1, 20, "unknown value 'TYPE_FP99'"),
        ("instance_group { kind: KIND_TPU }", 1, 24, "KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL"),
        ("dynamic_batching {}\nsequence_batching {}", 2, 1, "cannot be given together with 'dynamic_batching'"),
        ("max_batch_size: many", 1, 17, "couldn't parse integer: many"),
        ('name: "x', 1, 7, "string missing ending quote"),
        ("input {", 1, 7, 'expected "}"'),
        ('parameters { key: "a" value { string_value: "{"b": 1}" } }', 1, 48, "put single quotes around"),
    ],
)
def test_an_error_names_the_field_and_the_place(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        model_config.parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert says in caught.value.message
    assert f"line {line}, column {column}" in caught.value.message


@pytest.mark.parametrize(
    "text", ['{"input": [{"data_type": 99}]}', '{"model_warmup": [{"inputs": {"a": {"data_type": -1}}}]}']
)
def test_a_number_that_stands_for_no_value_of_an_enumeration_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"unknown value (99|-1) of 'data_type'"):
        model_config.parse_json(text)
    with pytest.raises(InvalidConfig, match="unknown value 99 of 'kind'"):
        model_config.parse("instance_group { kind: 99 }")


@pytest.mark.parametrize(
    "text", ['{"foo": 1}', "[", '{"max_batch_size": "a"}', "3", "[1]", "[" * 2000, "", '"x"', "null"]
)
def test_json_that_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="not a ModelConfig in JSON"):
        model_config.parse_json(text)


def test_json_configurations_are_read() -> None:
    config = model_config.parse_json(
        '{"max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}]}'
    )
    assert config.max_batch_size == 8
    assert list(config.input[0].dims) == [4]


def test_a_missing_file_is_an_empty_configuration_with_the_folders_name(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    assert model_config.read(tmp_path / "digits") == ModelConfig(name="digits")
    assert model_config.read_text(tmp_path / "digits") is None


def test_a_file_that_is_not_text_or_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_bytes(b'name: "a"\nplatform: "\xff"')
    with pytest.raises(InvalidConfig, match="line 2: the text is not UTF-8"):
        model_config.read(tmp_path)
    (tmp_path / "config.pbtxt").write_bytes(b"#" * ((4 << 20) + 1))
    with pytest.raises(InvalidConfig, match="larger than 4 MiB"):
        model_config.read(tmp_path)


def _folder(tmp_path: Path, overlay: str) -> Path:
    folder = tmp_path / "bert_classifier"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(BERT_CLASSIFIER + 'parameters { key: "a" value { string_value: "1" } }')
    (folder / "1/slipway.pbtxt").write_text(overlay)
    return folder


def test_an_overlay_applies_to_its_version_alone(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path,
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: 2 } instance_group { count: 3 }"
        'parameters { key: "b" value { string_value: "2" } }',
    )
    changed = model_config.read(folder, 1)
    assert changed.max_batch_size == 4
    assert list(changed.dynamic_batching.preferred_batch_size) == [2]
    assert changed.dynamic_batching.max_queue_delay_microseconds == 10000
    assert changed.instance_group[0].count == 3
    assert sorted(changed.parameters) == ["a", "b"]
    assert model_config.read(folder, 2).max_batch_size == 32


@pytest.mark.parametrize("overlay", ['name: "x"', 'backend: "python"', "version_policy { all {} }"])
def test_an_overlay_may_not_decide_what_belongs_to_the_model(tmp_path: Path, overlay: str) -> None:
    with pytest.raises(InvalidConfig, match="belongs to the whole model"):
        model_config.read(_folder(tmp_path, overlay), 1)


def test_slipways_parameters_are_json() -> None:
    config = ModelConfig()
    assert model_config.get_parameter(config, "isolation", "none") == "none"
    config.parameters["slipway.rollout"].string_value = '{"share": 0.1, "to": 2}'
    assert model_config.get_parameter(config, "rollout") == {"share": 0.1, "to": 2}
    config.parameters["slipway.rollout"].string_value = "{"
    with pytest.raises(InvalidConfig, match="is not JSON"):
        model_config.get_parameter(config, "rollout")


@pytest.mark.parametrize(
    "text",
    [
        '{"maxBatchSize": 3}',
        '{"max_batch_size": "3"}',
        '{"max_batch_size": 3e0}',
        '{"max_batch_size": 2, "maxBatchSize": 3,}',
        "{'max_batch_size': 3}",
        "\n {max_batch_size : 3 } ",
        '{"max_batch_size": 3, "instance_group": null, "input": [null], "dynamic_batching": null}',
    ],
)
def test_json_is_read_as_generously_as_protobufs_parser_for_triton_reads_it(text):
    """Each was tried with tritonserver 2.51."""
    assert model_config.parse_json(text) == model_config.parse("max_batch_size: 3")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"instance_group": {"count": 1, "kind": "kind-cpu"}}', "instance_group { count: 1 kind: KIND_CPU }"),
        ('{"instance_group": [{"kind": "2"},]}', "instance_group { kind: KIND_CPU }"),
        ('{"dynamic_batching": {"preserve_ordering": "true"}}', "dynamic_batching { preserve_ordering: true }"),
        (
            '{"dynamicBatching": {"maxQueueDelayMicroseconds": "100"}}',
            "dynamic_batching { max_queue_delay_microseconds: 100 }",
        ),
        ('{"parameters": {"a": {"stringValue": "x"}}}', 'parameters { key: "a" value { string_value: "x" } }'),
        (r'{"default_model_filename": "a\u002eb\.c"}', 'default_model_filename: "a.b.c"'),
        (r'{"default_model_filename": "\ud83d\ude00"}', 'default_model_filename: "\U0001f600"'),
        ('{"default_model_filename": "a\tb"}', 'default_model_filename: "a\\tb"'),
    ],
)
def test_values_in_json_may_be_written_in_protobufs_other_ways(text, meant):
    assert model_config.parse_json(text) == model_config.parse(meant)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a value in line 1, column 1"),
        ("[]", "expected an object"),
        ("3", "expected an object"),
        ('{"max_batch_size": 03}', "expected ',' or '}' in line 1, column 21"),
        ('{"max_batch_size": 0x3}', "expected ',' or '}'"),
        ('{"max_batch_size": +3}', "expected a value"),
        ('{"max_batch_size": 3} x', "expected the end"),
        ('{"max_batch_size": 3.5}', "max_batch_size"),
        ('{"max_batch_size": true}', "max_batch_size"),
        ('{"max_batch_size": 4294967296}', "max_batch_size"),
        ('{"max_batch_size": [3]}', "max_batch_size"),
        ('{"nosuch": 3}', "nosuch"),
        ('{"optimization": {"graph": {"level": NaN}}}', "expected a value"),
        ('{"dynamic_batching": ""}', "expected an object in braces for a ModelDynamicBatching"),
        ('{"version_policy": {"latest": {}, "all": {}}}', "oneof"),
        ('{"instance_group": [{"kind": "KIND_X"}]}', "KIND_X"),
        ('{"default_model_filename": 3}', "default_model_filename"),
        (r'{"default_model_filename": "\ud83d"}', "half of a character"),
        ('{"default_model_filename": "', "does not end"),
        ('{"max_batch_size": ' + "9" * 5000 + "}", "too many digits"),
        ("[" * 9999, "nested more than 50 deep"),
        ('{"a":' * 9999, "nested more than 50 deep"),
    ],
)
def test_json_that_triton_refuses_is_refused_with_one_sentence(text, message):
    with pytest.raises(InvalidConfig, match=re.escape(message)) as caught:
        model_config.parse_json(text)
    assert "\n" not in caught.value.message


def test_reading_json_takes_work_in_proportion_to_its_length():
    def calls(count: int) -> int:
        text = "{" + ",".join(f'"parameters{number}":{{"a":[1,2]}}' for number in range(count)) + "}"
        made = 0

        def count_call(*_: object) -> None:
            nonlocal made
            made += 1

        sys.setprofile(count_call)
        try:
            with pytest.raises(InvalidConfig):
                model_config.parse_json(text)
        finally:
            sys.setprofile(None)
        return made

    assert calls(4000) < 4.4 * calls(1000)
