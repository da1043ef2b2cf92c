"""The settings and services that all connections of one HTTP listener have in common."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import re2

from serving.cli.options import Options
from serving.frontends.http1.message import Head
from serving.frontends.shared.authorisation import Authoriser
from serving.frontends.shared.client_limits import ClientTimeouts
from serving.resources.request_memory import RequestMemory

READ_SIZE = 64 << 10  # bytes of the read buffer that connections share; large bodies have buffers of their own


@dataclass(frozen=True, slots=True)
class Limits:
    """How many seconds a connection waits for its client, and the least rate of a body."""

    head_s: float = 10.0  # a request head has to arrive whole in this time
    body_s: float = 30.0  # a body has to end in this time, or to grow by `body_bytes_per_s` a second; 0 for no limit
    idle_s: float = 600.0  # the next request has to begin in this time; long, because clients keep connections in pools
    leaving_s: float = 5.0  # the last request of a connection has to begin in this time when the server shuts down
    stalled_s: float = 60.0  # a client has to take a part of its answer in this time
    linger_s: float = 2.0  # a refused client has this time to read the error
    body_bytes_per_s: int = 1024

    @classmethod
    def from_options(cls, options: Options) -> "Limits":
        return cls(body_s=options.request_stall_secs, body_bytes_per_s=options.request_min_rate)

    def timeouts(self) -> ClientTimeouts:
        return ClientTimeouts(stall_s=self.body_s, bytes_per_s=self.body_bytes_per_s)


class AccessLog(Protocol):
    """A log of requests. `answered` gets each answered request: its client, its head, the arrival of its first byte (monotonic
    ns, 0 if unknown), and the status."""

    def answered(self, client: asyncio.BaseTransport | None, head: Head, began_ns: int, status: int) -> None: ...


@dataclass(slots=True)
class Context:
    """The checks and limits of a listener, and the buffer that all its connections read into, one after the other.

    `forwarded` matches the names of request headers that become parameters of an inference request. `standing` takes a
    status and returns the header lines that every answer with that status carries. `access` is None if there is no log of
    requests.
    """

    authoriser: Authoriser
    memory: RequestMemory
    limits: Limits = Limits()
    forwarded: re2._Regexp | None = None
    standing: Callable[[int], str] | None = None
    access: AccessLog | None = None
    timeouts: ClientTimeouts = field(init=False)
    read_view: memoryview = field(init=False, repr=False)

    def standing_headers(self, status: int) -> str:
        return "" if self.standing is None else self.standing(status)

    def __post_init__(self) -> None:
        self.timeouts = self.limits.timeouts()
        self.read_view = memoryview(bytearray(READ_SIZE))
