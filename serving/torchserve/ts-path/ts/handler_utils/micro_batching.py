"""Divides a batch into micro-batches that go through preprocess, inference and postprocess in parallel, on several threads.

Source: pytorch/serve, examples/micro_batching/README.md.
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from ..context import Context

HANDLER_METHODS = ["preprocess", "inference", "postprocess"]


class MicroBatching:
    """Replaces a handler's `handle`: `self.handle = MicroBatching(self, micro_batch_size=4)` in initialize.

    parallelism: method -> how many threads run it.
    """

    def __init__(
        self, parent_handler: Any, micro_batch_size: int = 1, parallelism: Mapping[str, int] | None = None
    ) -> None:
        if micro_batch_size < 1:
            raise ValueError("micro_batch_size must be 1 or more")
        self.handler = parent_handler
        self.micro_batch_size = micro_batch_size
        self._parallelism: dict[str, int] = {}
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._local = threading.local()
        self.parallelism = dict(parallelism or {})

    def __del__(self) -> None:
        self.shutdown()

    @property
    def parallelism(self) -> dict[str, int]:
        return self._parallelism

    @parallelism.setter
    def parallelism(self, parallelism: Mapping[str, int]) -> None:
        unknown = sorted(set(parallelism) - set(HANDLER_METHODS))
        if unknown or any(threads < 1 for threads in parallelism.values()):
            raise ValueError(f"parallelism takes 1 or more threads for each of {', '.join(HANDLER_METHODS)}")
        self.shutdown()
        self._parallelism = {name: parallelism.get(name, 1) for name in HANDLER_METHODS}
        self._pools = {
            name: ThreadPoolExecutor(threads, thread_name_prefix=name) for name, threads in self._parallelism.items()
        }

    def shutdown(self) -> None:
        """End the threads."""
        for pool in getattr(self, "_pools", {}).values():
            pool.shutdown(wait=False)

    def get_micro_batch_idx(self) -> int:
        """Return the number of the micro-batch that the calling method works on."""
        return int(self._local.index)

    def handle(self, data: list[Any]) -> list[Any]:
        """Return the answers to a batch. An error of a method is raised once no other micro-batch runs."""
        size = self.micro_batch_size
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        answers: list[Future[Any]] = [Future() for _ in parts]
        for index, (part, answer) in enumerate(zip(parts, answers, strict=True)):
            self._submit(0, index, part, answer)
        failed = [error for error in [answer.exception() for answer in answers] if error is not None]
        if failed:
            raise failed[0]
        return [one for answer in answers for one in answer.result()]

    def _submit(self, step: int, index: int, data: Any, answer: "Future[Any]") -> None:
        """Run the next step of one micro-batch. `answer` gets the result of the last step."""
        if step == len(HANDLER_METHODS):
            answer.set_result(data)
            return
        done = self._pools[HANDLER_METHODS[step]].submit(self._run, HANDLER_METHODS[step], index, data)
        done.add_done_callback(partial(self._next, step, index, answer))

    def _run(self, method: str, index: int, data: Any) -> Any:
        self._local.index = index
        return getattr(self.handler, method)(data)

    def _next(self, step: int, index: int, answer: "Future[Any]", done: "Future[Any]") -> None:
        error = done.exception()
        if error is not None:
            answer.set_exception(error)
        else:
            self._submit(step + 1, index, done.result(), answer)

    def __call__(self, data: list[Any], context: Context) -> list[Any]:
        """Handle a batch as BaseHandler.handle does, in micro-batches."""
        handler = self.handler
        began = time.perf_counter()
        handler.context = context
        if _asked(handler, "_is_describe"):
            answers = [handler.describe_handle()]
        elif _asked(handler, "_is_explain"):
            answers = handler.explain_handle(handler.preprocess(data), data)
        else:
            answers = self.handle(data)
        if context is not None and context.metrics is not None:
            took_ms = round((time.perf_counter() - began) * 1000, 2)
            context.metrics.add_time("HandlerTime", took_ms, None, "ms")
        return answers


def _asked(handler: Any, method: str) -> bool:
    """Return the result of a handler's method that says what a request asks for, or False if there is no such method."""
    ask = getattr(handler, method, None)
    return bool(ask is not None and ask())
