"""CatBoost -> ONNX: a model in CatBoost's own format, or an estimator in a pickle. CatBoost writes the ONNX itself."""

from typing import Any

import numpy as np
from recipe import Refused, Work, describe, main, splits_to_samples, tidy

PACKAGES = "catboost onnx numpy"


def convert(work: Work) -> None:
    """Convert the .cbm file. The classes in it tell whether it classifies."""
    import catboost

    path = str(work.file(".cbm"))
    model = catboost.CatBoost().load_model(path)
    loss = str(model.get_all_params().get("loss_function", ""))
    if len(model.classes_) > 0 or loss in ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll"):
        model = catboost.CatBoostClassifier().load_model(path)
    else:
        model = catboost.CatBoostRegressor().load_model(path)
    convert_model(work, model)


def convert_model(work: Work, model: Any) -> None:
    """Convert an estimator of the package catboost."""
    if model.get_cat_feature_indices() or model.get_text_feature_indices() or model.get_embedding_feature_indices():
        raise Refused(
            "the model has features that are categories, texts or embeddings, which CatBoost does not write as ONNX",
            "encode them in numbers and train anew, or write a model.py that loads the .cbm file, and publish both",
        )
    if any(str(one) in ("True", "False") for one in getattr(model, "classes_", ())):
        raise Refused(
            "the classes are True and False, which CatBoost does not write as ONNX", "train anew with 0 and 1"
        )
    names, count = list(model.feature_names_ or []), len(model.feature_names_)
    path = work.path("model.onnx")
    model.save_model(str(path), format="onnx")
    tidy(path)
    describe(work, path)
    # Trees are symmetric: a border stands for the split of a whole level.
    features, values = [], []
    borders = model.get_borders()
    for at, own in borders.items():
        features += [int(at)] * len(own)
        values += list(own)
    rows = splits_to_samples(work, count, np.array(features, int), np.array(values, float))
    outputs = [one["name"] for one in work.notes["outputs"]]
    if hasattr(model, "predict_proba"):
        found = [np.asarray(model.predict(rows)).reshape(-1), model.predict_proba(rows)]
        work.note(scores=[outputs[1]], class_names={outputs[1]: [str(one) for one in model.classes_]})
    else:
        found = [np.asarray(model.predict(rows)).reshape(len(rows), -1)]
    work.write({"features": rows}, dict(zip(outputs, found, strict=True)))
    work.note(features=[name for name in names if not name.isdigit()])


if __name__ == "__main__":
    main(convert, PACKAGES)
