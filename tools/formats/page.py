"""Writes the page docs/formats.md: the exported models and the result for each model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.conversions.recipes.table import recipes_for, source_of
from tests.support.exported_models import Exported
from tools.write_docs import placed

_HEAD = """# Models of other tools

The tool in the column *made by* wrote each model of this page, in the version of `requirements/convert`. The models are in
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
## Not served as they are

The dashboard [converts](guide.md#a-file-of-another-tool) a file for which a recipe is named, and compares the answers of both.
The error is that of the server and of `python -m serving.inspect`, with what can be done by hand.

| model | description | made by | recipe | error |
| --- | --- | --- | --- | --- |
"""
_KNOWN = """
## Files that are not models

A file of these formats is recognised by the end of its name before it is sent, or else by its first bytes, also in the browser.
Such files are accepted together with a model: a `model.py` may read a pickle or the trees of XGBoost.

A file that a recipe takes is accepted, too: the page of its upload offers to
[convert it](guide.md#a-file-of-another-tool), and says how to do it by hand.

"""
_CONVERTED = """
## Converted

Each artefact was sent over the REST API as its tool writes it, converted by a job, published, loaded and asked; nobody used a
terminal. *Seconds* is the time from the first byte to the answer, with the recipe's environment made before, on a machine with
two cores that did other work as well. The last two columns compare what the server answered with what the source answered. The
maximum difference is over all numbers of all outputs. `make conversion-figures` writes this table.

"""
_PLANS = """
### TensorRT plans

The recipe `tensorrt_plan` builds a plan of an ONNX model for the GPU of the machine, and compares its answers on that GPU with
those of the ONNX model on the CPU. The server needs `requirements/gpu.txt`: a plan is read only by the version of TensorRT that
wrote it, and by GPUs of the same kind. Conversions and the inference server must see the same GPU. The options:

* `precision`: with `FP16`, numbers of FP32 are computed in FP16; inputs and outputs keep their datatype. With `TF32`, products
  of matrices have the bits of FP16 and the range of FP32. Answers may differ by 0.02 and 2 % in both. With `FP32` they may
  differ by 0.0001 and 0.1 %.
* `max_batch_size`: the largest batch of the optimisation profile. Without it `max_batch_size` of a `config.pbtxt` beside the
  model counts, else 32. The plan is fastest at the largest of `preferred_batch_size`, else at the largest batch.
* `shapes`: the least, best and largest shape of an input, such as `{"tokens": [[1, 8], [8, 64], [32, 256]]}`. An input needs
  it if another dimension than the first has any size, and `dims` of `config.pbtxt` do not fix it.
* `workspace_mib`: the most scratch memory that a layer may take.
* `inputs`: the shapes of the sample inputs, and a bound on their whole numbers, as in the other recipes for ONNX.

INT8 is not an option: TensorRT reads it from the file, which must have `QuantizeLinear` and `DequantizeLinear`. ONNX Runtime's
static quantisation writes these; `onnx_int8` quantises dynamically, which TensorRT does not read.
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
    return (
        _HEAD
        + "".join(served)
        + _REFUSED
        + "".join(refused)
        + _KNOWN
        + placed("formats")
        + _CONVERTED
        + placed("conversions")
        + _PLANS
        + _BATCHES
    )


def _served(row: Row) -> str:
    model, report = row.model, row.report
    batches = "yes" if "max_batch_size" in report["config"] else "no"
    takes, gives = (_tensors(report[side]) for side in ("inputs", "outputs"))
    opset = str(report["opset"] or "")
    return _line(f"`{model.name}`", model.what, ", ".join(model.tools), opset, takes, gives, batches, row.result)


def _refused(row: Row) -> str:
    found = recipes_for(source_of(row.model.folder / "files"))
    recipes = ", ".join(f"`{one.name}`" for one in found if not one.of_served) or "none"
    return _line(f"`{row.model.name}`", row.model.what, ", ".join(row.model.tools), recipes, row.result)


def _tensors(tensors: list[dict[str, Any]]) -> str:
    shapes = (f"`{tensor['name']}` {tensor['datatype']} {tensor['shape']}" for tensor in tensors)
    return ", ".join(shapes)


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
