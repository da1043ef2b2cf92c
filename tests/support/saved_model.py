"""A TensorFlow SavedModel, written by a Python that has TensorFlow: this one, or the Python that TENSORFLOW_PYTHON names."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.model_factory import write_config

HERE = importlib.util.find_spec("tensorflow") is not None
PYTHON = sys.executable if HERE else os.environ.get("TENSORFLOW_PYTHON", "")
needs_tensorflow = pytest.mark.skipif(
    not PYTHON, reason="TensorFlow is not installed: pip install -r requirements/tensorflow.txt"
)
SOURCE = """
import sys
import tensorflow as tf

class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None, 1], tf.string)])
    def __call__(self, x, word):
        return {"double": x * 2, "shouted": tf.strings.upper(word)}

model = Model()
tf.saved_model.save(model, sys.argv[1], signatures={"serving_default": model.__call__})
"""
# The part of a configuration by which the server finds TensorFlow.
ENVIRONMENT = (
    "" if HERE else f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: {json.dumps(PYTHON)} }} }}'
)


def saved_model(repository: Path, name: str = "saved") -> Path:
    """Write a model: double = 2 * x, FP32 [4]; shouted = word in capitals, BYTES [1]. Its configuration declares neither."""
    folder = repository / name / "1" / "model.savedmodel"
    subprocess.run([PYTHON, "-W", "ignore", "-c", SOURCE, str(folder)], check=True, capture_output=True, timeout=120)
    return write_config(repository / name, ENVIRONMENT)
