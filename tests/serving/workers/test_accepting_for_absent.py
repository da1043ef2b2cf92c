"""What the core accepts in place of a worker goes to one that takes it."""

import itertools
import socket
from typing import Any

from serving.workers.pool import FrontendWorkers


class Worker:
    answers = True

    def __init__(self, takes: bool) -> None:
        self._takes = takes
        self.handed: list[socket.socket] = []

    def hand_over(self, protocol: str, connected: socket.socket) -> None:
        if not self._takes:
            raise BlockingIOError  # what it was told already fills its socket
        self.handed.append(connected.dup())


def test_a_connection_that_one_worker_cannot_take_goes_to_the_next() -> None:
    stopped, able = Worker(takes=False), Worker(takes=True)
    workers: Any = FrontendWorkers.__new__(FrontendWorkers)
    workers._processes, workers._turns, workers._accepting_for = [stopped, able], itertools.count(), set()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        for _ in range(2):
            with socket.create_connection(listening.getsockname()):
                workers._accept(0, "http", listening)
    assert len(able.handed) == 2
    for one in able.handed:
        one.close()
