"""Not supported: see the package."""

from . import MISSING

raise ImportError(MISSING.format(name="ts.handler_utils.distributed.deepspeed"))
