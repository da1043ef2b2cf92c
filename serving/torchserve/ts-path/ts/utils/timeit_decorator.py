"""A decorator that measures functions of a handler."""

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def timeit(function: Callable[P, T]) -> Callable[P, T]:
    """Log how long each call takes."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        began = time.perf_counter()
        result = function(*arguments, **named)
        logger.info("%s took %.4f seconds", function.__name__, time.perf_counter() - began)
        return result

    return call
