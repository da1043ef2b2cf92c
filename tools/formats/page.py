"""Writes the page docs/formats.md: the exported models and the result for each model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.support.exported_models import Exported
from tools.write_docs import placed

_HEAD = """# Models of other tools

The tool in the column *made by* wrote each model of this page, in the version of `requirements/formats`. The models are in
`tests/exported_models`, with the answers of the tool itself. `make formats` makes the models again, in separate environments,
and writes this page. A test uploads, inspects and publishes each model without editing its configuration, and sends it
requests.

## Served

The column *answers* has the relative and absolute tolerance within which the answers equal the tool's. Some files have maps of
classes as outputs (ZipMap, the default for exports of scikit-learn, LightGBM and CatBoost). Such a map is served as a tensor of
probabilities with a column for each class. The class names are in `slipway.class_names` of the effective configuration, and the
classification extension returns them.

| model | description | made by | opset | inputs | outputs | batches | answers |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
_REFUSED = """
## Refused, with the remedy

| model | description | made by | error |
| --- | --- | --- | --- |
"""
_KNOWN = """
## Files that are not models

A file of these formats is recognised by the end of its name before it is sent, or else by its first bytes, also in the browser.
Such files are accepted together with a model: a `model.py` may read a pickle or the trees of XGBoost.

"""
_BATCHES = """
## Batches

A model batches if the first dimension of every input and output is variable. If a file was exported with an example of one row,
or declares one row of an output, the inspection says so, and shows the line that exports it with a variable dimension. The
inspection also tries whether the model answers several rows like each row alone. If so, `slipway.variable_batch` makes the file
batch without a new export.

Two mistakes of exporters are corrected when the file is loaded; the file itself does not change. A classifier's label that is
declared as `[1]` becomes one label for each row. Text is lowercased with the locale `C.UTF-8` if the machine lacks the locale
that the model names.
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
