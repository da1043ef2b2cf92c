"""Checks whether the instances of a model are ready. Python models may check themselves (`is_ready`)."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from serving.execution.instance import Instance

TIMEOUT_S = 5.0  # as in Triton


async def instances_ready(instances: Sequence[Instance]) -> bool:
    """Return whether some instance is available and all available ones confirm within TIMEOUT_S that they are ready."""
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


async def confirm_ready(current: Callable[[], CanConfirm | None]) -> bool:
    """Return whether the model that `current` returns confirms that it is ready, or False if there is no model.

    If a reload replaces the model during the check, the new model is asked.
    """
    while (model := current()) is not None:
        if await model.confirm_ready():
            return True
        if current() is model:
            return False
    return False
