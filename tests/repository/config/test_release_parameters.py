"""`slipway.release` and `slipway.aliases`: read, written, validated, and taken in place."""

import json
from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config, release
from repository.config.reload_rule import effect
from repository.config.validation import validate
from repository.core.errors import InvalidConfig


def config(**parameters: str) -> ModelConfig:
    found = ModelConfig(name="m", backend="onnxruntime")
    for name, value in parameters.items():
        found.parameters[f"slipway.{name}"].string_value = value
    return found


def problems(found: ModelConfig) -> list[str]:
    return [str(problem) for problem in validate(found, name="m", complete=False)]


def test_a_release_and_aliases_are_read_as_they_were_written() -> None:
    found = config()
    assert (release.release_of(found), release.aliases_of(found)) == (None, {})
    found = config(release="12")
    release.set_aliases(found, {"default": 3, "champion": 3})
    assert problems(found) == []
    assert (release.release_of(found), release.aliases_of(found)) == (12, {"champion": 3, "default": 3})
    release.set_aliases(found, {})
    assert "slipway.aliases" not in found.parameters


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true", '"7"', "null x", "[]", str(2**63), "9" * 5000, "[" * 5000])
def test_a_release_that_is_no_number_is_refused(value: str) -> None:
    assert any('parameters["slipway.release"]' in problem for problem in problems(config(release=value)))


@pytest.mark.parametrize(
    ("aliases", "said"),
    [
        ({"Champion": 1}, "'Champion' cannot name a version"),
        ({"3": 1}, "'3' cannot name a version"),
        ({"": 1}, "'' cannot name a version"),
        ({"a/b": 1}, "'a/b' cannot name a version"),
        ({"x" * 65: 1}, "cannot name a version"),
        ({"champion": "1"}, "by its number, from 1 on, not '1'"),
        ({"champion": True}, "by its number"),
        ({"champion": 0}, "by its number"),
        ({f"a{number}": 1 for number in range(101)}, "at most 100 names, not 101"),
        ([1], "expected an object such as"),
    ],
)
def test_an_alias_with_an_odd_name_or_version_is_refused(aliases: object, said: str) -> None:
    found = problems(config(aliases=json.dumps(aliases)))
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize("name", ["default", "champion", "a", "blue-2.1_x", "x" * 64])
def test_names_that_people_choose_are_aliases(name: str) -> None:
    assert problems(config(aliases=json.dumps({name: 1}))) == []


def test_an_alias_of_a_version_that_does_not_serve_says_which_do() -> None:
    found = config(aliases=json.dumps({"candidate": 4, "champion": 3}))
    assert release.unserved_alias(found, [3, 4]) == ""
    assert release.unserved_alias(found, [3]).startswith(
        "alias 'candidate' names version 4, which the version policy does not serve (it serves 3)"
    )


def test_a_release_that_changes_nothing_else_reloads_nothing() -> None:
    one = config(release="1", aliases='{"champion": 1}')
    assert effect(one, config(release="2", aliases='{"champion": 1}')) == "in_place"
    assert effect(one, config(release="2", aliases='{"champion": 2, "default": 2}')) == "in_place"
    assert effect(config(), one) == "in_place"


@pytest.mark.parametrize("key", ["slipway.release", "slipway.aliases"])
def test_no_version_may_set_them_in_its_overlay(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1/slipway.pbtxt").write_text(f'parameters {{ key: "{key}" value {{ string_value: "1" }} }}')
    with pytest.raises(InvalidConfig, match="belongs to the whole model"):
        model_config.read(folder, 1)
