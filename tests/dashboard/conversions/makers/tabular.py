"""Writes artefacts of scikit-learn, XGBoost, LightGBM, CatBoost and MLflow, each in a folder: `python tabular.py FOLDER`."""

import json
import pickle
import sys
import types
from pathlib import Path

import joblib
import lightgbm
import numpy as np
import pandas
import sklearn
import skops.io
import xgboost
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

X, Y = load_iris(return_X_y=True)
SPECIES = np.array(["setosa", "versicolor", "virginica"])[Y]
TEXTS = np.array(["good and kind", "bad and cruel", "kind people", "cruel people", "so good", "so bad"])
MOODS = ["yes", "no", "yes", "no", "yes", "no"]
TABLE = pandas.DataFrame(
    {
        "colour": ["red", "green", "red", "blue"] * 12,
        "note": ["fast and cheap", "slow", "fast", "slow and dear"] * 12,
        "size": np.arange(48) * 3.5,
        "price": np.linspace(1, 900, 48),
    }
)
SOLD = [0, 1, 0, 1] * 12


class Other(LogisticRegression):
    """A class of a module that no environment has."""


class Own(LogisticRegression):
    """A class of this program alone."""


def folder(name: str) -> Path:
    path = Path(sys.argv[1]) / name
    path.mkdir(parents=True)
    return path


def dump(name: str, model: object, file: str = "model.pkl") -> Path:
    path = folder(name) / file
    joblib.dump(model, path) if file.endswith("joblib") else path.write_bytes(pickle.dumps(model))
    return path


def sklearn_models() -> None:
    dump("forest", RandomForestClassifier(20, random_state=0).fit(X, SPECIES))
    dump("scaled_svm", make_pipeline(StandardScaler(), SVC(probability=True, random_state=0)).fit(X, Y), "model.joblib")
    dump("linear_svm", LinearSVC().fit(X, Y == 1))
    dump("boosted_regressor", GradientBoostingRegressor(n_estimators=20).fit(X[:, :3], X[:, 3]))
    dump("histogram_boosting", HistGradientBoostingClassifier(max_iter=10).fit(X, Y))
    dump("grid_search", GridSearchCV(LogisticRegression(max_iter=1000), {"C": [0.1, 1]}, cv=2).fit(X, Y))
    dump("two_targets", RandomForestClassifier(5, random_state=0).fit(X, np.stack([Y, Y > 1], 1)))
    dump("clusters", KMeans(3, n_init=2, random_state=0).fit(X))
    dump("components", PCA(2).fit(X))
    dump("outliers", IsolationForest(n_estimators=10, random_state=0).fit(X))
    dump("text", make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, MOODS))
    encode = ColumnTransformer(
        [
            (
                "categories",
                make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")),
                ["colour"],
            ),
            ("texts", TfidfVectorizer(), "note"),
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["size", "price"]),
        ]
    )
    dump("columns", make_pipeline(encode, LogisticRegression()).fit(TABLE, SOLD))
    ordinal = ColumnTransformer(
        [("categories", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["colour"])],
        remainder="passthrough",
    )
    rest = TABLE.drop(columns="note")
    dump("ordinal_forest", make_pipeline(ordinal, RandomForestClassifier(5, random_state=0)).fit(rest, SOLD))
    dump("pipeline_of_xgboost", make_pipeline(StandardScaler(), xgboost.XGBClassifier(n_estimators=5)).fit(X, Y))
    dump(
        "pipeline_of_lightgbm",
        make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(n_estimators=5, verbose=-1)).fit(X, Y),
    )
    skops.io.dump(RandomForestClassifier(5, random_state=0).fit(X, Y), folder("skops") / "model.skops")
    older = pickle.dumps(LogisticRegression(max_iter=1000).fit(X, Y))
    (folder("older_version") / "model.pkl").write_bytes(older.replace(sklearn.__version__.encode(), b"1.5.2"))
    # refused
    saver = FunctionTransformer(np.save)
    skops.io.dump(make_pipeline(saver, LogisticRegression()), folder("skops_code") / "model.skops")
    sys.modules["secretlib"] = types.ModuleType("secretlib")
    Other.__module__ = "secretlib"
    vars(sys.modules["secretlib"])["Other"] = Other
    dump("unknown_module", Other().fit(X, Y))
    dump("class_of_a_program", Own().fit(X, Y))
    dump("not_fitted", LogisticRegression())
    dump("not_an_estimator", {"weights": [1, 2]})
    dump("unknown_estimator", make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()).fit(np.abs(X), Y))
    own = folder("own_function")
    (own / "model.pkl").write_bytes(
        pickle.dumps(make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()).fit(np.abs(X), Y))
    )
    pandas.DataFrame(X).to_csv(own / "examples.csv", index=False)
    dump("no_prediction", LocalOutlierFactor().fit(X))
    broken = folder("broken") / "model.pkl"
    broken.write_bytes(pickle.dumps(LogisticRegression().fit(X, Y))[:200])


def boosters() -> None:
    binary = xgboost.XGBClassifier(n_estimators=5, max_depth=3).fit(X, Y == 1)
    dump("xgboost_pickle", binary)
    binary.save_model(folder("xgboost_binary") / "model.json")
    xgboost.XGBRegressor(n_estimators=5).fit(TABLE[["size"]], TABLE["price"]).save_model(
        folder("xgboost_regressor") / "model.ubj"
    )
    classes = xgboost.XGBClassifier(n_estimators=2, enable_categorical=True)
    classes.fit(TABLE[["colour", "size"]].astype({"colour": "category"}), SOLD).save_model(
        folder("xgboost_categories") / "model.json"
    )
    xgboost.XGBRegressor(booster="gblinear").fit(X[:, :3], X[:, 3]).save_model(folder("xgboost_linear") / "model.json")
    groups = [30] * 5
    mixed = np.random.default_rng(0).permutation(150)
    xgboost.XGBRanker(n_estimators=3).fit(X[mixed], Y[mixed], group=groups).save_model(
        folder("xgboost_ranker") / "model.json"
    )
    ranker = lightgbm.LGBMRanker(n_estimators=3, verbose=-1).fit(X[mixed], Y[mixed], group=groups)
    ranker.booster_.save_model(folder("lightgbm_ranker") / "model.txt")
    dump("lightgbm_pickle", lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(X, SPECIES))
    regressor = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(TABLE[["size", "price"]], SOLD)
    regressor.booster_.save_model(folder("lightgbm_regressor") / "model.txt")
    lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(X, Y == 1).booster_.save_model(
        folder("lightgbm_binary") / "model.txt"
    )
    from catboost import CatBoostClassifier, CatBoostRegressor

    quiet = {"iterations": 5, "verbose": False, "allow_writing_files": False}
    CatBoostRegressor(**quiet).fit(X[:, :3], X[:, 3]).save_model(str(folder("catboost_regressor") / "model.cbm"))
    CatBoostClassifier(**quiet).fit(X, (Y == 1).astype(int)).save_model(str(folder("catboost_binary") / "model.cbm"))
    CatBoostClassifier(**quiet).fit(X, Y == 1).save_model(str(folder("catboost_true_and_false") / "model.cbm"))
    with_categories = CatBoostClassifier(**quiet).fit(TABLE[["colour", "size"]], SOLD, cat_features=["colour"])
    with_categories.save_model(str(folder("catboost_categories") / "model.cbm"))


def mlflow() -> None:
    """Write folders as MLflow does, with the parts that a conversion reads."""
    path = folder("mlflow_sklearn")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(
        pandas.DataFrame(X, columns=list("abcd")), SPECIES
    )
    (path / "model.pkl").write_bytes(pickle.dumps(model))
    inputs = [{"type": "double", "name": name, "required": True} for name in "abcd"]
    signature = {"inputs": json.dumps(inputs), "outputs": '[{"type": "string", "required": true}]'}
    example = {"columns": list("abcd"), "data": X[:2].tolist()}
    (path / "input_example.json").write_text(json.dumps(example))
    mlmodel(
        path,
        {"sklearn": {"pickled_model": "model.pkl", "serialization_format": "cloudpickle"}},
        signature,
        "input_example.json",
    )
    path = folder("mlflow_xgboost")
    xgboost.XGBClassifier(n_estimators=3).fit(X, Y).save_model(path / "model.xgb.json")
    (path / "model.xgb.json").rename(path / "model.json")
    mlmodel(path, {"xgboost": {"data": "model.json", "model_class": "xgboost.sklearn.XGBClassifier"}})
    path = folder("mlflow_lightgbm")
    lightgbm.LGBMRegressor(n_estimators=3, verbose=-1).fit(X[:, :3], X[:, 3]).booster_.save_model(path / "model.lgb")
    mlmodel(path, {"lightgbm": {"data": "model.lgb", "model_class": "lightgbm.basic.Booster"}})
    from catboost import CatBoostRegressor

    path = folder("mlflow_catboost")
    CatBoostRegressor(iterations=3, verbose=False, allow_writing_files=False).fit(X[:, :3], X[:, 3]).save_model(
        str(path / "model.cb")
    )
    mlmodel(path, {"catboost": {"data": "model.cb", "model_type": "CatBoostRegressor", "save_format": "cbm"}})
    path = folder("mlflow_function")
    (path / "python_model.pkl").write_bytes(pickle.dumps(len))
    mlmodel(path, {"python_function": {"python_model": "python_model.pkl", "loader_module": "mlflow.pyfunc.model"}})


def mlmodel(
    path: Path, flavors: dict[str, dict[str, str]], signature: dict[str, str] | None = None, example: str = ""
) -> None:
    """Write the file MLmodel; YAML reads JSON, too."""
    python = {"python_function": {"env": {"virtualenv": "python_env.yaml"}, "python_version": "3.11.7"}}
    content = {"flavors": python | flavors, "mlflow_version": "3.4.0", "model_uuid": "0" * 32}
    if signature:
        content["signature"] = signature
    if example:
        content["saved_input_example_info"] = {"artifact_path": example, "type": "dataframe", "pandas_orient": "split"}
    (path / "MLmodel").write_text(json.dumps(content))


if __name__ == "__main__":
    sklearn_models()
    boosters()
    mlflow()
