"""The settings and services that all connections of one HTTP listener share."""

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

READ_SIZE = 64 << 10  # bytes of the read buffer that connections share; large bodies have their own buffers


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts of a connection in seconds, and the lowest rate of a body."""

    head_s: float = 10.0  # for a complete request head
    body_s: float = 30.0  # for a complete body, unless it grows by `body_bytes_per_s` a second; 0 for no limit
    idle_s: float = 600.0  # until the next request begins; long, because clients keep connections in pools
    leaving_s: float = 5.0  # until the last request of a connection begins, when the server shuts down
    stalled_s: float = 60.0  # until a client that stopped reading takes more of its answer
    linger_s: float = 2.0  # until a refused client has read the error
    max_age_s: float = 0.0  # after which a connection takes one last request, give or take a tenth; 0 for no limit
    body_bytes_per_s: int = 1024

    @classmethod
    def from_options(cls, options: Options) -> "Limits":
        return cls(
            body_s=options.request_stall_secs,
            body_bytes_per_s=options.request_min_rate,
            max_age_s=options.http_max_connection_age / 1000,
        )

    def timeouts(self) -> ClientTimeouts:
        return ClientTimeouts(stall_s=self.body_s, bytes_per_s=self.body_bytes_per_s)


class AccessLog(Protocol):
    """A log of requests. answered: gets each answered request. began_ns: when its first byte came, in monotonic ns; 0 if
    unknown."""

    def answered(self, client: asyncio.BaseTransport | None, head: Head, began_ns: int, status: int) -> None: ...


@dataclass(slots=True)
class Context:
    """The objects that the connections of a listener share. read_view: the buffer into which they read, one after the other.

    forwarded: matches the names of request headers that become parameters of an inference request. standing: returns the
    header lines that every answer with a status has. access: the log of requests, or None.
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
