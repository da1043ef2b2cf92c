"""Files are split, read, written and joined without the loss of a row or of a value."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from dashboard.batches.formats.table import Answer, Column, Limits, format_of, open_table
from dashboard.shared.exceptions import Invalid

COLUMNS = [Column("y", "FP32", is_list=False), Column("scores", "FP32", is_list=True)]


def through(tmp_path: Path, name: str, content: bytes, rows_a_part: int = 2) -> tuple[bytes, list[Any]]:
    """Write every row with an answer, part by part; return the result, and the rows that were read."""
    table = open_table(name, io.BytesIO(content))
    spans = list(table.split(Limits(rows_a_part, 1 << 20)))
    assert all(span.rows <= rows_a_part for span in spans)
    parts, read = [], []
    for number, rows in enumerate(table.read(spans)):
        assert len(rows.rows) == spans[number].rows
        answers = [
            Answer([len(read) + at, [0.5, "NaN"]]) if not row.fault else Answer(error=row.fault)
            for at, row in enumerate(rows.rows)
        ]
        read += rows.rows
        parts.append(tmp_path / f"part{number}")
        with parts[-1].open("wb") as file:
            table.write(file, rows, COLUMNS, answers)
    result = io.BytesIO()
    table.join(result, parts, COLUMNS)
    return result.getvalue(), read


def test_a_csv_keeps_its_columns_and_its_order(tmp_path: Path) -> None:
    content = b'a,b\r\n1,"x, ""y""\r\nz"\r\n\r\n2,\r\n3,last'
    result, _ = through(tmp_path, "csv", content)
    rows = list(csv.reader(io.StringIO(result.decode(), newline="")))
    assert rows[0] == ["a", "b", "y", "scores", "error"]
    assert [row[:2] for row in rows[1:]] == [["1", 'x, "y"\r\nz'], ["2", ""], ["3", "last"]]
    assert [row[2:] for row in rows[1:]] == [[str(at), '[0.5, "NaN"]', ""] for at in range(3)]


def test_a_csv_row_of_another_length_is_kept_with_a_reason(tmp_path: Path) -> None:
    result, _ = through(tmp_path, "csv", b"a;b\n1;2\n1\n1;2;3\n")
    rows = list(csv.reader(io.StringIO(result.decode()), delimiter=";"))
    assert rows[2] == ["1", "", "", "", "the row has 1 fields, and the header has 2"]
    assert rows[3][-1] == "the row has 3 fields, and the header has 2"
    assert "3" in rows[3][1]


def test_bytes_of_a_csv_that_are_not_utf_8_stay(tmp_path: Path) -> None:
    result, _ = through(tmp_path, "csv", b"\xef\xbb\xbfa,b\n\xe4,1\n")
    assert result.splitlines()[1].startswith(b"\xe4,1,")


@pytest.mark.parametrize(
    "content", [b'n,a\n1,5" pipe\n2,x\n', b'n,a\n1,"a ""b""\n, c"\n2,x"y\n', b'"n","a"\n"1","x\ry"\n2,\xc3\xa4\n']
)
def test_quotation_marks_and_line_ends_within_fields_stay(tmp_path: Path, content: bytes) -> None:
    result, read = through(tmp_path, "csv", content, rows_a_part=1)
    expected = list(csv.reader(io.StringIO(content.decode(), newline="\n")))
    found = list(csv.reader(io.StringIO(result.decode(), newline="")))
    assert [row[:2] for row in found] == expected
    assert [[*row.values.values()] for row in read] == expected[1:]


def test_a_row_of_many_mebibytes_is_read(tmp_path: Path) -> None:
    result, read = through(tmp_path, "csv", b"a\n" + b"x" * (3 << 20) + b"\nlast\n")
    assert [len(row.values["a"]) for row in read] == [3 << 20, 4]
    assert result.endswith(b'last,1,"[0.5, ""NaN""]",\n')


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b"a,b\r1,2\r", "ends in CR alone"),
        (b"a,b\n1,2\r3,4\n", "ends in CR alone"),
        (b"a,a\n1,2\n", "same name"),
        (b"a,error\n1,2\n", "'error'"),
        (b'a,b\n1,"2\n', "not closed"),
    ],
)
def test_a_csv_that_cannot_be_read_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        list(open_table("csv", io.BytesIO(content)).split(Limits(10, 100)))


def test_jsonl_keeps_its_values_and_its_order(tmp_path: Path) -> None:
    given = [{"a": 1, "big": 10**30, "text": "ä\n"}, {"a": [1, [2]]}, {"y": "own"}, {"half": "\ud800"}]
    content = b"\n".join(json.dumps(row).encode() for row in given) + b"\n\n"
    result, _ = through(tmp_path, "jsonl", content)
    rows = [json.loads(line) for line in result.splitlines()]
    assert rows[0] == {**given[0], "y": 0, "scores": [0.5, "NaN"]}
    assert rows[2] == {"y": "own", "y_": 2, "scores": [0.5, "NaN"]}
    assert [{name: row[name] for name in one} for one, row in zip(given, rows, strict=True)] == given


def test_a_line_that_is_no_object_is_kept_with_a_reason(tmp_path: Path) -> None:
    result, _ = through(tmp_path, "jsonl", b'{"a":1}\n[1]\nnothing\n')
    rows = [json.loads(line) for line in result.splitlines()]
    assert rows[1] == {"line": [1], "error": "the line is not an object of JSON"}
    assert rows[2] == {"line": "nothing", "error": "the line is not JSON"}


def test_parquet_keeps_its_columns_and_its_order(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("arro3.core"), pytest.importorskip("arro3.io")
    count = 2500
    kinds = arrow.DataType
    batch = arrow.RecordBatch.from_arrays(
        [
            arrow.Array(list(range(count)), kinds.int64()),
            arrow.Array([f"t{at}" for at in range(count)], kinds.string()),
        ],
        names=["a", "b"],
    )
    file = io.BytesIO()
    parquet.write_parquet(batch, file, max_row_group_size=700)
    result, read = through(tmp_path, "parquet", file.getvalue(), rows_a_part=1000)
    table = parquet.read_parquet(io.BytesIO(result)).read_all()
    assert table.column_names == ["a", "b", "y", "scores", "error"]
    assert [value.as_py() for value in table["a"]] == list(range(count)) == [row.values["a"] for row in read]
    assert [value.as_py() for value in table["y"]] == list(range(count))
    assert table["scores"][3].as_py()[0] == 0.5


def test_a_parquet_file_with_two_columns_of_one_name_is_refused() -> None:
    arrow, parquet = pytest.importorskip("arro3.core"), pytest.importorskip("arro3.io")
    column = arrow.Array([1, 2], arrow.DataType.int64())
    fields = [arrow.Field("a", arrow.DataType.int64(), nullable=True)] * 2
    file = io.BytesIO()
    parquet.write_parquet(arrow.RecordBatch.from_arrays([column, column], schema=arrow.Schema(fields)), file)
    with pytest.raises(Invalid, match="same name"):
        open_table("parquet", file)


def test_a_damaged_parquet_file_is_refused_with_one_sentence() -> None:
    arrow, parquet = pytest.importorskip("arro3.core"), pytest.importorskip("arro3.io")
    file = io.BytesIO()
    batch = arrow.RecordBatch.from_arrays([arrow.Array(list(range(50)), arrow.DataType.int64())], names=["x"])
    parquet.write_parquet(batch, file)
    whole = file.getvalue()
    damaged = [b"PAR1 nonsense PAR1", *(whole[:size] for size in range(1, len(whole), 29))]
    damaged += [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(0, len(whole), 5)]
    told = []
    for content in damaged:
        try:
            list(open_table("parquet", io.BytesIO(content)).split(Limits(10, 1 << 20)))
        except Invalid as error:
            told.append(error.message)
    assert len(told) > len(damaged) / 3
    assert {message.rpartition(":")[2] for message in told} == {" write it again"}
    assert not [message for message in told if "Panic" in message]


def test_parts_of_a_parquet_file_can_be_left_out() -> None:
    arrow, parquet = pytest.importorskip("arro3.core"), pytest.importorskip("arro3.io")
    batch = arrow.RecordBatch.from_arrays([arrow.Array(list(range(5000)), arrow.DataType.int64())], names=["a"])
    file = io.BytesIO()
    parquet.write_parquet(batch, file)
    table = open_table("parquet", file)
    spans = list(table.split(Limits(1024, 1 << 20)))[1::2]
    found = [[row.values["a"] for row in rows.rows] for rows in table.read(spans)]
    assert found == [list(range(span.offset, span.offset + span.length)) for span in spans]


def test_a_name_tells_the_format() -> None:
    assert [format_of(name) for name in ("a.CSV", "b.ndjson", "c.pq")] == ["csv", "jsonl", "parquet"]
    with pytest.raises(Invalid, match=r"\.csv.*got 'd.xlsx'"):
        format_of("d.xlsx")
