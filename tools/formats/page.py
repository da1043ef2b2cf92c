"""Writes the page docs/formats.md: the exported models and the result for each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.support.exported_models import Exported
from tools.write_docs import placed

_HEAD = """# Models of other tools

Every model of this page was written by the tool that is named, with the versions of `requirements/formats`, and lies in
`tests/exported_models` with the answers that the tool itself gives. `make formats` makes them anew, in environments of
their own, and writes this page; a test uploads, inspects, publishes and asks each of them, with no edit of the
configuration.

## Served

"Answers" says how near the answers are to the tool's: relative and absolute. Outputs that are a map of classes in the file
(ZipMap, the default of scikit-learn's, LightGBM's and CatBoost's exports) are served as a tensor of probabilities with a
column for each class; the classes' names are in `slipway.class_names` of the configuration in force, and come with the
classification extension.

| model | what it is | made by | opset | takes | gives | batches | answers |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
_REFUSED = """
## Refused, with the remedy

| model | what it is | made by | what is said |
| --- | --- | --- | --- |
"""
_KNOWN = """
## What is known to be no model

By the end of its name where that says enough, before anything is sent; else by its first bytes, in the browser too. Beside
a model such files are its own: a `model.py` may read a pickle or the trees of XGBoost.

"""
_BATCHES = """
## Batches

A model batches when the first dimension of every input and output is variable. Where a file was exported with an example of
one row, or declares one row of an output, the inspection says so, with the line that exports it anew. It also tries whether
the model answers several rows as it answers each alone: then `slipway.variable_batch` makes it batch as it is. Two things that
exporters get wrong are mended as the file is loaded, which itself stays as it is: a classifier's label that is declared as
`[1]` is one for each row, and text is lowered with the locale `C.UTF-8` where the machine lacks the one that the model
names.
"""


class Row(NamedTuple):
    """A model, the report of its inspection, and its result in words."""

    model: Exported
    report: dict[str, Any]
    result: str


def page(rows: Sequence[Row]) -> str:
    """Return the page as Markdown."""
    served = [_served(row) for row in rows if not row.model.refused]
    refused = [_refused(row) for row in rows if row.model.refused]
    return _HEAD + "".join(served) + _REFUSED + "".join(refused) + _KNOWN + placed("formats") + _BATCHES


def _served(row: Row) -> str:
    model, report = row.model, row.report
    batches = "yes" if "max_batch_size" in report["config"] else "no"
    takes, gives = (_tensors(report[side]) for side in ("inputs", "outputs"))
    opset = str(report["opset"] or "")
    return _line(f"`{model.name}`", model.what, ", ".join(model.tools), opset, takes, gives, batches, row.result)


def _refused(row: Row) -> str:
    return _line(f"`{row.model.name}`", row.model.what, ", ".join(row.model.tools), row.result)


def _tensors(tensors: list[dict[str, Any]]) -> str:
    shapes = (f"`{tensor['name']}` {tensor['datatype']} {tensor['shape']}" for tensor in tensors)
    return ", ".join(shapes)


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
