"""Which versions a configuration serves."""

import pytest

from repository.config.model_config import parse
from repository.config.version_policy import describe, missing, select, set_specific


@pytest.mark.parametrize(
    ("text", "selected", "words"),
    [
        ("", [7], "the latest version"),
        ("version_policy { latest { } }", [], "the latest 0 versions"),
        ("version_policy { latest { num_versions: 2 } }", [3, 7], "the latest 2 versions"),
        ("version_policy { latest { num_versions: 9 } }", [1, 3, 7], "the latest 9 versions"),
        ("version_policy { all { } }", [1, 3, 7], "all versions"),
        ("version_policy { specific { versions: [ 3, 1, 2 ] } }", [1, 3], "versions 1, 2, 3"),
        ("version_policy { specific { versions: 3 } }", [3], "version 3"),
    ],
)
def test_the_policy_selects_from_what_is_there(text: str, selected: list[int], words: str) -> None:
    config = parse(text)
    assert select(config, [7, 1, 3]) == selected
    assert describe(config) == words


def test_without_versions_nothing_is_selected() -> None:
    assert select(parse(""), []) == []


def test_a_version_that_is_not_there_is_reported() -> None:
    assert missing(parse("version_policy { specific { versions: [ 3, 4 ] } }"), [3]) == [4]
    assert missing(parse(""), [3]) == []


def test_pinning_replaces_any_other_policy() -> None:
    config = parse("version_policy { all { } }")
    set_specific(config, [2, 2])
    assert select(config, [1, 2, 3]) == [2]
