"""TensorFlow's SavedModel -> ONNX, by tf2onnx: one of its signatures, serving_default if the option names none."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
from keras_model import sample
from recipe import Refused, Work, describe, main, opset

PACKAGES = "tensorflow tensorflow-cpu tf2onnx onnx numpy"


def convert(work: Work) -> None:
    """Convert the folder that has saved_model.pb."""
    import onnx
    import tensorflow as tf
    import tf2onnx

    root = work.file("saved_model.pb").parent
    model = tf.saved_model.load(str(root))
    name = str(work.options.get("signature") or "serving_default")
    if name not in model.signatures:
        known = ", ".join(model.signatures) or "none"
        raise Refused(f"the SavedModel has no signature '{name}'; it has {known}", "name one in the option 'signature'")
    function = model.signatures[name]
    spec = list(function.structured_input_signature[1].values())
    if any(one.shape.rank is None for one in spec):
        raise Refused("an input of the signature has no number of dimensions", "export the model with shapes")

    call = tf.function(
        lambda *arrays: function(**{one.name: array for one, array in zip(spec, arrays, strict=True)}),
        input_signature=spec,
    )
    try:
        made, _ = tf2onnx.convert.from_function(call, input_signature=spec, opset=opset(work, 18, 9))
    except Exception as error:
        raise Refused(
            f"tf2onnx cannot convert the model: {' '.join(str(error).split())[:300]}",
            "choose another signature or opset",
        ) from error
    path = work.path("model.onnx")
    onnx.save(made, path)
    describe(work, path)
    samples = {one.name: sample(work, list(one.shape), one.dtype.name) for one in spec}
    found = function(**{key: tf.constant(array) for key, array in samples.items()})
    # tf2onnx names outputs by the keys of the signature, which it sorts.
    outputs = [one["name"] for one in work.notes["outputs"]]
    keys = outputs if set(outputs) == set(found) else sorted(found)
    answers = {output: np.asarray(found[key]) for output, key in zip(outputs, keys, strict=True)}
    work.write(samples, answers)


if __name__ == "__main__":
    main(convert, PACKAGES)
