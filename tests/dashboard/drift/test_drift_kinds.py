"""Each kind of column finds its own shift: numbers, categories, lengths of texts, brightness, norms, missing values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dashboard.drift.comparison import compare, level_of
from dashboard.drift.features import Table, TensorRow, add, columns_of, kinds_of

ROWS = 1500
Make = Callable[[np.random.Generator], Any]


def table_of(make: Make, datatype: str, seed: int, columns: Any = None) -> tuple[Table, Any, dict[str, str]]:
    random = np.random.default_rng(seed)
    requests = []
    for _ in range(ROWS):
        value = make(random)
        if value is None:
            requests.append({})
            continue
        array = np.asarray(value, object if datatype == "BYTES" else None)
        requests.append({"in.x": TensorRow(array.shape, array.reshape(-1).tolist())})
    datatypes = {"in.x": datatype}
    columns = columns or columns_of(datatypes, requests[:200])
    table = Table()
    for request in requests:
        add(table, columns, request)
    return table, columns, datatypes


def names(datatype: str, reference: Make, current: Make) -> tuple[list[str], list[str]]:
    """Return the columns that were compared and those that drifted."""
    before, columns, datatypes = table_of(reference, datatype, 1)
    now, _, _ = table_of(current, datatype, 2, columns)
    found = compare(before, now, kinds_of(before, datatypes), level_of(1))
    return sorted(f"{one['name']}: {one['kind']}" for one in found.columns), found.drifted


CASES: dict[str, tuple[str, Make, Make, list[str]]] = {
    "numeric": (
        "FP32",
        lambda random: random.normal(size=2),
        lambda random: random.normal([0.5, 0]),
        ["in.x[0]"],
    ),
    "categorical integers": (
        "INT64",
        lambda random: [random.integers(3)],
        lambda random: [random.integers(4)],
        ["in.x"],
    ),
    "booleans": ("BOOL", lambda random: [random.random() < 0.5], lambda random: [random.random() < 0.7], ["in.x"]),
    "categorical texts": (
        "BYTES",
        lambda random: [random.choice([b"red", b"green"])],
        lambda random: [random.choice([b"red", b"green", b"blue"])],
        ["in.x"],
    ),
    "lengths of texts": (
        "BYTES",
        lambda random: [random.bytes(8).hex()[: random.integers(4, 12)].encode()],
        lambda random: [random.bytes(8).hex()[: random.integers(6, 16)].encode()],
        ["in.x length"],
    ),
    "brightness": (
        "UINT8",
        lambda random: random.integers(0, 200, size=(8, 8, 3)),
        lambda random: random.integers(20, 220, size=(8, 8, 3)),
        ["in.x brightness"],
    ),
    "norm": (
        "FP32",
        lambda random: random.normal(size=64),
        lambda random: 1.2 * random.normal(size=64),
        ["in.x norm"],
    ),
    "missing values": (
        "FP32",
        lambda random: [random.normal()],
        lambda random: [random.normal() if random.random() < 0.8 else np.nan],
        ["in.x missing"],
    ),
    "missing tensors": (
        "FP32",
        lambda random: [random.normal()],
        lambda random: [random.normal()] if random.random() < 0.8 else None,
        ["in.x missing"],
    ),
    "sizes": (
        "INT64",
        lambda random: random.integers(0, 1000, size=random.integers(10, 20)),
        lambda random: random.integers(0, 1000, size=random.integers(14, 24)),
        ["in.x elements"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_column_of_each_kind_drifts_when_its_values_do(name: str) -> None:
    datatype, reference, current, expected = CASES[name]
    _, drifted = names(datatype, reference, current)
    assert [one for one in drifted if one in expected] == expected
    assert names(datatype, reference, reference)[1] == []


def test_the_kind_follows_from_the_values_of_the_reference() -> None:
    assert names("INT64", lambda r: [r.integers(5)], lambda r: [r.integers(5)])[0] == ["in.x: categorical"]
    assert names("INT64", lambda r: [r.integers(5000)], lambda r: [r.integers(5000)])[0] == ["in.x: numeric"]
    assert names("BYTES", lambda r: [r.bytes(9)], lambda r: [r.bytes(9)])[0] == ["in.x length: numeric"]


def test_a_constant_column_and_one_that_is_missing_throughout_are_compared_without_an_error() -> None:
    assert names("FP32", lambda r: [1.0], lambda r: [1.0])[1] == []
    assert names("FP32", lambda r: [1.0], lambda r: [2.0])[1] == ["in.x"]
    assert names("FP32", lambda r: [1.0], lambda r: [np.nan])[1] == ["in.x missing"]


def test_the_levels_of_all_windows_add_up_to_the_bound() -> None:
    levels = [level_of(number, 0.01) for number in range(1, 200_001)]
    assert 0.00999 < sum(levels) < 0.01
