"""Whether the instances of a model would answer: those of Python models may say so themselves (`is_ready`)."""

import asyncio
from collections.abc import Sequence

from serving.instance import Instance

TIMEOUT_S = 5.0  # Triton's


async def instances_ready(instances: Sequence[Instance]) -> bool:
    """True where any instance is available, and each of those that are says yes or has no say; False after the timeout."""
    available = [one for one in instances if one.available()]
    if len(instances) and not available:
        return False
    checks = [asyncio.wrap_future(check) for one in available if (check := one.readiness()) is not None]
    if not checks:
        return True
    done, late = await asyncio.wait(checks, timeout=TIMEOUT_S)
    return not late and all(check.result() for check in done)
