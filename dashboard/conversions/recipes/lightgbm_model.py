"""LightGBM -> ONNX: a booster as LightGBM's own text, or an estimator in a pickle."""

import re
from typing import Any

import numpy as np
from recipe import Refused, Work, describe, main, opset, splits_to_samples, tidy

PACKAGES = "lightgbm onnxmltools onnx numpy"


def convert(work: Work) -> None:
    """Convert the booster's text file."""
    import lightgbm

    convert_model(work, lightgbm.Booster(model_file=str(work.file(".txt", ".lgb", ".lgbm", ".model"))))


def convert_model(work: Work, model: Any) -> None:
    """Convert a booster or an estimator of the package lightgbm."""
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    booster = getattr(model, "booster_", model)
    text = booster.model_to_string()
    if re.search(r"^num_cat=[1-9]", text, re.MULTILINE):
        raise Refused(
            "the booster has categorical features, which ONNX's trees do not have",
            "encode them in numbers, train without categorical_feature, and save the model anew",
        )
    count = booster.num_feature()
    features, values = _splits(text)
    rows = splits_to_samples(work, count, features, values)
    types = [("features", FloatTensorType([None, count]))]
    made = convert_lightgbm(model, initial_types=types, target_opset=opset(work, 15, 9), zipmap=False)
    path = work.path("model.onnx")
    path.write_bytes(made.SerializeToString())
    tidy(path)
    describe(work, path)
    outputs = [one["name"] for one in work.notes["outputs"]]
    if len(outputs) == 1:
        found = [model.predict(rows).reshape(-1, 1)]
    else:
        scores = model.predict_proba(rows) if hasattr(model, "predict_proba") else booster.predict(rows)
        scores = scores if scores.ndim == 2 else np.stack([1 - scores, scores], 1)
        classes = getattr(model, "classes_", np.arange(scores.shape[1]))
        found = [classes[scores.argmax(1)], scores]
        work.note(scores=[outputs[1]], class_names={outputs[1]: [str(one) for one in classes]})
    work.write({"features": rows}, dict(zip(outputs, found, strict=True)))
    work.note(features=[name for name in booster.feature_name() if not re.fullmatch(r"Column_\d+", name)])


def _splits(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the features and thresholds of all splits."""
    found = {
        key: " ".join(re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)).split()
        for key in ("split_feature", "threshold")
    }
    return np.array(found["split_feature"], int), np.array(found["threshold"], float)


if __name__ == "__main__":
    main(convert, PACKAGES)
