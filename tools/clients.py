"""Clients that send requests to a server while pictures are taken of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx


@contextmanager
def clients(count: int, pause: Callable[[], float], send: Callable[[httpx.Client], object]) -> Iterator[None]:
    """Have so many clients send one request after the other, until the block ends. pause: seconds before the next one."""
    stop = threading.Event()

    def run() -> None:
        with httpx.Client(timeout=30) as http:
            while not stop.wait(pause()):
                send(http)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
