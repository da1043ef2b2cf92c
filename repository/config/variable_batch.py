"""`slipway.variable_batch`: true if an ONNX model that was exported for one row should take any number of rows.

The server and ONNX Runtime then treat a first dimension of 1 as variable, in the inputs and outputs of the model. The file
stays unchanged. The inspection tries whether a model works with more than one row.
"""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import SLIPWAY_PREFIX, backend_of, get_parameter
from repository.core.errors import InvalidConfig
from repository.core.json_types import Json

PARAMETER = "variable_batch"
KEY = SLIPWAY_PREFIX + PARAMETER


def is_requested(config: ModelConfig) -> bool:
    """Return whether the parameter is true. A value that is not JSON counts as false here; validation reports it."""
    try:
        return get_parameter(config, PARAMETER, False) is True
    except InvalidConfig:
        return False


def problem(value: Json, config: ModelConfig) -> str:
    """Return the mistake in a value; "" if there is none."""
    if not isinstance(value, bool):
        return f"expected true or false, not {value!r}"
    if value and backend_of(config) not in ("", "onnxruntime"):
        return f"only ONNX models can be read with a variable batch, not those of backend '{backend_of(config)}'"
    return ""
