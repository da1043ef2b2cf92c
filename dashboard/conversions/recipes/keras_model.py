"""Keras -> ONNX: a .keras or .h5 file, by tf2onnx. Every dimension that Keras leaves open has any size."""

import os
import zipfile
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
from recipe import Refused, Work, describe, main, opset

PACKAGES = "keras tensorflow tensorflow-cpu tf2onnx onnx numpy"
BATCH = 8


def convert(work: Work) -> None:
    """Convert the Keras file of the source; for an MLflow folder, the one inside it."""
    import keras

    path = work.file(".keras", ".h5", ".hdf5")
    if path.suffix == ".keras" and not zipfile.is_zipfile(path):  # Keras would say that there is no such file
        raise Refused(f"{path.name} is damaged or cut off", "upload it whole, or save the model anew")
    try:
        model = keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        words = " ".join(str(error).split())
        if "lambda" in words.lower() or "safe_mode" in words:
            raise Refused(
                "the model has a Lambda layer, whose code is not run",
                "replace it by a layer of Keras, and save the model anew",
            ) from error
        if "Unknown layer" in words or "Could not locate class" in words:
            raise Refused(
                f"the model has a layer of its own that Keras does not know: {words[:200]}",
                "export the model where its layer is defined: model.export('model.onnx', format='onnx')",
            ) from error
        raise Refused(
            f"Keras cannot read the file: {words[:300]}", "save the model anew with model.save('model.keras')"
        ) from error
    write(work, model)


def write(work: Work, model: Any) -> None:
    """Write the model as ONNX, with samples and answers."""
    import onnx
    import tensorflow as tf
    import tf2onnx

    names = [tensor.name.partition(":")[0] for tensor in model.inputs]
    spec = [
        tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype, name=name)
        for name, tensor in zip(names, model.inputs, strict=True)
    ]
    outputs = list(getattr(model, "output_names", None) or [f"output_{at}" for at in range(len(model.outputs))])

    def call(*arrays: Any) -> Any:
        found = model(list(arrays) if len(arrays) > 1 else arrays[0], training=False)
        return [tf.identity(one, name=name) for one, name in zip(tf.nest.flatten(found), outputs, strict=True)]

    number = opset(work, 18, 9)
    try:
        made, _ = tf2onnx.convert.from_function(
            tf.function(call, input_signature=spec), input_signature=spec, opset=number
        )
    except Exception as error:
        raise Refused(
            f"tf2onnx cannot convert the model: {' '.join(str(error).split())[:300]}",
            "replace the layer, or choose another opset",
        ) from error
    path = work.path("model.onnx")
    onnx.save(named(made, outputs), path)
    describe(work, path)
    samples = {one.name: sample(work, list(one.shape), one.dtype.name) for one in spec}
    answers = [np.asarray(one) for one in tf.nest.flatten(call(*(tf.constant(array) for array in samples.values())))]
    work.write(samples, dict(zip(outputs, answers, strict=True)))
    if len(answers) == 1 and answers[0].ndim == 2 and answers[0].shape[1] > 1:
        work.note(scores=outputs)


def named(made: Any, outputs: list[str]) -> Any:
    """Return the ONNX model with outputs of these names: tf2onnx calls them Identity:0."""
    for output, name in zip(made.graph.output, outputs, strict=True):
        old, output.name = output.name, name
        for node in made.graph.node:
            node.output[:] = [name if one == old else one for one in node.output]
            node.input[:] = [name if one == old else one for one in node.input]
    return made


def sample(work: Work, shape: list[int | None], dtype: str) -> np.ndarray:
    sizes = [BATCH, *(size or 16 for size in shape[1:])]
    if "int" in dtype:
        return work.random.integers(0, 10, sizes).astype(dtype)
    return work.random.standard_normal(sizes).astype(dtype)


if __name__ == "__main__":
    main(convert, PACKAGES)
