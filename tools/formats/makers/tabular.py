"""scikit-learn, XGBoost, LightGBM and CatBoost models, written by their own exporters."""

import joblib
import lightgbm
import numpy as np
import onnx
import xgboost
from case import Case
from catboost import CatBoostClassifier, CatBoostRegressor
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType as SkFloat
from skl2onnx.common.data_types import StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

X, y = load_iris(return_X_y=True)
X = X.astype(np.float32)
SPECIES = np.array(["setosa", "versicolor", "virginica"])
ROWS = X[::40]
NUMBERS = ["0", "1", "2"]
SKLEARN = "scikit-learn skl2onnx"


def save(case: Case, model: onnx.ModelProto, name: str = "model.onnx") -> None:
    onnx.save(model, case.path(name))


def probabilities(model) -> dict[str, np.ndarray]:
    return {
        "output_label": model.predict(ROWS),
        "output_probability": model.predict_proba(ROWS).astype(np.float32),
    }


def sklearn_models() -> None:
    case = Case("sklearn_pipeline", "pipeline with a logistic regression, as exported by default", SKLEARN)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    save(case, to_onnx(model, X[:1]), "iris.onnx")
    case.served({"X": ROWS}, probabilities(model), classes={"output_probability": NUMBERS})

    case = Case("sklearn_forest", "random forest over classes with names, as exported by default", SKLEARN)
    model = RandomForestClassifier(5, max_depth=3, random_state=0).fit(X, SPECIES[y])
    save(case, to_onnx(model, X[:1]))
    case.served({"X": ROWS}, probabilities(model), classes={"output_probability": SPECIES.tolist()})

    case = Case("sklearn_zipmap_false", "gradient boosting with options={'zipmap': False}", SKLEARN)
    model = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(X, y)
    save(case, to_onnx(model, X[:1], options={"zipmap": False}))
    label, probability = probabilities(model).values()
    case.served({"X": ROWS}, {"label": label, "probabilities": probability})

    case = Case("sklearn_zipmap_columns", "logistic regression with options={'zipmap': 'columns'}", SKLEARN)
    model = LogisticRegression(max_iter=500).fit(X, y)
    save(case, to_onnx(model, X[:1], options={"zipmap": "columns"}))
    label, probability = probabilities(model).values()
    columns = {f"i{index}": probability[:, index] for index in range(3)}
    case.served({"X": ROWS}, {"output_label": label, **columns})

    case = Case("sklearn_regressor_opset9", "linear regression at opset 9", SKLEARN)
    features, target = load_diabetes(return_X_y=True)
    features = features.astype(np.float32)
    model = LinearRegression().fit(features, target)
    save(case, to_onnx(model, features[:1], target_opset={"": 9, "ai.onnx.ml": 1}))
    case.served(
        {"X": features[:3]}, {"variable": model.predict(features[:3]).reshape(-1, 1).astype(np.float32)}, tolerance=1e-4
    )

    case = Case("sklearn_double", "a support vector machine trained with numpy's FP64, as exported by default", SKLEARN)
    model = SVC(probability=True, random_state=0).fit(X.astype(np.float64), y)
    save(case, to_onnx(model, X[:1].astype(np.float64)))
    rows = ROWS.astype(np.float64)
    outputs = {"output_label": model.predict(rows), "output_probability": model.predict_proba(rows).astype(np.float32)}
    case.served({"X": rows}, outputs, classes={"output_probability": NUMBERS})

    columns_of_table()
    text_model()
    multi_output()


def columns_of_table() -> None:
    import pandas

    case = Case("sklearn_columns", "column transformer: text and number columns as separate inputs", SKLEARN)
    table = pandas.DataFrame(
        {
            "colour": ["red", "green", "red", "blue"] * 6,
            "size": np.arange(24, dtype=np.float32),
            "price": np.linspace(1, 9, 24, dtype=np.float32),
        }
    )
    encode = ColumnTransformer(
        [("text", OneHotEncoder(handle_unknown="ignore"), ["colour"]), ("numbers", StandardScaler(), ["size", "price"])]
    )
    model = make_pipeline(encode, LogisticRegression()).fit(table, [0, 1, 0, 1] * 6)
    types = [("colour", StringTensorType([None, 1])), ("size", SkFloat([None, 1])), ("price", SkFloat([None, 1]))]
    save(case, to_onnx(model, initial_types=types))
    rows = table.iloc[[0, 5, 10]]
    inputs = {name: rows[[name]].to_numpy() for name in table}
    outputs = {"output_label": model.predict(rows), "output_probability": model.predict_proba(rows).astype(np.float32)}
    case.served(inputs, outputs, classes={"output_probability": ["0", "1"]})


def text_model() -> None:
    case = Case("sklearn_text", "tf-idf and a logistic regression over sentences", SKLEARN)
    texts = np.array(["good and kind", "bad and cruel", "kind people", "cruel people", "so good", "so bad"])
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, ["yes", "no", "yes", "no", "yes", "no"])
    save(case, to_onnx(model, initial_types=[("text", StringTensorType([None, 1]))]))
    outputs = {
        "output_label": model.predict(texts[:2]),
        "output_probability": model.predict_proba(texts[:2]).astype(np.float32),
    }
    case.served({"text": texts[:2].reshape(-1, 1)}, outputs, classes={"output_probability": ["no", "yes"]})


def multi_output() -> None:
    case = Case(
        "sklearn_two_targets",
        "random forest with two targets, whose ZipMap ONNX Runtime does not run",
        SKLEARN,
    )
    model = RandomForestClassifier(3, max_depth=2, random_state=0).fit(X, np.stack([y, y > 1], 1))
    save(case, to_onnx(model, X[:1]))
    case.refused("zipmap")


def boosted() -> None:
    types = [("input", FloatTensorType([None, 4]))]

    case = Case("xgboost_classifier", "gradient-boosted classification into three classes", "xgboost onnxmltools")
    model = xgboost.XGBClassifier(n_estimators=3, max_depth=2).fit(X, y)
    save(case, convert_xgboost(model, initial_types=types))
    case.served(
        {"input": ROWS}, {"label": model.predict(ROWS).astype(np.int64), "probabilities": model.predict_proba(ROWS)}
    )
    for ending in ("json", "ubj"):
        case = Case(f"xgboost_{ending}", f"XGBoost's own file, .{ending}", "xgboost")
        model.save_model(case.path(f"model.{ending}"))
        case.refused("convert_xgboost")

    case = Case("xgboost_regressor", "gradient-boosted regression", "xgboost onnxmltools")
    model = xgboost.XGBRegressor(n_estimators=3, max_depth=2).fit(X[:, :3], X[:, 3])
    save(case, convert_xgboost(model, initial_types=[("input", FloatTensorType([None, 3]))]))
    case.served({"input": ROWS[:, :3]}, {"variable": model.predict(ROWS[:, :3]).reshape(-1, 1)})

    case = Case(
        "lightgbm_classifier",
        "gradient-boosted classification into three classes, as exported by default",
        "lightgbm onnxmltools",
    )
    model = lightgbm.LGBMClassifier(n_estimators=3, num_leaves=4, verbose=-1).fit(X, y)
    save(case, convert_lightgbm(model, initial_types=types))
    probability = model.predict_proba(ROWS).astype(np.float32)
    case.served(
        {"input": ROWS},
        {"label": model.predict(ROWS), "probabilities": probability},
        classes={"probabilities": NUMBERS},
    )
    case = Case("lightgbm_text", "LightGBM's own file", "lightgbm")
    model.booster_.save_model(case.path("model.txt"))
    case.refused("convert_lightgbm")

    case = Case("lightgbm_regressor", "gradient-boosted regression", "lightgbm onnxmltools")
    model = lightgbm.LGBMRegressor(n_estimators=3, num_leaves=4, verbose=-1).fit(X[:, :3], X[:, 3])
    save(case, convert_lightgbm(model, initial_types=[("input", FloatTensorType([None, 3]))]))
    case.served({"input": ROWS[:, :3]}, {"variable": model.predict(ROWS[:, :3]).reshape(-1, 1).astype(np.float32)})

    case = Case("catboost_classifier", "gradient-boosted classification into named classes", "catboost")
    model = CatBoostClassifier(iterations=3, depth=2, verbose=False, allow_writing_files=False).fit(X, SPECIES[y])
    model.save_model(case.path("model.onnx"), format="onnx")
    probability = model.predict_proba(ROWS).astype(np.float32)
    outputs = {"label": model.predict(ROWS).reshape(-1), "probabilities": probability}
    case.served({"features": ROWS}, outputs, classes={"probabilities": SPECIES.tolist()})
    case = Case("catboost_cbm", "CatBoost's own file", "catboost")
    model.save_model(case.path("model.cbm"))
    case.refused('format="onnx"')

    case = Case("catboost_regressor", "gradient-boosted regression", "catboost")
    model = CatBoostRegressor(iterations=3, depth=2, verbose=False, allow_writing_files=False).fit(X[:, :3], X[:, 3])
    model.save_model(case.path("model.onnx"), format="onnx")
    case.served(
        {"features": ROWS[:, :3]}, {"predictions": model.predict(ROWS[:, :3]).reshape(-1, 1).astype(np.float32)}
    )


def pickles() -> None:
    import pickle
    from pathlib import Path

    case = Case("sklearn_pickle", "a pickled estimator", "scikit-learn")
    Path(case.path("model.pkl")).write_bytes(pickle.dumps(LinearRegression().fit(X[:, :3], X[:, 3])))
    case.refused("skl2onnx")
    case = Case("sklearn_joblib", "an estimator saved with joblib", "scikit-learn joblib")
    joblib.dump(LinearRegression().fit(X[:, :3], X[:, 3]), case.path("model.joblib"), compress=3)
    case.refused("skl2onnx")


if __name__ == "__main__":
    sklearn_models()
    boosted()
    pickles()
