"""Two people's changes of one text come together where they do not touch."""

import pytest

from repository.config.document import Document
from repository.config.model_config import parse

BASE = """# The widest ReLU of the house.
backend: "onnxruntime"
max_batch_size: 8

input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def merge(base: str, mine: str, theirs: str) -> str | None:
    merged = Document.read(mine).merged(Document.read(base), Document.read(theirs))
    return None if merged is None else merged.text


def test_changes_of_other_lines_come_together_with_the_comments_of_both() -> None:
    mine = BASE.replace("max_batch_size: 8", "# mine\nmax_batch_size: 16")
    theirs = BASE.replace("output", "# theirs\noutput") + "version_policy { all { } }\n"
    merged = merge(BASE, mine, theirs)
    assert merged is not None
    assert parse(merged).max_batch_size == 16
    assert parse(merged).version_policy.HasField("all")
    assert "# mine\n" in merged
    assert "# theirs\n" in merged


def test_two_fields_added_at_one_place_come_together() -> None:
    merged = merge(BASE, BASE + "instance_group { count: 2 }\n", BASE + "version_policy { all { } }\n")
    assert merged is not None
    assert parse(merged).instance_group[0].count == 2
    assert parse(merged).version_policy.HasField("all")


@pytest.mark.parametrize("theirs", ["max_batch_size: 4", ""])
def test_one_field_changed_by_both_is_for_a_person_to_decide(theirs: str) -> None:
    mine = BASE.replace("max_batch_size: 8", "max_batch_size: 16")
    assert merge(BASE, mine, BASE.replace("max_batch_size: 8", theirs)) is None


def test_the_same_change_twice_is_one() -> None:
    both = BASE.replace("max_batch_size: 8", "max_batch_size: 16")
    assert merge(BASE, both, both) == both


def test_what_one_took_away_stays_away() -> None:
    base = BASE + "instance_group { count: 2 }\n"
    merged = merge(base, BASE, base.replace("max_batch_size: 8", "max_batch_size: 4"))
    assert merged is not None
    assert not parse(merged).instance_group
    assert parse(merged).max_batch_size == 4


def test_a_text_with_mistakes_is_not_merged() -> None:
    assert merge(BASE, BASE + "max_batch", BASE + "version_policy { all { } }\n") is None
