"""Clients that send requests to a server while a test looks at something else."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from tests.support.serving_process import PATIENCE_S


@contextmanager
def clients(
    send: Callable[[httpx.Client], object], *, count: int = 1, pause: Callable[[], float] = lambda: 0.01
) -> Iterator[None]:
    """Run `count` clients that each send one request after the other, until the block ends.

    pause: returns the seconds to wait before the next request.
    """
    over = threading.Event()

    def run() -> None:
        with httpx.Client(timeout=PATIENCE_S) as http:
            while not over.wait(pause()):
                send(http)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
