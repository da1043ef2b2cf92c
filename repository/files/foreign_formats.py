"""Files that no backend serves: how to recognise each kind, why it is not served, and how to make a model from it.

No other module has these sentences. The browser gets this table as JSON and shows the sentence before it sends a file
(`static/js/uploads/judgement.js`). The dashboard shows it when a client announces files, the inspection after it has read them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from repository.config.backends import FILENAME_OF_PACKED, FILENAME_OF_SUFFIX, FORMATS, formats_text
from repository.core.layout import CONFIG_FILE

HEAD_BYTES = 512  # the number of bytes at the beginning of a file that identify its kind
POINTER_BYTES = 1024  # a pointer of Git LFS is shorter
# The extensions and names of files that may be a model. If an upload has such a file, its other files belong to that model.
MODEL_ENDINGS = (*FILENAME_OF_SUFFIX, *FILENAME_OF_PACKED, ".zip")
MODEL_NAMES = (CONFIG_FILE,)
ARCHIVE_ENDINGS = [end for one in FORMATS.values() if one.holds for end in (*one.suffixes, *one.packed)]
_SERVED = f"{formats_text(is_data=True)}, {formats_text(is_data=False)}"


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """One kind of file.

    endings: the extensions, in lower case. starts: possible beginnings of a file, each a list of (offset, bytes in hexadecimal)
    that must all match. zip_holds, zip_lacks: extensions that must, and must not, appear in a zip archive of this kind.
    matter, remedy: the two halves of the sentence "it is ...: do ...". code: the lines of code for the remedy.
    executes_code: whether the usual tools for such a file run code when they read it.
    """

    name: str
    title: str
    matter: str
    remedy: str
    code: str = ""
    endings: tuple[str, ...] = ()
    starts: tuple[tuple[tuple[int, str], ...], ...] = ()
    zip_holds: str = ""
    zip_lacks: tuple[str, ...] = ()
    executes_code: bool = False

    @property
    def sentence(self) -> str:
        """Return the problem and its remedy, without a full stop."""
        return f"{self.matter}: {self.remedy}"


def _begins(text: str, at: int = 0) -> tuple[tuple[int, str], ...]:
    return ((at, text.encode("latin-1").hex()),)


_PAGE_STARTS = ("<!DOCTYPE html", "<!doctype html", "<!DOCTYPE HTML", "<!Doctype html", "<html", "<HTML", "<head")
_TORCH_TO_ONNX = """import torch
model.eval()  # the model with its weights loaded
torch.onnx.export(model, (example,), "model.onnx", dynamo=True, external_data=False,
                  dynamic_shapes=({0: torch.export.Dim("batch")},))"""
_SKLEARN_TO_ONNX = """from skl2onnx import to_onnx
onnx = to_onnx(model, X[:1], options={"zipmap": False})  # without zipmap for regressors
open("model.onnx", "wb").write(onnx.SerializeToString())"""
_KERAS_TO_ONNX = """model = keras.models.load_model("model.keras")  # or model.h5
model.export("model.onnx", format="onnx")  # pip install tf2onnx"""
_BOOSTER_TO_ONNX = """from onnxmltools import convert_{name}
from onnxmltools.convert.common.data_types import FloatTensorType
onnx = convert_{name}(model, initial_types=[("input", FloatTensorType([None, n_features]))])
open("model.onnx", "wb").write(onnx.SerializeToString())"""

LFS_POINTER = ForeignFormat(
    "git_lfs_pointer",
    "Git LFS pointer",
    "it is a pointer of Git LFS, not the file itself",
    "run `git lfs pull` in its repository, then choose the file again",
    code="git lfs install\ngit lfs pull",
    starts=(_begins("version https://git-lfs.github.com/spec/"),),
)
WEB_PAGE = ForeignFormat(
    "web_page",
    "web page",
    "it is a web page that was saved in place of the file, such as a sign-in page",
    "download the file itself, on Hugging Face and GitHub with the download button or the raw address",
    starts=tuple(_begins(blank + start) for blank in ("", "\n", "\r\n", "\xef\xbb\xbf") for start in _PAGE_STARTS),
)
SAFETENSORS = ForeignFormat(
    "safetensors",
    "safetensors",
    "the file has weights without the graph of the model",
    "export the complete model as ONNX, for models of Hugging Face with optimum",
    code="pip install optimum-onnx\noptimum-cli export onnx --model FOLDER exported/\n# then upload the files in exported/",
    endings=(".safetensors", ".safetensors.index.json"),
    starts=(((4, "00000000"), (8, "7b22")), ((4, "00000000"), (8, "7b7d"))),
)
TORCH_WEIGHTS = ForeignFormat(
    "torch_weights",
    "PyTorch weights",
    "the file is a pickle of torch.save with weights or a module, and pickles are not loaded",
    "load it in Python and save the model with torch.onnx.export or torch.export.save",
    code=_TORCH_TO_ONNX,
    endings=("pytorch_model.bin", ".bin.index.json", ".ckpt"),
    zip_holds="data.pkl",
    zip_lacks=("constants.pkl", ".json", ".so"),
    executes_code=True,
)
KERAS = ForeignFormat(
    "keras",
    "Keras",
    "a Keras model runs only in Keras",
    "export it as ONNX, which needs the package tf2onnx",
    code=_KERAS_TO_ONNX,
    endings=(".h5", ".hdf5", ".keras"),
    starts=(_begins("\x89HDF\r\n\x1a\n"),),
    zip_holds="model.weights.h5",
    executes_code=True,
)
XGBOOST = ForeignFormat(
    "xgboost",
    "XGBoost",
    "the file has XGBoost's own format, which no backend of this server reads",
    "convert the model to ONNX with convert_xgboost of onnxmltools",
    code=_BOOSTER_TO_ONNX.format(name="xgboost"),
    endings=(".ubj", ".xgb", ".bst"),
    starts=(_begins('{"learner"'), (*_begins("{L"), *_begins("\x07learner", 10))),
)
LIGHTGBM = ForeignFormat(
    "lightgbm",
    "LightGBM",
    "the file has LightGBM's own format, which no backend of this server reads",
    "convert the model to ONNX with convert_lightgbm of onnxmltools",
    code=_BOOSTER_TO_ONNX.format(name="lightgbm"),
    endings=(".lgb", ".lgbm"),
    starts=(_begins("tree\nversion="),),
)
CATBOOST = ForeignFormat(
    "catboost",
    "CatBoost",
    "the file has CatBoost's own format, which no backend of this server reads",
    'save the model as ONNX, with save_model(..., format="onnx")',
    code='model.save_model("model.onnx", format="onnx")',
    endings=(".cbm",),
    starts=(_begins("CBM1"),),
)
PICKLE = ForeignFormat(
    "pickle",
    "Pickle",
    "a pickle can run code and needs the packages that it was made with, so it is not loaded",
    "load it in Python and export the model as ONNX, from scikit-learn with skl2onnx, from PyTorch with torch.onnx.export; or "
    "write a model.py that loads it",
    code=f'import joblib\nmodel = joblib.load("model.joblib")  # or pickle.load\n{_SKLEARN_TO_ONNX}',
    endings=(".pkl", ".pickle", ".joblib", ".sav", ".dill", ".cloudpickle"),
    starts=tuple(_begins(f"\x80{chr(protocol)}") for protocol in range(2, 6)),
    executes_code=True,
)
SKOPS = ForeignFormat(
    "skops",
    "skops",
    "the file has an estimator of scikit-learn in a format that no backend of this server reads",
    "load it with skops and convert it to ONNX with skl2onnx",
    code=f'import skops.io\nmodel = skops.io.load("model.skops")\n{_SKLEARN_TO_ONNX}',
    endings=(".skops",),
)
TFLITE = ForeignFormat(
    "tflite",
    "TensorFlow Lite",
    "a TensorFlow Lite model is for phones and small devices, and no backend of this server reads it",
    "convert it to ONNX with tf2onnx --tflite",
    code="pip install tf2onnx\npython -m tf2onnx.convert --tflite model.tflite --output model.onnx",
    endings=(".tflite", ".lite"),
    starts=(_begins("TFL3", 4),),
)
SAVED_MODEL = ForeignFormat(
    "tensorflow_savedmodel",
    "TensorFlow SavedModel",
    "a SavedModel cannot be uploaded",
    "convert it to ONNX with tf2onnx; or copy its folder to <model>/1/model.savedmodel in the repository",
    code="pip install tf2onnx\npython -m tf2onnx.convert --saved-model FOLDER --output model.onnx",
    endings=("saved_model.pb", "saved_model.pbtxt"),
    executes_code=True,
)
FROZEN_GRAPH = ForeignFormat(
    "tensorflow_graph",
    "TensorFlow graph",
    "a frozen graph of TensorFlow 1 is not served",
    "convert it to ONNX with tf2onnx, and name its inputs and outputs",
    code="python -m tf2onnx.convert --graphdef model.pb --output model.onnx --inputs X:0 --outputs Y:0",
    endings=(".pb", ".meta"),
    executes_code=True,
)
GGUF = ForeignFormat(
    "gguf",
    "GGUF",
    "the file has weights for llama.cpp, which is not a backend of this server",
    "export the original model as ONNX with optimum; or write a model.py that calls llama-cpp-python",
    code="optimum-cli export onnx --model FOLDER exported/",
    endings=(".gguf", ".ggml"),
    starts=(_begins("GGUF"),),
)
OPENVINO = ForeignFormat(
    "openvino",
    "OpenVINO",
    "no backend of this server reads OpenVINO's format",
    "publish the ONNX model from which it was converted, which ONNX Runtime runs on the same machines",
    endings=(".xml",),
    starts=(_begins('<?xml version="1.0"?>\n<net'),),
)
PMML = ForeignFormat(
    "pmml",
    "PMML",
    "no backend of this server reads PMML",
    "convert the original model to ONNX, from scikit-learn with skl2onnx",
    code=_SKLEARN_TO_ONNX,
    endings=(".pmml",),
)
CORE_ML = ForeignFormat(
    "coreml",
    "Core ML",
    "a Core ML model runs only on Apple's devices",
    "export the original model as ONNX",
    code=_TORCH_TO_ONNX,
    endings=(".mlmodel",),
)
ORT = ForeignFormat(
    "ort",
    "ORT format",
    "the file is ONNX Runtime's reduced format for small devices",
    "publish the .onnx file from which it was converted",
    endings=(".ort",),
    starts=(_begins("ORTM", 4),),
)
R_DATA = ForeignFormat(
    "r",
    "R",
    "the file has data of R, which is not a backend of this server",
    "export the model from R as ONNX, or write a model.py that calls R",
    endings=(".rds", ".rda", ".rdata"),
)
WEIGHTS_OF_ONNX = ForeignFormat(
    "onnx_weights",
    "ONNX weights",
    "the file has the weights of an ONNX model, without its graph",
    "upload it together with the .onnx file from the same folder",
    endings=(".onnx.data", ".onnx_data", ".data"),
)
NUMPY = ForeignFormat(
    "numpy",
    "NumPy arrays",
    "the file has arrays, not a model",
    "export the model as ONNX",
    endings=(".npy", ".npz"),
    starts=(_begins("\x93NUMPY"),),
)
TABLE = ForeignFormat(
    "table",
    "a table",
    "the file has data, not a model",
    "train a model with the data, and export the model as ONNX",
    endings=(".csv", ".tsv", ".parquet", ".xlsx", ".feather", ".arrow"),
    starts=(_begins("PAR1"),),
)
ARCHIVE = ForeignFormat(
    "archive",
    "an archive",
    "the archive is not unpacked here, where only .zip files and TorchServe's archives are accepted",
    "unpack it and upload the folder, or pack it as .zip",
    endings=(".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar"),
    starts=(_begins("\x1f\x8b"), _begins("BZh"), _begins("\xfd7zXZ"), _begins("7z\xbc\xaf"), _begins("Rar!")),
)
WORKFLOW = ForeignFormat(
    "torchserve_workflow",
    "TorchServe workflow",
    "it is a TorchServe workflow, which runs several models",
    "import it together with the archives of these models: choose Import a model store on the page Models",
    zip_holds="WAR-INF/MANIFEST.json",
)
ZIP = ForeignFormat(
    "zip",
    "zip archive",
    "the zip archive is not a model file",
    "upload the files in it",
)
TEXT = ForeignFormat(
    "text",
    "text",
    "the file is text, not a model",
    f"upload the model itself; the formats that are served are {_SERVED}",
    endings=(".md", ".yaml", ".yml", ".ipynb", ".html", ".log"),
)
UNKNOWN = ForeignFormat(
    "unknown",
    "unknown",
    "the file has no format that this server knows",
    f"the formats that are served are {_SERVED}; rename the file to the ending of its format, or export the model as ONNX",
)

# More specific kinds come first, because the first kind that matches is used.
FOREIGN_FORMATS: tuple[ForeignFormat, ...] = (
    LFS_POINTER,
    WEB_PAGE,
    SAFETENSORS,
    KERAS,
    XGBOOST,
    LIGHTGBM,
    CATBOOST,
    PICKLE,
    SKOPS,
    TFLITE,
    GGUF,
    TORCH_WEIGHTS,
    WEIGHTS_OF_ONNX,
    OPENVINO,
    PMML,
    CORE_ML,
    ORT,
    R_DATA,
    NUMPY,
    TABLE,
    SAVED_MODEL,
    FROZEN_GRAPH,
    WORKFLOW,
    ARCHIVE,
    TEXT,
    ZIP,
    UNKNOWN,
)
BY_NAME = {one.name: one for one in FOREIGN_FORMATS}


def may_hold_model(path: str) -> bool:
    """Return whether a file, by its name, may be a model, or the configuration of a model."""
    name = PurePosixPath(path).name.lower()
    return name in MODEL_NAMES or name.endswith(MODEL_ENDINGS)


def by_names(paths: Iterable[str]) -> tuple[str, ForeignFormat] | None:
    """If no file can be a model by its name, return the file whose name shows most precisely what it is, and its kind.

    Return None if a file can be a model, or if no name shows a kind."""
    paths = list(paths)
    if any(may_hold_model(path) for path in paths):
        return None
    found = [(path, kind) for path in paths if (kind := by_ending(path)) is not None]
    # Choose the most specific kind: a folder with weights also contains tokenizers and read-me files.
    return min(found, key=lambda one: FOREIGN_FORMATS.index(one[1]), default=None)


def by_ending(path: str) -> ForeignFormat | None:
    """Return the kind of a file by its extension; None for a possible model and for an unknown extension."""
    name = PurePosixPath(path).name.lower()
    if name.endswith(tuple(FILENAME_OF_SUFFIX)):
        return None
    return next((one for one in FOREIGN_FORMATS if one.endings and name.endswith(one.endings)), None)


def stand_in(head: bytes) -> ForeignFormat | None:
    """Return the kind of a file that was downloaded in place of a model, by its first HEAD_BYTES; None for any other file."""
    return next((one for one in (LFS_POINTER, WEB_PAGE) if any(_fits(head, start) for start in one.starts)), None)


def stand_in_for_text(text: str) -> ForeignFormat | None:
    """Return the kind of a text that was saved in place of a model, as `stand_in` does for a file."""
    return stand_in(text[:HEAD_BYTES].encode(errors="replace"))


def by_head(head: bytes) -> ForeignFormat | None:
    """Return the kind of a file by its first HEAD_BYTES; None if no kind matches."""
    return next((one for one in FOREIGN_FORMATS if any(_fits(head, start) for start in one.starts)), None)


def _fits(head: bytes, start: Sequence[tuple[int, str]]) -> bool:
    return all(head.startswith(bytes.fromhex(expected), offset) for offset, expected in start)


def by_zip_names(names: Sequence[str]) -> ForeignFormat | None:
    """Return the kind of a zip archive by the names in it; None if it may be a model or contain one."""
    return next((one for one in FOREIGN_FORMATS if one.zip_holds and _holds(names, one)), None)


def _holds(names: Sequence[str], kind: ForeignFormat) -> bool:
    return any(name.endswith(kind.zip_holds) for name in names) and not any(
        name.endswith(kind.zip_lacks) for name in names if kind.zip_lacks
    )


def as_json() -> dict[str, Any]:
    """Return the table for the browser."""
    return {
        "model_endings": MODEL_ENDINGS,
        "model_names": MODEL_NAMES,
        "archive_endings": ARCHIVE_ENDINGS,
        "head_bytes": HEAD_BYTES,
        "formats": [{**asdict(one), "sentence": one.sentence} for one in FOREIGN_FORMATS],
    }
