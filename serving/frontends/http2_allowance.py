"""How much a peer may make this side do for nothing (CVE-2023-44487 rapid reset, CVE-2019-9512 to 9518 floods)."""

from serving.frontends.http2_frames import ConnectionFailure, ErrorCode

LIMIT = 1000
PER_SECOND = 200
MAX_UNREAD = 64 * 1024  # bytes


class Allowance:
    """Frames that cost the peer nothing but make us work draw on it: RST_STREAM, PING, SETTINGS, PRIORITY, empty DATA,
    frames that are answered with RST_STREAM. Time and answered requests refill it."""

    __slots__ = ("_left", "unread")

    def __init__(self) -> None:
        self._left: float = LIMIT
        self.unread = 0  # bytes of replies since the peer stopped reading

    def charge(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

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
