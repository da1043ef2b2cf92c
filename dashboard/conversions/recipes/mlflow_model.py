"""An MLflow model folder: the recipe of its flavour converts it; its signature gives the names, its input example a sample.

The folder is read without the package mlflow. Flavours by the file MLmodel, https://mlflow.org/docs/latest/ml/model/.
"""

import importlib
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from recipe import Refused, Work, main

PACKAGES = "scikit-learn skl2onnx xgboost lightgbm catboost onnxmltools torch transformers keras tf2onnx onnx numpy"
FALLBACK = "log the model with the flavour of its own library, or write a model.py that loads it"
# Flavour -> the recipe that converts it, and the key in MLmodel of the file or folder that it reads.
FLAVOURS = {
    "sklearn": ("scikit_learn", "pickled_model"),
    "xgboost": ("xgboost_model", "data"),
    "lightgbm": ("lightgbm_model", "data"),
    "catboost": ("catboost_model", "data"),
    "pytorch": ("torch_module", "model_data"),
    "transformers": ("huggingface", "model_binary"),
    "tensorflow": ("keras_model", "data"),
    "keras": ("keras_model", "data"),
}


def convert(work: Work) -> None:
    """Convert the model by its flavour."""
    found = work.file("mlmodel")
    root, content = found.parent, read(found)
    flavours = content.get("flavors", {})
    flavour = next((name for name in FLAVOURS if name in flavours), "")
    if not flavour:
        names = ", ".join(name for name in flavours) or "none"
        raise Refused(f"the MLflow model has no flavour that is converted; it has {names}", FALLBACK)
    recipe, key = FLAVOURS[flavour]
    part = flavours[flavour].get(key) or "data"
    data = (root / part).resolve()
    if not data.is_relative_to(root.resolve()) or not data.exists():
        raise Refused(f"the MLflow model names '{part}', which is not in its folder", "upload the complete folder")
    for entry in (root / "code", root):
        if entry.is_dir():
            sys.path.insert(0, str(entry))  # its code_paths
    work.note(flavour=flavour, **named(content, root))
    module = importlib.import_module(recipe)
    if data.is_file():
        work.source = root
        work.file = lambda *endings: data  # the one that MLmodel names, whatever its ending
        module.convert(work)
        return
    work.source = data
    with tempfile.TemporaryDirectory(dir=work.target) as together:
        if flavour == "transformers":
            work.source = Path(together)
            for part in (data, *sorted((root / "components").glob("*"))):  # the tokenizer lies beside the model
                shutil.copytree(part, work.source, dirs_exist_ok=True)
        module.convert(work)


def read(path: Path) -> dict[str, Any]:
    import yaml

    content = yaml.safe_load(path.read_text())
    if not isinstance(content, dict):
        raise Refused("the file MLmodel is empty or damaged", "upload the folder anew")
    return content


def named(content: dict[str, Any], root: Path) -> dict[str, Any]:
    """Return the signature's names and types, and the rows of the input example, for the report."""
    facts: dict[str, Any] = {}
    signature = content.get("signature") or {}
    for side in ("inputs", "outputs"):
        if signature.get(side):
            facts[f"signature_{side}"] = json.loads(signature[side])
    example = (content.get("saved_input_example_info") or {}).get("artifact_path", "")
    path = root / example
    if example and re.fullmatch(r"[\w.-]+\.json", example) and path.is_file() and path.stat().st_size < 1 << 20:
        facts["example"] = json.loads(path.read_text())
    return facts


if __name__ == "__main__":
    main(convert, PACKAGES)
