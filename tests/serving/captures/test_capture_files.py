"""The files of captures: what is written is read again, in every datatype."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from repository.core.capture_files import Layout, Record, Row, alike, encoded, read_rows
from repository.core.captures import capture_files, file_name
from repository.core.errors import CaptureUnusable

TENSORS = {
    "BOOL": np.array([[True, False]]),
    "INT8": np.array([[-128, 127]], np.int8),
    "INT64": np.array([[-(2**63), 2**63 - 1]]),
    "UINT64": np.array([[0, 2**64 - 1]], np.uint64),
    "FP16": np.array([[0.1, -65504]], np.float16),
    "BF16": np.array([[0.1, 3e38]], ml_dtypes.bfloat16),
    "FP32": np.array([[0.1, -np.inf]], np.float32),
    "FP64": np.array([[0.1, 1e-300]]),
    "BYTES": np.array([[b"\xff\x00", b""]], np.object_),
    "FP32 ": np.float32(1.5).reshape(()),
    "INT32": np.zeros((3, 0, 2), np.int32),
}


def record(number: int = 1, **fields: Any) -> Record:
    given = {
        "id": "r", "at": 1700000000.25, "version": 3, "arm": "", "error": None, "latency_us": 7, "inputs": {}, "outputs": {}
    }  # fmt: skip
    return Record(number=number, **(given | fields))


def written(folder: Path, *records: Record, **dropped: Any) -> Path:
    path = folder / file_name(records[0].number, len(records))
    path.write_bytes(encoded(records, **dropped))
    return path


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_of_any_datatype_is_read_as_it_was_written(tmp_path: Path, kind: str) -> None:
    tensor = TENSORS[kind]
    rows = read_rows(written(tmp_path, record(inputs={"x.shape": tensor}), record(2, outputs={"x": tensor})))
    for column, row in ((rows.inputs["x.shape"], 0), (rows.outputs["x"], 1)):
        found = column.tensor(row)
        assert found is not None
        assert column.datatype == kind.strip()
        assert (found.dtype, found.shape, found.tolist()) == (tensor.dtype, tensor.shape, tensor.tolist())
        assert column.tensor(1 - row) is None


def test_the_other_columns_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = read_rows(written(tmp_path, record(5, id="ä"), record(9, error="no", arm="candidate", version=0)))
    assert len(rows) == 2
    assert rows.numbers.tolist() == [5, 9]
    assert rows.ids == ["ä", "r"]
    assert rows.at.tolist() == [1700000000.25] * 2
    assert rows.versions.tolist() == [3, 0]
    assert (rows.arms, rows.errors) == (["", "candidate"], [None, "no"])


def test_a_dropped_tensor_leaves_only_its_shape(tmp_path: Path) -> None:
    secret = np.array([[b"secret-of-a-client"] * 3], np.object_)
    path = written(tmp_path, record(inputs={"x": secret}), dropped_inputs=frozenset(["x"]))
    column = read_rows(path).inputs["x"]
    assert column.tensor(0) is None
    assert column.shapes.tolist() == [1, 3]
    assert b"secret" not in path.read_bytes()


def test_requests_with_other_datatypes_go_to_another_file() -> None:
    one, other = np.ones(1, np.float32), np.ones(1, np.float64)

    def groups(*sides: tuple[dict[str, Any], dict[str, Any]]) -> list[list[int]]:
        rows: list[Row] = [
            (number, "", 1.0, 1, "", None, 1, Layout(*tensors), [], 0) for number, tensors in enumerate(sides, 1)
        ]
        return [[row[0] for row in group] for group in alike(rows)]

    assert groups(({"x": one}, {}), ({"x": other}, {}), ({"x": one}, {})) == [[1, 3], [2]]
    assert groups(({"x": one}, {}), ({}, {"x": other}), ({"y": other}, {}), ({}, {})) == [[1, 2, 3, 4]]


def test_rows_of_changing_shapes_and_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    tensors = [
        np.full((batch, width), batch + width / 10, np.float32) for batch, width in ((1, 2), (3, 1), (1, 2), (0, 4))
    ]
    texts = [np.array([[b"a", "\u00e4"]], object), np.array([["b"]]), np.array([[b"c"]])]
    records = [record(number, inputs={"x": one}) for number, one in enumerate(tensors, 1)]
    records += [record(number, outputs={"t": one}) for number, one in enumerate(texts, 5)] + [record(8)]
    rows = read_rows(written(tmp_path, *records))
    found = [rows.inputs["x"].tensor(row) for row in range(8)]
    assert [one.tolist() if one is not None else None for one in found] == [
        *(one.tolist() for one in tensors),
        *[None] * 4,
    ]
    words = [rows.outputs["t"].tensor(row) for row in range(8)]
    assert [one.tolist() for one in words if one is not None] == [[[b"a", "\u00e4".encode()]], [[b"b"]], [[b"c"]]]


def test_files_are_listed_in_order_and_unfinished_ones_are_not(tmp_path: Path) -> None:
    for name in (file_name(20, 2), file_name(3, 17), ".000000000001-2.parquet.77", "counts.json", "1-1.parquet"):
        (tmp_path / name).touch()
    assert [(one.first, one.rows) for one in capture_files(tmp_path)] == [(3, 17), (20, 2)]
    assert capture_files(tmp_path / "none") == []


def test_a_file_that_is_damaged_or_gone_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, record(inputs={"x": np.ones(100)}))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CaptureUnusable, match="cannot be read"):
        read_rows(path)
    path.unlink()
    with pytest.raises(CaptureUnusable, match="is gone"):
        read_rows(path)
