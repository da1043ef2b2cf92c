"""What all connections of one HTTP listener have in common."""

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

READ_SIZE = 64 << 10  # bytes read at once, but for large bodies, which have buffers of their own


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a connection waits for its client: seconds, except the last."""

    head_s: float = 10.0  # for a request head to arrive whole
    body_s: float = 30.0  # for a body to end, or to grow by `body_bytes_per_s` for each; 0 for ever
    idle_s: float = 600.0  # for the next request; long, because clients keep pools of connections
    leaving_s: float = 5.0  # for the last request of a connection when the server shuts down
    stalled_s: float = 60.0  # for a client that does not take its answer
    linger_s: float = 2.0  # for a refused client to read why
    body_bytes_per_s: int = 1024

    @classmethod
    def from_options(cls, options: Options) -> "Limits":
        return cls(body_s=options.request_stall_secs, body_bytes_per_s=options.request_min_rate)

    def timeouts(self) -> ClientTimeouts:
        return ClientTimeouts(stall_s=self.body_s, bytes_per_s=self.body_bytes_per_s)


class AccessLog(Protocol):
    """Is told of each answered request: its client, its head, the arrival of its first byte (monotonic ns, 0 where unknown),
    and the status."""

    def answered(self, client: asyncio.BaseTransport | None, head: Head, began_ns: int, status: int) -> None: ...


@dataclass(slots=True)
class Context:
    """The listener's checks and bounds, and the buffer that its connections read into, one after the other.

    `forwarded` matches the names of request headers that become parameters of an inference request. `standing` makes the lines
    of the headers that every answer has, by its status. `access` is None without a log of requests.
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
