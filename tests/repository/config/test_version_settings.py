"""`slipway.version_settings`: a version is served with its own, checked as any configuration, told by the reload rule."""

from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config, reload_rule, validation, version_settings
from repository.core.errors import InvalidConfig
from repository.files import code_execution
from repository.files.code_execution import Contents


def config(said: str) -> ModelConfig:
    """Return a configuration with the parameter; `said`: its JSON."""
    found = model_config.parse('name: "m" backend: "onnxruntime" max_batch_size: 4 instance_group { count: 1 }')
    found.parameters[version_settings.KEY].string_value = said
    return found


def test_a_version_has_its_own_settings_and_no_other_version_does() -> None:
    whole = config('{"2": {"max_batch_size": 8, "instance_group": [{"count": 3}]}}')
    second, first = version_settings.for_version(whole, 2), version_settings.for_version(whole, 1)
    assert (second.max_batch_size, second.instance_group[0].count) == (8, 3)
    assert (first.max_batch_size, first.instance_group[0].count) == (4, 1)
    assert version_settings.KEY not in {*first.parameters, *second.parameters}
    version_settings.set_settings(whole, {2: ModelConfig()})
    assert version_settings.KEY not in whole.parameters


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("[]", "expected an object"),
        ('{"first": {}}', "expected the number of a version"),
        ('{"2": {"batch": 8}}', "version 2: "),
        ('{"2": {"backend": "python"}}', "may not set 'backend'"),
        ('{"2": {"parameters": {"slipway.aliases": {"string_value": "{}"}}}}', "may not set 'slipway.aliases'"),
        ('{"2": {"max_batch_size": -1}}', "version 2: max_batch_size: "),
        ("{", "is not JSON"),
    ],
)
def test_an_impossible_setting_is_refused_with_the_version(said: str, reason: str) -> None:
    problems = validation.validate(config(said), complete=False)
    assert [problem.field for problem in problems] == ['parameters["slipway.version_settings"]']
    assert reason in problems[0].message
    if "max_batch" not in said:
        with pytest.raises(InvalidConfig):
            version_settings.for_version(config(said), 2)


def test_the_reload_rule_sees_what_a_version_is_built_with() -> None:
    few, many = config('{"2": {"instance_group": [{"count": 2}]}}'), config('{"2": {"instance_group": [{"count": 3}]}}')
    assert reload_rule.effect(few, many) == "in_place"
    assert reload_rule.effect(few, config('{"2": {"max_batch_size": 8}}')) == "reload"


def test_code_that_a_version_is_made_to_run_is_found(tmp_path: Path) -> None:
    handler = '{"2": {"parameters": {"torchserve.handler": {"string_value": "os:system"}}}}'
    contents = Contents({1: tmp_path, 2: tmp_path})
    found = code_execution.runs(config(handler), contents)
    assert [one.sentence for one in found] == ["torchserve.handler runs 'os:system' as the handler of version 2"]
