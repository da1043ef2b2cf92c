"""Limits of the work that one peer can cause: control frames, open streams, and requests under way.

Sources: CVE-2023-44487 (rapid reset), CVE-2019-9512 to CVE-2019-9518 (floods), RFC 9113 section 10.5.
"""

import asyncio
from functools import partial
from typing import Protocol

from serving.core.waiters import Waiters
from serving.frontends.http2.frames import ConnectionFailure, ErrorCode

BUCKET_SIZE = 2000.0  # frames; more than a connection has streams, because a client may cancel all its streams together
REFILL_PER_S = 200  # frames
WINDOW_UPDATES_PER_FRAME = 4  # WINDOW_UPDATE frames that are free for each sent frame and each opened stream
# Requests under way on one connection, counted on the streams that carry several requests.
MAX_PENDING_REQUESTS = 1024
MAX_UNREAD_REPLIES = 64 * 1024  # bytes


class FloodLimiter:
    """A token bucket for frames that are cheap for the peer but cost this server work: RST_STREAM, PING, SETTINGS, PRIORITY,
    empty DATA, and frames that are answered with RST_STREAM. Time and answered requests refill it.
    The `charge` methods raise ConnectionFailure with ENHANCE_YOUR_CALM if the peer has sent too many.
    """

    __slots__ = ("_tokens", "_window_updates", "streams_opened", "unread_replies")

    def __init__(self) -> None:
        self._tokens = BUCKET_SIZE
        self._window_updates = 0
        self.streams_opened = 0  # streams opened on the connection so far
        self.unread_replies = 0  # bytes of replies to control frames since the peer stopped reading

    def charge(self) -> None:
        self._tokens -= 1
        if self._tokens < 0:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def charge_window_update(self, frames_sent: int) -> None:
        """Count a WINDOW_UPDATE frame. Some are free for each sent frame and each opened stream, because gRPC's clients widen a
        stream's window before they have the response."""
        self._window_updates += 1
        if self._window_updates > WINDOW_UPDATES_PER_FRAME * (frames_sent + self.streams_opened):
            self.charge()

    def charge_unread_reply(self, size: int) -> None:
        """Count a reply of `size` bytes to a peer that has stopped reading."""
        self.unread_replies += size
        if self.unread_replies > MAX_UNREAD_REPLIES:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "the peer does not read")

    def refund(self) -> None:
        """Add a token for an answered request."""
        if self._tokens < BUCKET_SIZE:
            self._tokens += 1

    def refill(self, seconds: float) -> None:
        """Add the tokens for an elapsed time."""
        self._tokens = min(BUCKET_SIZE, self._tokens + REFILL_PER_S * seconds)


class WaitingStream(Protocol):
    """A stream that carries several requests, and waits before it reads the next request."""

    def released(self) -> None:
        """Called when the connection has fewer requests under way, and the stream may continue to read."""


class ConcurrencyLimit:
    """Limits the open streams of a connection, and the requests under way on streams that carry several requests."""

    __slots__ = ("_free_below", "_max_requests", "_waiters", "max_streams", "pending_requests")

    def __init__(self, max_streams: int, max_requests: int = MAX_PENDING_REQUESTS) -> None:
        self.max_streams = max_streams
        self.pending_requests = 0
        self._max_requests = max_requests
        # A stream need not wait if fewer requests are under way. This is 0 while other streams wait, because they are first.
        self._free_below = max_requests
        self._waiters: Waiters[WaitingStream] | None = (
            None  # created when a stream first waits, because most connections need none
        )

    def must_wait(self, stream: WaitingStream) -> bool:
        """Return whether too many requests are under way, or other streams wait. If so, the stream's `released` is called
        later."""
        if self.pending_requests < self._free_below:
            return False
        if self._waiters is None:
            self._waiters = Waiters(self._may_go, asyncio.get_running_loop().call_soon)
        self._waiters.wait(stream, partial(self._release, stream))
        self._free_below = 0
        return True

    def requests_ended(self, count: int = 1) -> None:
        """Called when `count` requests are answered or cancelled."""
        self.pending_requests -= count
        if not self._free_below and self._waiters is not None:
            self._waiters.ask()

    def _may_go(self, stream: WaitingStream) -> bool:
        return self.pending_requests < self._max_requests

    def _release(self, stream: WaitingStream) -> None:
        """Let a stream continue to read. When the limit is reached, it waits again, behind the other streams."""
        self._free_below = self._max_requests
        stream.released()
        if self._waiters:
            self._free_below = 0
