"""How much a peer may make this side do for nothing (CVE-2023-44487 rapid reset, CVE-2019-9512 to 9518 floods)."""

import asyncio
from typing import Protocol

from serving.frontends.http2.frames import ConnectionFailure, ErrorCode

LIMIT = 2000  # more than the streams that a connection may have: all of them may be cancelled at once
PER_SECOND = 200
UPDATES_PER_FRAME = 4  # WINDOW_UPDATE frames, for the stream and the connection, for each frame sent and stream opened
MAX_UNANSWERED = 1024  # requests under way on all streams of a connection that take several
MAX_UNREAD = 64 * 1024  # bytes


class Allowance:
    """Frames that cost the peer nothing but make us work draw on it: RST_STREAM, PING, SETTINGS, PRIORITY, empty DATA,
    frames that are answered with RST_STREAM. Time and answered requests refill it."""

    __slots__ = ("_left", "_updates", "opened", "unread")

    def __init__(self) -> None:
        self._left: float = LIMIT
        self._updates = 0
        self.opened = 0  # streams, over all the time
        self.unread = 0  # bytes of replies since the peer stopped reading

    def charge(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def charge_update(self, sent: int) -> None:
        """A WINDOW_UPDATE: free as far as it can be for the frames that have been sent, or for a stream that has been opened,
        for which gRPC's clients widen the window before they have its answer."""
        self._updates += 1
        if self._updates > UPDATES_PER_FRAME * (sent + self.opened):
            self.charge()

    def charge_unread(self, size: int) -> None:
        self.unread += size
        if self.unread > MAX_UNREAD:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "the peer does not read")

    def earn(self) -> None:
        """A request has been answered."""
        if self._left < LIMIT:
            self._left += 1

    def refill(self, seconds: float) -> None:
        self._left = min(LIMIT, self._left + PER_SECOND * seconds)


class Held(Protocol):
    """A stream that takes several requests."""

    def released(self) -> None:
        """The connection, which held it back, has fewer requests under way."""


class Share:
    """What one connection may have of the server: so many streams, and so many requests on those that take several."""

    __slots__ = ("_held", "streams", "unanswered")

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self.unanswered = 0
        self._held: dict[Held, None] = {}

    def hold(self, stream: Held) -> bool:
        """Whether there are enough requests under way; the stream is told when there are fewer."""
        if self.unanswered < MAX_UNANSWERED:
            return False
        self._held[stream] = None
        return True

    def answered(self, count: int = 1) -> None:
        """So many have been answered, or are not wanted any more."""
        self.unanswered -= count
        if self._held:
            held, self._held = self._held, {}
            for stream in held:
                asyncio.get_running_loop().call_soon(stream.released)
