"""scikit-learn -> ONNX: an estimator or pipeline in a pickle, joblib or skops file, with numbers, texts and categories."""

import copy
import pickle
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from recipe import ROWS, Refused, Work, describe, example_rows, main, opset, texts, tidy

PACKAGES = "scikit-learn skl2onnx onnx onnxmltools xgboost lightgbm catboost skops joblib numpy"
FALLBACK = "write a model.py that loads the file, and publish both"
NUMBER, CATEGORY, TEXT = "number", "category", "text"
# Classes in a skops file, beside those that skops trusts itself.
_TRUSTED = {
    *(f"xgboost.{name}" for name in ("core.Booster", "sklearn.XGBClassifier", "sklearn.XGBRegressor")),
    *(f"lightgbm.{name}" for name in ("basic.Booster", "sklearn.LGBMClassifier", "sklearn.LGBMRegressor")),
    *("collections.OrderedDict", "sklearn.tree._tree.Tree"),
}
_TRUSTED_ROOMS = (
    "sklearn._loss.",
    "sklearn.ensemble._hist_gradient_boosting.",
    "sklearn.neighbors._",
    "sklearn.metrics._dist_",
)
_PICKLES = (".pkl", ".pickle", ".joblib", ".sav", ".dill", ".cloudpickle", ".skops")


@dataclass
class Column:
    """A column that the estimator reads. values: the categories, or the words of its texts. centre, spread: of its numbers."""

    name: str
    kind: str = NUMBER
    values: list[Any] = field(default_factory=list)
    centre: float = 0.0
    spread: float = 1.0

    def samples(self, work: Work) -> np.ndarray:
        if self.kind == TEXT:
            return texts(ROWS, self.values or ["some", "words"], work.random)
        if self.kind == CATEGORY:
            return work.random.choice(np.array(self.values, object), ROWS)
        return self.centre + self.spread * work.random.standard_normal(ROWS)


def convert(work: Work) -> None:
    """Convert the pickle of the source. An estimator of XGBoost, LightGBM or CatBoost goes the way of its own recipe."""
    model = load(work, work.file(*_PICKLES))
    convert_estimator(work, model)


def convert_estimator(work: Work, model: Any) -> None:
    package = type(model).__module__.partition(".")[0]
    if package in ("xgboost", "lightgbm", "catboost"):
        import importlib

        importlib.import_module(f"{package}_model").convert_model(work, model)
        return
    if not hasattr(model, "get_params"):
        raise Refused(f"the file has an object of {_class(model)}, which is no estimator of scikit-learn", FALLBACK)
    columns = columns_of(model)
    kind = np.float64 if work.options.get("datatype") == "FP64" else np.float32
    inputs, table = samples(work, columns, kind)
    try:
        found = answers(model, table)
    except (ValueError, TypeError) as error:
        words = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise Refused(
            f"the model cannot answer sample rows: {words[:300]}", "add examples.csv with rows that it can answer"
        ) from error
    path = work.path("model.onnx")
    path.write_bytes(to_onnx(work, model, inputs))
    tidy(path)
    describe(work, path)
    names = [one["name"] for one in work.notes["outputs"]]
    work.write(inputs, dict(zip(names, found, strict=False)))
    note_classes(work, model, names)


# -- the file ----------------------------------------------------------------------------------------------------------
def load(work: Work, path: Path) -> Any:
    """Load the estimator. What its package says of another version becomes a warning."""
    sys.path.insert(0, str(work.source))  # modules that come with the file
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = _skops(path) if path.suffix == ".skops" else _pickle(path)
    for one in said:
        if type(one.message).__name__ == "InconsistentVersionWarning":
            made = getattr(one.message, "original_sklearn_version", "another version")
            current = getattr(one.message, "current_sklearn_version", "the installed version")
            work.warn(
                f"scikit-learn {made} wrote the file, and {current} reads it, whose answers may differ from the first's"
            )
    if isinstance(model, dict):
        found = [value for value in model.values() if hasattr(value, "predict")]
        if len(found) != 1:
            raise Refused(
                f"the file has a dict of {len(model)} entries, with {len(found)} estimators", "save the estimator alone"
            )
        work.warn("the file has a dict, and its only estimator was converted: the other entries are left out")
        return found[0]
    return model


def _pickle(path: Path) -> Any:
    import joblib

    try:
        return joblib.load(path)  # reads plain pickles, too
    except (pickle.UnpicklingError, EOFError) as error:
        said = f" ({error})" if str(error) else ", or cut off"
        raise Refused(f"the pickle is damaged{said}", "save the model anew, and upload the whole file") from error


def _skops(path: Path) -> Any:
    """Load a skops file if skops trusts all of its types, so that no code of the file's choice runs."""
    import skops.io

    unknown = skops.io.get_untrusted_types(file=path)
    if foreign := sorted(name for name in {*unknown} - _TRUSTED if not name.startswith(_TRUSTED_ROOMS)):
        raise Refused(f"the file has types that are not trusted: {', '.join(foreign)}", "save the model without them")
    return skops.io.load(path, trusted=unknown)


# -- its columns -------------------------------------------------------------------------------------------------------
def columns_of(model: Any) -> list[Column]:
    """Return the columns that an estimator reads, in its order. One column of texts has the name "text"."""
    vectorizer = next(
        (step for step in heads(model) if hasattr(step, "vocabulary_") or hasattr(step, "ngram_range")), None
    )
    transformer = next((step for step in heads(model) if hasattr(step, "transformers_")), None)
    if vectorizer is not None and transformer is None:
        return [Column("text", TEXT, words_of(vectorizer))]
    count = next((step.n_features_in_ for step in heads(model) if hasattr(step, "n_features_in_")), 0)
    if not count:
        raise Refused(f"{_class(model)} is not fitted", "fit it, then save it anew")
    names = next((list(step.feature_names_in_) for step in heads(model) if hasattr(step, "feature_names_in_")), [])
    columns = [Column(str(names[at]) if names else f"column_{at}") for at in range(count)]
    if transformer is not None:
        place = {name: at for at, name in enumerate(names)}
        for _, part, chosen in transformer.transformers_:
            if part not in ("drop", "passthrough"):
                indexes = _indexes(chosen, place, count)
                fit(part, [columns[at] for at in indexes])
    else:
        fit(model, columns)
    return columns


def _indexes(chosen: Any, place: dict[str, int], count: int) -> list[int]:
    if isinstance(chosen, slice):
        return list(range(count))[chosen]
    chosen = [chosen] if isinstance(chosen, (str, int)) else list(chosen)
    if chosen and isinstance(chosen[0], (bool, np.bool_)):
        return [at for at, one in enumerate(chosen) if one]
    return [place[one] if isinstance(one, str) else int(one) for one in chosen]


def heads(model: Any) -> Iterator[Any]:
    """Yield an estimator, and those inside it that read its own input, the outermost first."""
    yield model
    if hasattr(model, "steps"):
        yield from heads(model.steps[0][1])
    elif hasattr(model, "best_estimator_"):
        yield from heads(model.best_estimator_)
    elif hasattr(model, "calibrated_classifiers_"):
        yield from heads(model.calibrated_classifiers_[0].estimator)


def steps_of(model: Any) -> list[Any]:
    """Return the steps of a pipeline within pipelines; of anything else, itself."""
    if hasattr(model, "best_estimator_"):
        return steps_of(model.best_estimator_)
    return [inner for _, step in model.steps for inner in steps_of(step)] if hasattr(model, "steps") else [model]


def fit(part: Any, columns: list[Column]) -> None:
    """Give columns the kinds and values with which a part of the model was trained."""
    for step in steps_of(part):
        if hasattr(step, "vocabulary_") or hasattr(step, "ngram_range"):
            for column in columns:
                column.kind, column.values = TEXT, words_of(step)
        elif hasattr(step, "categories_") and len(step.categories_) == len(columns):
            for column, values in zip(columns, step.categories_, strict=True):
                if values.dtype.kind in "OUS":
                    known = [value for value in values if isinstance(value, str)]
                    column.kind, column.values = CATEGORY, known
                else:
                    column.centre, column.spread = float(np.mean(values)), float(np.std(values)) or 1.0
        elif hasattr(step, "data_min_"):
            _spread(columns, (step.data_max_ + step.data_min_) / 2, (step.data_max_ - step.data_min_) / 4)
        elif getattr(step, "scale_", None) is not None and getattr(step, "mean_", None) is not None:
            _spread(columns, step.mean_, step.scale_)
        elif (found := thresholds(step)) is not None:
            _spread(columns, *found)
        else:
            continue
        return


def _spread(columns: list[Column], centres: Any, spreads: Any) -> None:
    if len(centres) == len(columns):
        for column, centre, spread in zip(columns, centres, spreads, strict=True):
            if np.isfinite(centre) and np.isfinite(spread):
                column.centre, column.spread = float(centre), float(spread) or 1.0


def thresholds(model: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return centre and spread of each feature's thresholds in a tree or forest, or None."""
    trees = [one.tree_ for one in np.ravel(getattr(model, "estimators_", [model])) if hasattr(one, "tree_")]
    if not trees:
        return None
    count = trees[0].n_features
    features = np.concatenate([tree.feature for tree in trees])
    values = np.concatenate([tree.threshold for tree in trees])
    own = [values[features == at] for at in range(count)]
    return np.array([np.mean(one) if len(one) else 0.0 for one in own]), np.array(
        [np.std(one) if len(one) else 1.0 for one in own]
    )


def words_of(vectorizer: Any) -> list[str]:
    words = [word for word in sorted(getattr(vectorizer, "vocabulary_", {})) if " " not in word]
    return words[:1000]


def samples(work: Work, columns: list[Column], kind: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Return the sample inputs of the ONNX model, and the same rows as the estimator takes them."""
    values = {column.name: column.samples(work) for column in columns}
    rows = example_rows(work)
    if rows is not None and len(rows.columns) >= len(columns):
        for at, column in enumerate(columns):
            chosen = rows[column.name] if column.name in rows else rows.iloc[:, at]
            values[column.name] = chosen.to_numpy(float if column.kind == NUMBER else object)
    if [column.kind for column in columns] == [TEXT] and columns[0].name == "text":
        return {"text": values["text"].reshape(-1, 1)}, values["text"].tolist()
    named = not columns[0].name.startswith("column_")
    if all(column.kind == NUMBER for column in columns):
        matrix = np.stack(list(values.values()), 1).astype(kind)
        return {"features": matrix}, _table(matrix, columns) if named else matrix.astype(np.float64)
    # A number goes through the ONNX model's datatype first, so that both models get the same number.
    inputs = {
        column.name: (values[column.name] if column.kind != NUMBER else values[column.name].astype(kind)).reshape(-1, 1)
        for column in columns
    }
    return inputs, _table(np.concatenate([one.astype(object) for one in inputs.values()], 1), columns, named=named)


def _table(matrix: np.ndarray, columns: list[Column], named: bool = True) -> Any:
    import pandas

    if not named:
        return matrix
    table = pandas.DataFrame(matrix, columns=[column.name for column in columns])
    return table.astype({column.name: np.float64 for column in columns if column.kind == NUMBER})


# -- ONNX --------------------------------------------------------------------------------------------------------------
def to_onnx(work: Work, model: Any, inputs: dict[str, np.ndarray]) -> bytes:
    import skl2onnx
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, StringTensorType

    register_boosters(model)
    tensors = {"O": StringTensorType, "d": DoubleTensorType, "f": FloatTensorType}
    types = [(name, tensors[array.dtype.char]([None, array.shape[1]])) for name, array in inputs.items()]
    opsets = {"": opset(work, skl2onnx.get_latest_tested_opset_version(), 9), "ai.onnx.ml": 3}
    model = without_text_imputers(work, model)
    for options in _options(model):
        chosen = {id(model): options} if options else None
        try:
            made = skl2onnx.to_onnx(model, initial_types=types, options=chosen, target_opset=opsets)
        except NameError:  # the classifier does not know one of the options
            continue
        except Exception as error:
            words = str(error).partition("\n")[0]
            named = words.partition("<class '")[2].partition("'")[0]
            lacks = "Unable to find" in words and named
            said = f"has no converter for {named}" if lacks else f"cannot convert the model: {words[:300].rstrip('.')}"
            raise Refused(f"skl2onnx {said}", f"save the model without that step, or {FALLBACK}") from error
        return bytes(made.SerializeToString())
    raise AssertionError("a model can be converted without options")


def _options(model: Any) -> list[dict[str, bool]]:
    """Return options to try, the best first: scores as a tensor, and those of the decision where there are no probabilities."""
    if not classifies(model):
        return [{}]
    if hasattr(model, "predict_proba"):
        return [{"zipmap": False}, {}]
    return [{"zipmap": False, "raw_scores": True}, {"raw_scores": True}, {"zipmap": False}, {}]


def without_text_imputers(work: Work, model: Any) -> Any:
    """Return the model without imputers of texts, which skl2onnx does not convert: a text of a request is never missing."""
    from sklearn.impute import SimpleImputer

    def cut(part: Any) -> None:
        if hasattr(part, "steps"):
            kept = [
                (name, step)
                for name, step in part.steps
                if not (isinstance(step, SimpleImputer) and step.statistics_.dtype.kind in "OUS")
            ]
            if len(kept) < len(part.steps) and kept:
                work.warn("the imputer of texts is left out, because a text of a request is never missing")
                part.steps = kept
            for _, step in part.steps:
                cut(step)
        for _, inner, _ in getattr(part, "transformers_", []):
            cut(inner)

    copied = copy.deepcopy(model)
    cut(copied)
    return copied


def register_boosters(model: Any) -> None:
    """Let pipelines have estimators of XGBoost and LightGBM."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes,
        calculate_linear_regressor_output_shapes,
    )

    for step in steps_of(model):
        package, name = type(step).__module__.partition(".")[0], type(step).__name__
        if package == "xgboost":
            from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost as converter
        elif package == "lightgbm":
            from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm as converter
        else:
            continue
        is_classifier = classifies(step)
        shapes = (
            calculate_linear_classifier_output_shapes if is_classifier else calculate_linear_regressor_output_shapes
        )
        options = {"nocl": [True, False], "zipmap": [True, False, "columns"]} if is_classifier else None
        update_registered_converter(type(step), f"{package}{name}", shapes, converter, options=options)


def classifies(model: Any) -> bool:
    from sklearn.base import is_classifier

    return bool(is_classifier(model))


# -- answers -----------------------------------------------------------------------------------------------------------
def answers(model: Any, table: Any) -> list[np.ndarray]:
    """Return the estimator's own answers, in the order of the outputs that skl2onnx writes."""
    if not hasattr(model, "predict") and not hasattr(model, "transform"):
        raise Refused(
            f"{_class(model)} cannot answer rows that it was not trained with", "use an estimator with predict"
        )
    if not hasattr(model, "predict"):
        return [_dense(model.transform(table))]
    found = [np.asarray(model.predict(table))]
    if hasattr(model, "predict_proba"):
        scores = model.predict_proba(table)
        if isinstance(scores, list) and len({one.shape for one in scores}) > 1:
            raise Refused(
                "the classifier has several targets with different numbers of classes", "train one for each target"
            )
        return [*found, np.stack(scores) if isinstance(scores, list) else scores]
    if classifies(model):
        scores = np.asarray(model.decision_function(table))
        return [*found, np.stack([-scores, scores], 1) if scores.ndim == 1 else scores]
    if hasattr(model, "decision_function"):
        return [*found, np.asarray(model.decision_function(table)).reshape(-1, 1)]
    if hasattr(model, "cluster_centers_") and hasattr(model, "transform"):
        return [*found, model.transform(table)]
    return found


def _dense(array: Any) -> np.ndarray:
    return np.asarray(array.todense() if hasattr(array, "todense") else array)


def note_classes(work: Work, model: Any, names: list[str]) -> None:
    """Report the names of the classes, and the output that has a score for each."""
    classes = getattr(model, "classes_", None)
    if classes is not None and len(names) > 1 and not isinstance(classes, list):
        work.note(scores=[names[1]], class_names={names[1]: [str(one) for one in classes]})


def _class(model: Any) -> str:
    return f"{type(model).__module__}.{type(model).__name__}"


if __name__ == "__main__":
    main(convert, PACKAGES)
