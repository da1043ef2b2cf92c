"""`slipway.inline_below_us`: executions shorter than this run on the server's event loop itself, without a thread.

100 by default: handing a batch to a thread and back costs about as much. 0: every execution runs on its instance's thread.
Only backends that neither wait for a device nor run code of users can execute on the event loop: ONNX Runtime and PyTorch,
on the CPU.
"""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import get_parameter

PARAMETER = "inline_below_us"
DEFAULT_US = 100


def inline_below_us(config: ModelConfig) -> float:
    """Return the bound in a validated configuration, in microseconds."""
    value = get_parameter(config, PARAMETER)
    return float(value) if isinstance(value, int | float) else DEFAULT_US
