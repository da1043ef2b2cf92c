"""Writes artefacts of Keras and TensorFlow, each in a folder: `python keras_models.py FOLDER`."""

import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras


def folder(name: str) -> Path:
    path = Path(sys.argv[1]) / name
    path.mkdir(parents=True)
    return path


def main() -> None:
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 1), name="image")
    age = keras.Input((1,), name="age")
    hidden = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, activation="relu")(image))
    kind = keras.layers.Dense(3, activation="softmax", name="kind")(keras.layers.Concatenate()([hidden, age]))
    two = keras.Model([image, age], kind)
    two.save(folder("keras_two_inputs") / "model.keras")
    two.export(folder("saved_model"), verbose=False)
    layers = [keras.Input((None,), dtype="int32", name="tokens"), keras.layers.Embedding(20, 4), keras.layers.LSTM(4)]
    keras.Sequential([*layers, keras.layers.Dense(1)]).save(folder("keras_lstm") / "model.keras")
    keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2)]).save(
        folder("keras_lambda") / "model.keras"
    )
    path = folder("mlflow_keras")
    (path / "data").mkdir()
    keras.Sequential([keras.Input((4,), name="rows"), keras.layers.Dense(2)]).save(path / "data" / "model.keras")
    flavours = {
        "python_function": {},
        "tensorflow": {"data": "data", "model_type": "keras", "keras_version": keras.__version__},
    }
    (path / "MLmodel").write_text(json.dumps({"flavors": flavours}))


if __name__ == "__main__":
    main()
