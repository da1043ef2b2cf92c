"""A decorator that measures a method of a handler whose model-config.yaml says `handler: profile: true`."""

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def timed(function: Callable[..., T]) -> Callable[..., T]:
    """Measure each call of a method, as the metric ts_handler_<method>."""

    @functools.wraps(function)
    def call(self: Any, *arguments: Any, **named: Any) -> T:
        settings = (getattr(self, "model_yaml_config", None) or {}).get("handler") or {}
        if not settings.get("profile") or getattr(self, "context", None) is None:
            return function(self, *arguments, **named)
        began = time.perf_counter()
        result = function(self, *arguments, **named)
        took_ms = round((time.perf_counter() - began) * 1000, 2)
        self.context.metrics.add_time(f"ts_handler_{function.__name__}", took_ms, None, "ms")
        return result

    return call
