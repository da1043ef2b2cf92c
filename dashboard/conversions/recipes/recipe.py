"""What every recipe shares: it reads a source folder and options, and writes a target folder with `report.json`.

    python <recipe>.py SOURCE TARGET OPTIONS.json

    TARGET/model/...       the files of the new model; TARGET/<suffix>/... those of a further model, such as a tokenizer
    TARGET/samples.npz     sample inputs, an array for each input
    TARGET/answers.npz     the source's own answers to them, an array for each output
    TARGET/report.json     inputs, outputs, packages, warnings; after a failure `error` and `advice`, a sentence each

A recipe runs in an environment of its own packages, so this module imports nothing of Slipway, and frameworks only in
functions.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 32  # of the samples
SEED = 7


class Refused(Exception):
    """The source cannot be converted. error: why, advice: what to do next; a sentence each, without a full stop."""

    def __init__(self, error: str, advice: str) -> None:
        super().__init__(error)
        self.error, self.advice = error, advice


class Work:
    """One conversion: the folders, the options, and what becomes of the report."""

    def __init__(self, source: Path, target: Path, options: dict[str, Any]) -> None:
        self.source, self.target, self.options = source, target, options
        self.random = np.random.default_rng(SEED)
        self.warnings: list[str] = []
        self.notes: dict[str, Any] = {}

    def path(self, name: str, suffix: str = "model") -> Path:
        """Return the path for a new file of the model, or of the further model `suffix`."""
        path = self.target / suffix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def warn(self, sentence: str) -> None:
        """Add a warning to the report: one sentence, without a full stop."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def note(self, **facts: Any) -> None:
        """Add facts to the report."""
        self.notes.update(facts)

    def file(self, *endings: str) -> Path:
        """Return the one file of the source that ends so."""
        found = [path for path in self.files() if path.name.lower().endswith(endings)]
        if not found:
            raise Refused(
                f"the source has no file that ends in {' or '.join(endings)}",
                "give the model's file such an ending, or add it",
            )
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise Refused(f"the source has several models: {names}", "convert one at a time")
        if not found[0].stat().st_size:
            raise Refused(f"the file '{found[0].name}' is empty", "upload it whole")
        return found[0]

    def files(self) -> list[Path]:
        """Return all files of the source, in the order of their names."""
        return sorted(path for path in self.source.rglob("*") if path.is_file())

    def write(self, samples: dict[str, Any], answers: dict[str, Any]) -> None:
        """Write the sample inputs, and the source's own answers to them."""
        for name, arrays in (("samples", samples), ("answers", answers)):
            np.savez(self.target / f"{name}.npz", **{key: plain(value) for key, value in arrays.items()})


def main(convert: Callable[[Work], None], packages: str) -> None:
    """Run a recipe. packages: those that the report names with their versions, separated by spaces."""
    source, target, options = (Path(argument).resolve() for argument in sys.argv[1:4])
    target.mkdir(parents=True, exist_ok=True)
    work = Work(source, target, json.loads(options.read_text()))
    report: dict[str, Any] = {"error": "", "advice": ""}
    try:
        convert(work)
    except Refused as refused:
        report = {"error": refused.error, "advice": refused.advice}
    except Exception as error:
        traceback.print_exc()
        report = dict(zip(("error", "advice"), explained(error), strict=True))
    for name, said in report.items():  # where a source lies here is nobody's concern
        report[name] = said.replace(f"{source}/", "")
    report |= {"packages": versions(packages.split()), "warnings": work.warnings, **work.notes}
    (target / "report.json").write_text(json.dumps(report, indent=1))
    sys.exit(1 if report["error"] else 0)


# The errors of the packages that read files, by name: the packages of an environment are not all those of another.
_OF_DAMAGED_FILES = ("JSONDecodeError", "SafetensorError", "BadZipFile", "UnicodeDecodeError", "UnpicklingError")


def explained(error: Exception) -> tuple[str, str]:
    """Return an error that no recipe foresaw as a sentence, and what to do next."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return (
            f"the file needs the Python module '{error.name}', which its environment lacks",
            "add the module's .py file beside the model, or save the model without it",
        )
    if isinstance(error, AttributeError) and "Can't get attribute" in str(error):
        name = str(error).partition("attribute '")[2].partition("'")[0]
        return (
            f"the pickle needs '{name}', a class or function that only its own program had",
            "put it into a module, save the model anew, and add the module's .py file",
        )
    if isinstance(error, MemoryError):
        return "the conversion needed more memory than it may take", "allow it more memory, or convert a smaller model"
    said = " ".join(str(error).partition("Stack trace:")[0].split())[:400] or "no words"
    if type(error).__name__ in _OF_DAMAGED_FILES:
        return f"a file of the source is damaged or cut off ({said})", "upload it whole, or save the model anew"
    return f"the conversion failed ({type(error).__name__}: {said})", "see the job's log for the line where it failed"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package, and Python's."""
    found = {"python": sys.version.split()[0]}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# -- tensors -----------------------------------------------------------------------------------------------------------
def plain(value: Any) -> np.ndarray:
    """Return an array that a .npz file holds without a pickle: texts and bytes with their length instead of as objects."""
    array = np.asarray(value)
    if array.dtype.kind != "O":
        return array
    return array.astype("S" if array.size and isinstance(array.flat[0], bytes) else str)


def texts(count: int, words: Sequence[str], random: np.random.Generator, length: int = 6) -> np.ndarray:
    """Return sentences of these words, and one that has none of them."""
    found = [" ".join(random.choice(words, random.integers(1, length + 1))) for _ in range(count - 1)]
    return np.array([*found, "zzzunknown"], object)


def example_rows(work: Work) -> Any:
    """Return the rows that come with the source as a table: examples.csv, or the input example of MLflow; else None."""
    import pandas

    if path := next((path for path in work.files() if path.name == "examples.csv"), None):
        return pandas.read_csv(path, nrows=ROWS)
    example = work.notes.get("example")
    if isinstance(example, dict) and "data" in example:
        return pandas.DataFrame(example["data"][:ROWS], columns=example.get("columns"))
    return None


def splits_to_samples(work: Work, count: int, features: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return FP32 [rows, count]: those that came with the source, or some around the thresholds of trees, which take many ways.

    features, values: the feature and threshold of each split.
    """
    given = example_rows(work)
    if given is not None and len(given.columns) >= count:
        return given.iloc[:, :count].to_numpy(np.float32)
    rows = work.random.standard_normal((ROWS, count))
    for at in range(count):
        if len(own := values[features == at]):
            rows[:, at] = work.random.choice(own, ROWS) + rows[:, at] * (np.ptp(own) / 4 or abs(own[0]) / 4 or 1.0)
    return rows.astype(np.float32)


# -- ONNX --------------------------------------------------------------------------------------------------------------
def opset(work: Work, highest: int, lowest: int = 1) -> int:
    """Return the opset to write: the option's, or the highest that the exporter and the runtime of the product both know."""
    known = runtime_opset()
    wanted = int(work.options.get("opset") or 0)
    if wanted > known:
        raise Refused(
            f"ONNX Runtime {version_of_runtime()} of this server runs models up to opset {known}, not {wanted}",
            f"choose an opset from {lowest} to {min(highest, known)}",
        )
    if wanted and not lowest <= wanted <= highest:
        raise Refused(f"the exporter writes opsets {lowest} to {highest}, not {wanted}", "choose one of them")
    return wanted or min(highest, known)


def runtime_opset() -> int:
    """Return the highest opset that the installed ONNX Runtime runs: it is the product's own, and it is asked with a model."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "opset", [value], [answer])
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    for number in range(onnx.defs.onnx_opset_version(), 8, -1):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", number)])
        model.ir_version = min(model.ir_version, helper.find_min_ir_version_for(model.opset_import))
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
        except Exception:
            continue
        return number
    return 8


def version_of_runtime() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


_ONNX_TYPES = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "BYTES", 9: "BOOL", 10: "FP16",
    11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip


def describe(work: Work, path: Path) -> None:
    """Add the inputs, outputs and opset of an ONNX file to the report."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    inner = {one.name for one in model.graph.initializer}
    work.note(
        inputs=[tensor(value) for value in model.graph.input if value.name not in inner],
        outputs=[tensor(value) for value in model.graph.output],
        opset=next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0),
    )


def tidy(path: Path) -> None:
    """Correct what exporters write.

    A map of classes (ZipMap) becomes its tensor, a label that is declared for one row becomes one for each row, and texts are
    lowercased with a locale that every server has.
    """
    import onnx

    model = onnx.load(path)
    graph = model.graph
    for node in [node for node in graph.node if node.op_type == "ZipMap"]:
        (output,) = (one for one in graph.output if one.name == node.output[0])
        classes = next(len(one.strings or one.ints) for one in node.attribute if one.name.startswith("classlabels_"))
        shown = onnx.helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, ["rows", classes])
        output.CopyFrom(shown)
        for other in graph.node:
            other.output[:] = [output.name if name == node.input[0] else name for name in other.output]
            other.input[:] = [output.name if name == node.input[0] else name for name in other.input]
        graph.node.remove(node)
    for node in graph.node:
        if node.op_type == "StringNormalizer":  # every Linux has C.UTF-8; most containers lack en_US.UTF-8, the default
            kept = [one for one in node.attribute if one.name != "locale"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("locale", "C.UTF-8")])
    for output in graph.output:
        shape = output.type.tensor_type.shape
        if len(shape.dim) == 1 and shape.dim[0].dim_value == 1:
            shape.dim[0].dim_param = "rows"
    onnx.save(model, path)


def tensor(value: Any) -> dict[str, Any]:
    """Return name, datatype and shape of an input or output; -1 stands for any size."""
    kind = value.type.tensor_type
    shape = [one.dim_value if one.HasField("dim_value") else -1 for one in kind.shape.dim]
    return {"name": value.name, "datatype": _ONNX_TYPES.get(kind.elem_type, "unknown"), "shape": shape}
