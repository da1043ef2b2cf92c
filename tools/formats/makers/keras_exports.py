"""Keras models, exported by tf2onnx and by Keras itself."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from pathlib import Path

import keras
import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from case import Case

TF2ONNX = "keras tf2onnx tensorflow-cpu"


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def perceptron() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3, activation="softmax")]
    return keras.Sequential([keras.Input((4,), name="rows"), *layers])


def convolution() -> keras.Model:
    keras.utils.set_random_seed(1)
    image = keras.Input((8, 8, 1), name="image")
    hidden = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, activation="relu")(image))
    return keras.Model(image, keras.layers.Dense(2, name="scores")(hidden))


def by_tf2onnx(model: keras.Model, opset: int) -> onnx.ModelProto:
    [tensor] = model.inputs
    signature = [tf.TensorSpec([None, *tensor.shape[1:]], tf.float32, name=tensor.name)]
    call = tf.function(lambda rows: model(rows, training=False), input_signature=signature)
    return tf2onnx.convert.from_function(call, input_signature=signature, opset=opset)[0]


def served(case: Case, model: keras.Model, rows: np.ndarray) -> None:
    """Write the expected answer of a model. The names of tensors are those that the exporter chose."""
    graph = onnx.load(next(case.files.glob("*.onnx"))).graph
    outputs = {graph.output[0].name: model(rows, training=False).numpy()}
    case.served({graph.input[0].name: rows}, outputs, tolerance=1e-4)


def main() -> None:
    model, rows = perceptron(), random(3, 4)
    for opset in (13, 18):
        case = Case(f"keras_tf2onnx_opset{opset}", f"a dense network by tf2onnx, opset {opset}", TF2ONNX)
        onnx.save(by_tf2onnx(model, opset), case.path("model.onnx"))
        served(case, model, rows)
    case = Case("keras_convolution", "a convolution over images [8, 8, 1] by tf2onnx", TF2ONNX)
    pictures = convolution()
    onnx.save(by_tf2onnx(pictures, 15), case.path("model.onnx"))
    served(case, pictures, random(2, 8, 8, 1))

    case = Case("keras_export", "Keras's own model.export(format='onnx')", TF2ONNX)
    model.export(case.path("model.onnx"), format="onnx", verbose=False)
    served(case, model, rows)

    case = Case("keras_h5", "model.save('model.h5')", "keras")
    model.save(case.path("model.h5"))
    case.refused("tf2onnx")
    case = Case("keras_keras", "model.save('model.keras')", "keras")
    model.save(case.path("model.keras"))
    case.refused("tf2onnx")

    case = Case("tflite", "TensorFlow Lite", "tensorflow-cpu")
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    Path(case.path("model.tflite")).write_bytes(converter.convert())
    case.refused("--tflite")


if __name__ == "__main__":
    main()
