"""A decorator that measures a method of a handler if the handler's model-config.yaml has `handler: profile: true`."""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def timed(function: Callable[..., T]) -> Callable[..., T]:
    """Record the time of each call of a method in the metric ts_handler_<method>."""

    @functools.wraps(function)
    def call(self: Any, *arguments: Any, **named: Any) -> T:
        context = getattr(self, "context", None)
        if not ((getattr(context, "model_yaml_config", None) or {}).get("handler") or {}).get("profile"):
            return function(self, *arguments, **named)
        began = time.perf_counter()
        result = function(self, *arguments, **named)
        _wait_for_gpu()
        took_ms = round((time.perf_counter() - began) * 1000, 2)
        self.context.metrics.add_time(f"ts_handler_{function.__name__}", took_ms, None, "ms")
        return result

    return call


def _wait_for_gpu() -> None:
    """Wait for the work that a method has started on the GPU, because it counts as the method's time."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
