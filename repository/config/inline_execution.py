"""`slipway.inline_below_us`: executions shorter than this run on the server's event loop itself, without a thread.

100 by default: handing a batch to a thread and back costs about as much. 0: every execution runs on its instance's thread.
Only backends that never wait for a device or run code of users do so (ONNX Runtime and PyTorch on the CPU).
"""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import get_parameter
from repository.core.json_types import Json

PARAMETER = "inline_below_us"
DEFAULT_US = 100
MAX_US = 10_000


def inline_below_us(config: ModelConfig) -> float:
    """Return the bound that a validated configuration asks for, in microseconds."""
    value = get_parameter(config, PARAMETER)
    return float(value) if isinstance(value, int | float) else DEFAULT_US


def problem(value: Json, config: ModelConfig) -> str:
    """Return what is wrong with the parameter's value, "" for nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_US:
        return f"expected a number of microseconds from 0 to {MAX_US}, not {value!r}"
    return ""
