"""The artefacts that tests convert: those of `makers`, which run in the recipes' environments, and of tests/exported_models.

The environments lie in .cache/environments, or in CONVERSION_ENVIRONMENTS. `make test-conversions` makes them all; a browser's
test makes the one for scikit-learn (250 MB to fetch) in any run.
"""

import os
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dashboard.conversions.conversion import LOCKS
from dashboard.environments.locks import read_lock
from dashboard.environments.making import environment, is_ready
from tests.support.exported_models import FOLDER as EXPORTED
from tests.support.model_factory import helper, onnx_bytes
from tests.support.serving_process import ROOT

ENVIRONMENTS = Path(os.environ.get("CONVERSION_ENVIRONMENTS") or ROOT / ".cache" / "environments")
MAY_MAKE = bool(os.environ.get("MAKE_ENVIRONMENTS"))
MAKERS = {"tabular": "tabular.py", "torch": "torch_models.py", "keras": "keras_models.py"}


@dataclass(frozen=True)
class Artefact:
    """A source, the recipe for it, and the environment that makes the source; "" for a file of tests/exported_models.

    words: in the refusal, if the recipe must refuse it. warns: words in a warning.
    """

    name: str
    recipe: str
    made_in: str = "tabular"
    options: dict[str, Any] = field(default_factory=dict)
    words: str = ""
    warns: str = ""
    source: str = ""


def _of(recipe: str, made_in: str, *names: str) -> list[Artefact]:
    return [Artefact(name, recipe, made_in) for name in names]


SHAPES = {"tokens": {"shape": [-1], "datatype": "INT64", "below": 50}, "age": {"shape": [1]}}
CONVERTED = [
    *_of(
        "scikit_learn",
        "tabular",
        "forest",
        "scaled_svm",
        "linear_svm",
        "boosted_regressor",
        "histogram_boosting",
        "grid_search",
    ),
    *_of("scikit_learn", "tabular", "clusters", "components", "outliers", "text", "ordinal_forest", "skops"),
    *_of("scikit_learn", "tabular", "pipeline_of_xgboost", "pipeline_of_lightgbm", "xgboost_pickle", "lightgbm_pickle"),
    Artefact("columns", "scikit_learn", warns="imputer of texts is left out"),
    Artefact("older_version", "scikit_learn", warns="scikit-learn 1.5.2 wrote the file, and 1.9.1 reads it"),
    Artefact("forest_fp64", "scikit_learn", options={"datatype": "FP64"}, source="forest"),
    *_of("scikit_learn", "", "sklearn_pickle", "sklearn_joblib"),
    *_of("xgboost_model", "tabular", "xgboost_binary", "xgboost_regressor", "xgboost_ranker"),
    *_of("xgboost_model", "", "xgboost_json", "xgboost_ubj"),
    *_of("lightgbm_model", "tabular", "lightgbm_binary", "lightgbm_regressor", "lightgbm_ranker"),
    *_of("lightgbm_model", "", "lightgbm_text"),
    *_of("catboost_model", "tabular", "catboost_binary", "catboost_regressor"),
    *_of("catboost_model", "", "catboost_cbm"),
    *_of("mlflow_model", "tabular", "mlflow_sklearn", "mlflow_xgboost", "mlflow_lightgbm", "mlflow_catboost"),
    *_of("mlflow_model", "torch", "mlflow_pytorch", "mlflow_transformers"),
    *_of("mlflow_model", "keras", "mlflow_keras"),
    *_of("torch_module", "torch", "state_dict", "safetensors", "images", "whole_module"),
    Artefact(
        "checkpoint_with_arguments",
        "torch_module",
        "torch",
        {"arguments": {"hidden": 32}},
        source="checkpoint_of_arguments",
    ),
    Artefact("two_inputs", "torch_module", "torch", {"inputs": SHAPES}),
    Artefact("images_pt2", "torch_module", "torch", {"format": "pt2"}, source="images"),
    Artefact(
        "images_traced", "torch_module", "torch", {"tracing": True}, warns="the model was traced", source="images"
    ),
    *_of("torchscript", "torch", "torchscript"),
    Artefact("torchscript_pt2", "torchscript", "torch", {"format": "pt2"}, source="torchscript"),
    *_of(
        "huggingface",
        "torch",
        "hf_bert",
        "hf_distilbert",
        "hf_roberta",
        "hf_tokens",
        "hf_reranker",
        "hf_embeddings",
        "hf_vit",
    ),
    *_of("huggingface", "torch", "hf_resnet", "hf_swin", "hf_xlm_roberta", "hf_deberta", "hf_albert", "hf_modernbert"),
    Artefact("onnx_wide", "onnx_int8", "torch"),
    Artefact("hf_mpnet", "huggingface", "torch", warns="does not say how tokens become one embedding"),
    Artefact("hf_mpnet_cls", "huggingface", "torch", {"pooling": "cls"}, source="hf_mpnet"),
    *_of("keras_model", "", "keras_h5", "keras_keras"),
    *_of("keras_model", "keras", "keras_two_inputs", "keras_lstm"),
    *_of("saved_model", "keras", "saved_model"),
    *[
        Artefact(f"{name}_int8", "onnx_int8", "", warns="not smaller", source=name)
        for name in ("torch_script_opset17", "hf_bert", "torch_lstm")
    ],
    *[Artefact(f"{name}_fp16", "onnx_fp16", "", source=name) for name in ("torch_script_opset17", "torch_dynamo")],
    Artefact("hf_vit_fp16", "onnx_fp16", "", {"inputs": {"pixel_values": {"shape": [2, 3, 8, 8]}}}, source="hf_vit"),
]
REFUSED = [
    Artefact("skops_code", "scikit_learn", words="the file has types that are not trusted: numpy.save"),
    Artefact("not_fitted", "scikit_learn", words="is not fitted: fit it, then save it anew"),
    Artefact("not_an_estimator", "scikit_learn", words="a dict of 1 entries, with 0 estimators"),
    Artefact(
        "unknown_estimator", "scikit_learn", words="cannot answer sample rows: Input X contains NaN: add examples.csv"
    ),
    Artefact(
        "unknown_module", "scikit_learn", words="needs the Python module 'secretlib', which its environment lacks"
    ),
    Artefact(
        "class_of_a_program", "scikit_learn", words="needs 'Own', a class or function that only its own program had"
    ),
    Artefact(
        "own_function", "scikit_learn", words="skl2onnx cannot convert the model: FunctionTransformer is not supported"
    ),
    Artefact("no_prediction", "scikit_learn", words="cannot answer rows that it was not trained with"),
    Artefact("two_targets", "scikit_learn", words="several targets with different numbers of classes"),
    Artefact("broken", "scikit_learn", words="the pickle is damaged"),
    Artefact("xgboost_categories", "xgboost_model", words="categorical features"),
    Artefact("xgboost_linear", "xgboost_model", words="gblinear"),
    Artefact("catboost_categories", "catboost_model", words="features that are categories"),
    Artefact("catboost_true_and_false", "catboost_model", words="train anew with 0 and 1"),
    Artefact("mlflow_function", "mlflow_model", words="no flavour that is converted; it has python_function"),
    Artefact("branch", "torch_module", "torch", words="at line 11 of net.py, `if rows.sum() > 0:`"),
    Artefact(
        "branch_traced",
        "torch_module",
        "torch",
        {"tracing": True},
        "write the branches without Python's if",
        source="branch",
    ),
    Artefact("fixed_batch", "torch_module", "torch", words="does not take batches of any size"),
    Artefact(
        "fixed_traced",
        "torch_module",
        "torch",
        {"tracing": True},
        "takes batches of 3 rows alone",
        source="fixed_batch",
    ),
    Artefact("two_inputs_unknown", "torch_module", "torch", words="forward takes tokens, age", source="two_inputs"),
    Artefact("checkpoint_of_arguments", "torch_module", "torch", words="3 have another shape, such as layers.0.weight"),
    Artefact(
        "opset_of_the_future", "torch_module", "torch", {"opset": 99}, "runs models up to opset", source="state_dict"
    ),
    Artefact(
        "no_such_class", "torch_module", "torch", {"class": "Other"}, "no torch.nn.Module 'Other'", source="state_dict"
    ),
    Artefact("hf_generation", "huggingface", "torch", words="GPT2LMHeadModel is not converted"),
    Artefact("hf_own_code", "huggingface", "torch", words="needs code of its own"),
    Artefact("keras_lambda", "keras_model", "keras", words="a Lambda layer, whose code is not run"),
    Artefact(
        "no_such_signature",
        "saved_model",
        "keras",
        {"signature": "other"},
        "no signature 'other'",
        source="saved_model",
    ),
    Artefact("sklearn_forest", "onnx_int8", "", words="no weights of a matrix or convolution"),
]


def has_environment(name: str) -> bool:
    return MAY_MAKE or is_ready(read_lock(LOCKS / f"{name}.txt"), ENVIRONMENTS)


@cache
def sources_of(made_in: str, folder: Path) -> Path:
    """Run a maker in its environment, once. Return the folder of its artefacts."""
    made = folder / made_in
    with environment(read_lock(LOCKS / f"{made_in}.txt"), ENVIRONMENTS, lambda percent, step: None) as one:
        program = Path(__file__).parent / "makers" / MAKERS[made_in]
        subprocess.run(
            [one.python, "-W", "ignore", program, made], check=True, env=one.variables() | {"OMP_NUM_THREADS": "2"}
        )
    return made


def source_of(artefact: Artefact, folder: Path) -> Path:
    name = artefact.source or artefact.name
    return sources_of(artefact.made_in, folder) / name if artefact.made_in else EXPORTED / name / "files"


def dense_bytes(scale: float = 1.0) -> bytes:
    """An ONNX model y = x W. Weights above 65,504 are none in FP16."""
    weights = {"w": scale * np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return onnx_bytes([node], [("x", "FP32", ["rows", 4])], [("y", "FP32", ["rows", 8])], weights=weights)
