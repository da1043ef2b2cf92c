"""XGBoost -> ONNX: a booster in its own JSON or UBJ format, or an estimator in a pickle."""

import json
from typing import Any

from recipe import Refused, Work, describe, main, opset, splits_to_samples, tidy

PACKAGES = "xgboost onnxmltools onnx numpy"


def convert(work: Work) -> None:
    """Convert the booster's file."""
    import xgboost

    booster = xgboost.Booster()
    path = work.file(".json", ".ubj", ".xgb", ".bst", ".model")
    try:
        booster.load_model(path)
    except xgboost.core.XGBoostError as error:
        said = " ".join(str(error).partition("Stack trace:")[0].rpartition(".cc:")[2].split())[:200]
        raise Refused(f"XGBoost cannot read {path.name} ({said})", "upload it whole, or save the model anew") from error
    convert_model(work, booster)


def _estimator(booster: Any) -> Any:
    """Return a booster as the estimator of its objective. A ranker answers as a regressor: with the sum of its leaves."""
    import xgboost

    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
    booster.set_attr(scikit_learn=None)  # the kind of the estimator that saved it
    model: Any = xgboost.XGBClassifier() if objective.startswith(("binary:", "multi:")) else xgboost.XGBRegressor()
    model.load_model(booster.save_raw("ubj"))
    return model


def convert_model(work: Work, model: Any) -> None:
    """Convert a booster or an estimator of the package xgboost."""
    from onnxmltools import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType
    from xgboost import Booster, XGBRanker

    if isinstance(model, Booster | XGBRanker):
        model = _estimator(model if isinstance(model, Booster) else model.get_booster())
    booster = model.get_booster()
    trained = json.loads(booster.save_config())["learner"]["learner_train_param"]["booster"]
    if trained == "gblinear":
        raise Refused("the booster is gblinear, of which onnxmltools converts nothing", "train it as gbtree")
    if "c" in (booster.feature_types or []):
        raise Refused(
            "the booster has categorical features, which ONNX's trees do not have",
            "encode them in numbers, train without enable_categorical, and save the model anew",
        )
    names, count = booster.feature_names, booster.num_features()
    booster.feature_names = booster.feature_types = None
    splits = booster.trees_to_dataframe()
    split = splits[splits["Feature"] != "Leaf"]
    features = split["Feature"].str[1:].astype(int).to_numpy()
    rows = splits_to_samples(work, count, features, split["Split"].to_numpy())
    made = convert_xgboost(
        model, initial_types=[("features", FloatTensorType([None, count]))], target_opset=opset(work, 15, 9)
    )
    path = work.path("model.onnx")
    path.write_bytes(made.SerializeToString())
    tidy(path)
    describe(work, path)
    outputs = [one["name"] for one in work.notes["outputs"]]
    answers = [model.predict(rows)]
    if hasattr(model, "predict_proba"):
        answers.append(model.predict_proba(rows))
        work.note(scores=[outputs[1]], class_names={outputs[1]: [str(one) for one in model.classes_]})
    work.write({"features": rows}, dict(zip(outputs, answers, strict=False)))
    work.note(features=names or [])


if __name__ == "__main__":
    main(convert, PACKAGES)
