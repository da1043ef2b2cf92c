"""docs/torchserve.md: a row for every property of config.properties and every difference, a test for all that works."""

import re

from repository.torchserve.properties import KEYSTORE, KNOWN, WITHOUT_MEANING
from tests.e2e.torchserve.differences import DIFFERENCES
from tests.test_compatibility_page import ROOT, Row, rows, what_is_wrong

PAGE = (ROOT / "docs" / "torchserve.md").read_text()


def section(title: str) -> str:
    """Return what stands under a heading, up to the next."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


# The sections with a table of features.
FEATURES = "\n".join(one for one in PAGE.split("\n## ") if "| state | |\n" in one)
PROPERTIES = rows(section("config.properties"))


def names(row: Row) -> list[str]:
    return re.findall(r"`(\w+)`", row.feature)


def test_every_property_has_one_row_and_no_other_has() -> None:
    assert sorted(name for row in PROPERTIES for name in names(row)) == sorted(KNOWN)


def test_a_property_without_meaning_is_said_to_have_none() -> None:
    said = {name for row in PROPERTIES if row.state.startswith("not") for name in names(row)}
    assert said == {*WITHOUT_MEANING, *KEYSTORE}


def test_a_row_says_what_is_so_and_names_the_tests_that_show_it() -> None:
    assert {row.feature: wrong for row in rows(FEATURES) if (wrong := what_is_wrong(row))} == {}


def test_every_difference_of_the_comparison_stands_on_the_page_with_its_reason() -> None:
    found = {
        row.feature: row.tests for row in rows(section("Where Slipway answers otherwise")) if row.state != "Slipway"
    }
    assert found == {title: difference.why for title, difference in DIFFERENCES.items()}
