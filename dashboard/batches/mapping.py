"""Which columns of a file fill which inputs of a model: a proposal from names and shapes, and its check."""

import math
import re
from collections.abc import Sequence

from dashboard.batches.formats.table import ERROR
from dashboard.models.batch import BatchInput, BatchOutput
from dashboard.models.upload_json import TensorRow
from dashboard.models.version import Signature
from dashboard.shared.exceptions import Invalid

_NUMBER = re.compile(r"\d+")


def proposed_inputs(signature: Signature, columns: Sequence[str], *, batched: bool) -> list[BatchInput]:
    """Return a proposal for each input. An input for which no columns are found has none.

    batched: whether the first dimension of the signature's shapes is that of the batch.
    """
    rows = signature.get("inputs", [])
    found = {row["name"]: _columns_by_name(row["name"], _shape(row, batched), columns) for row in rows}
    rest = [column for column in columns if not any(column in taken for taken in found.values())]
    missing = [row for row in rows if not found[row["name"]] and not row.get("optional")]
    if len(missing) == 1 and rest:
        found[missing[0]["name"]] = _columns_by_number(missing[0], _shape(missing[0], batched), rest)
    return [
        BatchInput(name=row["name"], datatype=row["datatype"], shape=_shape(row, batched), columns=found[row["name"]])
        for row in rows
    ]


def proposed_outputs(signature: Signature, columns: Sequence[str], *, batched: bool) -> list[BatchOutput]:
    """Return the column of each output: of its own name, unless the file has a column of that name."""
    taken = {*columns, ERROR}
    outputs = []
    for row in signature.get("outputs", []):
        name = row["name"]
        while name in taken:
            name += "_out"
        taken.add(name)
        is_list = any(dim != 1 for dim in _shape(row, batched))
        outputs.append(BatchOutput(name=row["name"], datatype=row["datatype"], column=name, is_list=is_list))
    return outputs


def with_columns(
    proposed: Sequence[BatchInput], given: dict[str, list[str]], columns: Sequence[str]
) -> list[BatchInput]:
    """Return the inputs with the columns that a person chose. Raises Invalid for an unknown input or column.

    given: input -> columns; an input that is not in it keeps the proposal.
    """
    names = [row["name"] for row in proposed]
    for name, chosen in given.items():
        if name not in names:
            raise Invalid.at("mapping", f"the model has no input '{name[:80]}'; its inputs are {', '.join(names)}")
        unknown = next((column for column in chosen if column not in columns), None)
        if unknown is not None:
            raise Invalid.at("mapping", f"the file has no column '{unknown[:80]}'; it has {_listed(columns)}")
    return [{**row, "columns": given.get(row["name"], row["columns"])} for row in proposed]


def mapping_problems(inputs: Sequence[BatchInput], signature: Signature) -> list[str]:
    """Return a sentence for each input that its columns cannot fill."""
    optional = {row["name"] for row in signature.get("inputs", []) if row.get("optional")}
    problems = []
    for row in inputs:
        count = math.prod(row["shape"])
        if not row["columns"] and row["name"] not in optional:
            problems.append(f"input '{row['name']}' ({_words(row)}) needs a column: choose one")
        elif len(row["columns"]) > 1 and count >= 0 and len(row["columns"]) != count:
            problems.append(
                f"input '{row['name']}' ({_words(row)}) needs {count} columns, and has {len(row['columns'])}"
            )
    return problems


def _columns_by_name(name: str, shape: Sequence[int], columns: Sequence[str]) -> list[str]:
    """Return the column of the input's name, or the columns of its name with a number: x0, x_1, x[2], ..."""
    same = [column for column in columns if column == name] or [
        column for column in columns if column.lower() == name.lower()
    ]
    if same:
        return same[:1]
    numbered = [column for column in columns if re.fullmatch(rf"{re.escape(name)}[_.\[ -]?\d+\]?", column, re.I)]
    numbered.sort(key=lambda column: int(_NUMBER.findall(column)[-1]))
    return numbered if len(numbered) == math.prod(shape) else []


def _columns_by_number(row: TensorRow, shape: Sequence[int], rest: Sequence[str]) -> list[str]:
    """Return the columns that are left for the only input that lacks some: one, or one for each element."""
    count = math.prod(shape)
    if len(rest) == 1 or (count == 1 and row["datatype"] != "BYTES"):
        return list(rest[:1]) if len(rest) == 1 else []
    return list(rest) if len(rest) == count else []


def _shape(row: TensorRow, batched: bool) -> list[int]:
    return list(row["shape"][1:] if batched else row["shape"])


def _words(row: BatchInput) -> str:
    return f"{row['datatype']}, {row['shape']}" if row["shape"] else row["datatype"]


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(columns[:10]) + (f" and {len(columns) - 10} more" if len(columns) > 10 else "")
