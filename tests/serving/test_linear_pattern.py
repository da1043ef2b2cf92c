"""Patterns of header names match what Python's own matcher matches, without its way of trying."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.linear_pattern import MAX_NAME, LinearPattern

ATOMS = [
    "a",
    "b",
    "-",
    "X",
    ".",
    "[ab]",
    "[^a-]",
    "[a-c0-9]",
    r"\w",
    r"\W",
    r"\d",
    r"\s",
    "(ab|a)",
    "(?:a|)",
    "^",
    "$",
    r"\b",
    r"\B",
]
TAILS = ["", "*", "+", "?", "{2}", "{1,3}", "*?", "+?"]
pieces = st.builds(
    lambda atom, tail: atom + ("" if atom in ("^", "$", r"\b", r"\B") else tail),
    st.sampled_from(ATOMS),
    st.sampled_from(TAILS),
)
groups = st.lists(pieces, max_size=4).map("".join)
expressions = st.lists(
    st.one_of(
        groups, st.builds("({}){}".format, groups, st.sampled_from(TAILS)), st.builds("{}|{}".format, groups, groups)
    ),
    max_size=3,
).map("".join)


# A header's name is never empty: there re of Python before 3.14 does not find \B, which RE2 does.
@given(expression=expressions, name=st.text("abABX-_1 ", min_size=1, max_size=8), ignore_case=st.booleans())
def test_it_matches_where_re_does(expression: str, name: str, ignore_case: bool) -> None:
    expected = re.search(expression, name, re.IGNORECASE if ignore_case else 0)
    assert LinearPattern(expression, ignore_case).search(name) == bool(expected)


@pytest.mark.parametrize(
    ("expression", "name", "found"),
    [
        ("(?i)my-.*", "MY-header", True),
        ("(?i:my)-x", "MY-X", False),
        ("(?i:my)-x", "MY-x", True),
        ("x{3,}", "axxxx", True),
    ],
)
def test_flags_and_counts(expression: str, name: str, found: bool) -> None:
    assert LinearPattern(expression).search(name) is found


@pytest.mark.parametrize("expression", [r"(a)\1", "(?=a)b", "(?<!a)b", "(?>a)b", "a{1001}", "(", "a**"])
def test_what_it_does_not_take_is_refused(expression: str) -> None:
    with pytest.raises(re.error):
        LinearPattern(expression)


def test_a_name_that_is_too_long_matches_nothing() -> None:
    pattern = LinearPattern("a")
    assert pattern.search("a" * MAX_NAME)
    assert not pattern.search("a" * (MAX_NAME + 1))


@pytest.mark.parametrize("expression", ["^[^a]$", "^[^A]$"])
def test_what_is_excluded_is_excluded_in_either_case(expression: str) -> None:
    pattern = LinearPattern(expression, ignore_case=True)
    assert [pattern.search(name) for name in "aAb"] == [False, False, True]
