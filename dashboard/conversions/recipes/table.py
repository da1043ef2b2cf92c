"""The recipes: what each takes, what it makes, its environment and options, and the command line as a person would write it."""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dashboard.shared.exceptions import Invalid
from repository.files import foreign_formats as formats
from repository.files.foreign_formats import HEAD_BYTES, ForeignFormat

VERSION = 1  # of the recipes; lineage names it
PROGRAMS = Path(__file__).parent
_MLMODEL_BYTES = 1 << 20
_END_BYTES = 22 + 65535  # the end record of a zip archive with the longest comment
_MOST_DIRECTORY_BYTES = 64 << 20
# Flavour of an MLflow folder -> the environment of the recipe that converts it.
_FLAVOURS = {
    "sklearn": "tabular",
    "xgboost": "tabular",
    "lightgbm": "tabular",
    "catboost": "tabular",
    "pytorch": "torch",
    "transformers": "torch",
    "tensorflow": "keras",
    "keras": "keras",
}


@dataclass(frozen=True, slots=True)
class Option:
    """kind: "text", "number", "switch", "choice" or "json". sentence: what it means, for people."""

    name: str
    kind: str
    default: Any
    sentence: str
    choices: tuple[str, ...] = ()

    def checked(self, value: Any) -> Any:
        """Return the value of the option. Raises Invalid at its name."""
        right = {"text": str, "choice": str, "number": int, "switch": bool, "json": dict}[self.kind]
        if not isinstance(value, right) or (self.kind == "number" and isinstance(value, bool)):
            raise Invalid.at(self.name, f"'{self.name}' must be {_KINDS[self.kind]}, not {json.dumps(value)[:40]}")
        if self.choices and value not in self.choices:
            raise Invalid.at(self.name, f"'{self.name}' must be one of {', '.join(self.choices)}, not '{value}'")
        return value


_KINDS = {
    "text": "a text",
    "choice": "a text",
    "number": "a whole number",
    "switch": "true or false",
    "json": "an object",
}


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a source: names relative to its folder, and the kind of each that `foreign_formats` knows."""

    folder: Path
    names: tuple[str, ...]
    kinds: Mapping[str, ForeignFormat]

    def has(self, *endings: str) -> bool:
        return any(name.lower().endswith(endings) for name in self.names)

    def is_kind(self, *kinds: ForeignFormat) -> bool:
        return any(kind in kinds for kind in self.kinds.values())

    def named(self, name: str) -> bool:
        """Return whether a file has exactly this name, in any folder."""
        return any(one.rpartition("/")[2] == name for one in self.names)


@dataclass(frozen=True, slots=True)
class Recipe:
    """name: that of its program. loads_code: whether it always runs code of the source; `loads_code` tells it of a source.
    makes_code: whether files that it makes count as code, such as a tokenizer in Python or a plan.
    of_served: whether the server also serves the source as it is. needs_gpu: whether its programs use the machine's GPU."""

    name: str
    title: str
    takes: str
    makes: str
    environment: str
    recognises: Callable[[Source], bool]
    options: tuple[Option, ...] = ()
    loads_code: bool = False
    makes_code: bool = False
    of_served: bool = False
    needs_gpu: bool = False

    @property
    def program(self) -> Path:
        return PROGRAMS / f"{self.name}.py"

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options with their values. Raises Invalid, at the option that is wrong or unknown."""
        known = {one.name: one for one in self.options}
        if unknown := next((name for name in options if name not in known), ""):
            names = ", ".join(known) or "none"
            raise Invalid.at(unknown, f"'{unknown}' is no option of the recipe '{self.name}'; its options are {names}")
        return {name: one.checked(options[name]) if name in options else one.default for name, one in known.items()}

    def arguments(self, source: Path, target: Path, options: Path) -> list[str]:
        """Return what follows the environment's Python. -P: the source's folder is no place to import from."""
        return [str(self.program), str(source), str(target), str(options)]

    def command(self, options: Mapping[str, Any]) -> str:
        """Return the command as a person would write it: the options that are not the defaults are in it."""
        changed = {
            one.name: options[one.name] for one in self.options if options.get(one.name, one.default) != one.default
        }
        given = f" --options '{json.dumps(changed)}'" if changed else ""
        return f"python -m dashboard.conversions {self.name} SOURCE TARGET{given}"


_OPSET = Option(
    "opset", "number", 0, "The opset of the ONNX file; 0 takes the highest that exporter and server both know."
)
_FORMAT = Option("format", "choice", "onnx", "What to write: ONNX, or torch.export's own file.", ("onnx", "pt2"))
_INPUTS = Option("inputs", "json", {}, "Shape and datatype of each input, if the model does not tell them.")
_DATATYPE = Option("datatype", "choice", "FP32", "The datatype of numbers.", ("FP32", "FP64"))

_WEIGHTS = (formats.TORCH_WEIGHTS, formats.SAFETENSORS)
_TASKS = ("", "text-classification", "token-classification", "reranking", "embeddings", "image-classification")


def _is_huggingface(source: Source) -> bool:
    return source.named("config.json") and (source.has(".safetensors") or source.has("pytorch_model.bin"))


def _is_torch_module(source: Source) -> bool:
    """Return whether there are weights, and either their class or a file that may hold a whole module."""
    if source.named("config.json"):
        return False
    return source.is_kind(formats.TORCH_WEIGHTS) or (source.is_kind(formats.SAFETENSORS) and source.has(".py"))


def _is_lightgbm(source: Source) -> bool:
    return source.is_kind(formats.LIGHTGBM)


# A folder goes before the files in it, so the first that recognises a source is the best.
RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "mlflow_model",
        "MLflow model",
        "a folder with the file MLmodel, of the flavours sklearn, xgboost, lightgbm, catboost, "
        "pytorch, transformers, tensorflow and keras",
        "ONNX",
        "tabular",
        lambda source: source.named("MLmodel"),
        (_OPSET, _DATATYPE, _INPUTS),
    ),
    Recipe(
        "huggingface",
        "Hugging Face model",
        "a folder with config.json, weights and tokenizer or image processor",
        "ONNX, its tokenizer or image processor in Python, and the ensemble of both",
        "torch",
        _is_huggingface,
        (
            Option("task", "choice", "", "What the model does; empty takes what config.json says.", _TASKS),
            Option(
                "pooling",
                "choice",
                "",
                "How tokens become an embedding; empty: as the folder says.",
                ("", "mean", "cls", "max"),
            ),
            Option(
                "normalise",
                "choice",
                "",
                "Whether an embedding has length 1; empty: as the folder says.",
                ("", "yes", "no"),
            ),
            _OPSET,
        ),
        makes_code=True,
    ),
    Recipe(
        "saved_model",
        "TensorFlow SavedModel",
        "a folder with saved_model.pb",
        "ONNX",
        "keras",
        lambda source: source.named("saved_model.pb"),
        (Option("signature", "text", "", "The signature to convert; empty takes serving_default."), _OPSET),
        loads_code=True,
    ),
    Recipe(
        "keras_model",
        "Keras",
        "a .keras or .h5 file",
        "ONNX",
        "keras",
        lambda source: source.is_kind(formats.KERAS),
        (_OPSET,),
    ),
    Recipe(
        "xgboost_model",
        "XGBoost",
        "a booster in JSON or UBJ",
        "ONNX",
        "tabular",
        lambda source: source.is_kind(formats.XGBOOST),
        (_OPSET,),
    ),
    Recipe("lightgbm_model", "LightGBM", "a booster as text", "ONNX", "tabular", _is_lightgbm, (_OPSET,)),
    Recipe(
        "catboost_model", "CatBoost", "a .cbm file", "ONNX", "tabular", lambda source: source.is_kind(formats.CATBOOST)
    ),
    Recipe(
        "scikit_learn",
        "scikit-learn",
        "an estimator or pipeline in a pickle, joblib or skops file; also of XGBoost, LightGBM and CatBoost",
        "ONNX",
        "tabular",
        lambda source: source.is_kind(formats.PICKLE, formats.SKOPS),
        (_OPSET, _DATATYPE),
    ),
    Recipe(
        "torch_module",
        "PyTorch module",
        "a .py file with the class and a state_dict, or a module that torch.save wrote",
        "ONNX or torch.export",
        "torch",
        _is_torch_module,
        (
            Option("class", "text", "", "The class in the .py file; empty takes the only one."),
            Option("arguments", "json", {}, "The arguments with which the class is made."),
            _INPUTS,
            _FORMAT,
            Option("tracing", "switch", False, "Keep the way that one example takes through branches and loops."),
            _OPSET,
        ),
        loads_code=True,
    ),
    Recipe(
        "torchscript",
        "TorchScript",
        "an archive that torch.jit.save wrote",
        "ONNX or torch.export",
        "torch",
        lambda source: source.has(".pt", ".pth", ".ts") and not source.is_kind(*_WEIGHTS),
        (_INPUTS, _FORMAT, _OPSET),
        loads_code=True,
        of_served=True,
    ),
    Recipe(
        "onnx_int8",
        "ONNX in INT8",
        "an ONNX model in FP32",
        "ONNX with weights in INT8",
        "onnx",
        lambda source: source.has(".onnx"),
        (
            Option("per_channel", "switch", True, "Whether each channel of a weight has its own scale."),
            Option("weights", "choice", "INT8", "The datatype of weights.", ("INT8", "UINT8")),
            _INPUTS,
        ),
        of_served=True,
    ),
    Recipe(
        "onnx_fp16",
        "ONNX in FP16",
        "an ONNX model in FP32",
        "ONNX that computes in FP16",
        "onnx",
        lambda source: source.has(".onnx"),
        (_INPUTS,),
        of_served=True,
    ),
    Recipe(
        "tensorrt_plan",
        "TensorRT plan",
        "an ONNX model",
        "a plan for the GPU of this machine, which only its version of TensorRT reads",
        "tensorrt",
        lambda source: source.has(".onnx"),
        (
            Option(
                "precision",
                "choice",
                "FP16",
                "How numbers of FP32 are computed. Weights in INT8 stay so.",
                ("FP16", "TF32", "FP32"),
            ),
            Option("max_batch_size", "number", 0, "The largest batch; 0 takes that of config.pbtxt, else 32."),
            Option("shapes", "json", {}, "The least, best and largest shape of each input, with its batch."),
            Option(
                "workspace_mib", "number", 0, "The most scratch memory of a layer in MiB; 0 takes all of the GPU's."
            ),
            _INPUTS,
        ),
        makes_code=True,
        of_served=True,
        needs_gpu=True,
    ),
)
BY_NAME = {one.name: one for one in RECIPES}


def source_of(folder: Path) -> Source:
    """Return the source in a folder. Each file is recognised by its content, else by the end of its name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    names = tuple(path.relative_to(folder).as_posix() for path in paths)
    found = ((name, _kind(path)) for name, path in zip(names, paths, strict=True))
    return Source(folder, names, {name: kind for name, kind in found if kind is not None})


def _kind(path: Path) -> ForeignFormat | None:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not head:  # whatever its name is, there is nothing to convert
        return None
    if head.startswith(b"PK\x03\x04"):
        return formats.by_zip_names(_zip_names(path)) or formats.by_ending(path.name)
    return formats.by_head(head) or formats.by_ending(path.name)


def _zip_names(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _END_BYTES))
            end = file.read()
        at = end.rfind(b"PK\x05\x06")
        if at < 0 or int.from_bytes(end[at + 12 : at + 16], "little") > _MOST_DIRECTORY_BYTES:
            return []
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        return []


def recipes_for(source: Source) -> list[Recipe]:
    """Return the recipes that take a source, the best first."""
    return [one for one in RECIPES if one.recognises(source)]


def may_be_converted(paths: Sequence[str]) -> bool:
    """Return whether a recipe may take files of these names."""
    kinds = {path: kind for path in paths if (kind := formats.by_ending(path)) is not None}
    return bool(recipes_for(Source(Path(), tuple(paths), kinds)))


def converted_kinds() -> dict[str, list[str]]:
    """Return the kinds of files that a recipe may take: name -> ends of names, one of which must be among the files; [] if the
    kind is enough."""
    found: dict[str, list[str]] = {}
    for kind in formats.FOREIGN_FORMATS:
        if may_be_converted(kind.endings):
            found[kind.name] = []
        elif beside := [name for name in ("config.json", ".py") if may_be_converted([*kind.endings, name])]:
            found[kind.name] = beside
    return found


def environment_of(recipe: Recipe, source: Source) -> str:
    """Return the name of the environment that a source needs: that of an MLflow folder depends on its flavour."""
    if recipe.name != "mlflow_model":
        return recipe.environment
    path = next(source.folder / name for name in source.names if name.rpartition("/")[2] == "MLmodel")
    with path.open("rb") as file:
        try:
            content = yaml.safe_load(file.read(_MLMODEL_BYTES))
        except (yaml.YAMLError, UnicodeDecodeError):
            content = None
    flavours = content.get("flavors") if isinstance(content, dict) else None
    known = flavours if isinstance(flavours, dict) else {}
    return next((name for flavour, name in _FLAVOURS.items() if flavour in known), "tabular")


def loads_code(recipe: Recipe, source: Source) -> bool:
    """Return whether the recipe may run code of the source, for which its person needs the right."""
    return recipe.loads_code or source.has(".py") or any(kind.executes_code for kind in source.kinds.values())
