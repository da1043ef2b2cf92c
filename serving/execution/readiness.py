"""Whether the instances of a model would answer: those of Python models may say so themselves (`is_ready`)."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from serving.execution.instance import Instance

TIMEOUT_S = 5.0  # Triton's


async def instances_ready(instances: Sequence[Instance]) -> bool:
    """Return whether any instance is available, and each of those that are says yes or has no say; False after TIMEOUT_S."""
    available = [one for one in instances if one.available()]
    if len(instances) and not available:
        return False
    checks = [asyncio.wrap_future(check) for one in available if (check := one.readiness()) is not None]
    if not checks:
        return True
    done, late = await asyncio.wait(checks, timeout=TIMEOUT_S)
    return not late and all(check.result() for check in done)


class CanConfirm(Protocol):
    """A model, awake or asleep."""

    async def confirm_ready(self) -> bool: ...


async def confirmed(current: Callable[[], CanConfirm | None]) -> bool:
    """Return whether the model that `current` gives says that it is ready; False for None.

    One that a reload replaces while it is asked cannot say so any more: its successor is asked.
    """
    while (model := current()) is not None:
        if await model.confirm_ready():
            return True
        if current() is model:
            return False
    return False
