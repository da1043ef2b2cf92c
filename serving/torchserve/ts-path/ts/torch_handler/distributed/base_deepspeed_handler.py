"""Not supported: see the package."""

from ...handler_utils.distributed import MISSING

raise ImportError(MISSING.format(name="ts.torch_handler.distributed.base_deepspeed_handler"))
