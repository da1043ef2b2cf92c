"""The open streams of a connection, and checks of frames for closed or idle streams (RFC 9113, section 5.1)."""

from serving.frontends.http2.frames import ConnectionFailure, ErrorCode, StreamFailure
from serving.frontends.http2.stream import Stream

MAX_REMEMBERED = 1000  # the number of remembered streams that were closed before the end of their request


class OpenStreams:
    """The streams of one connection. Streams above `last_id` are idle, streams in `by_id` are open, all others are closed."""

    __slots__ = ("_answered_early", "by_id", "last_id")

    def __init__(self) -> None:
        self.by_id: dict[int, Stream] = {}
        self.last_id = 0
        self._answered_early: set[int] = set()  # closed streams; the rest of their requests is ignored

    def check_late_data(self, stream_id: int, ends: bool) -> None:
        """Raise for a DATA frame on a stream that is idle, half-closed or closed, unless the frame must be ignored."""
        if stream_id in self.by_id:
            raise StreamFailure(ErrorCode.STREAM_CLOSED, stream_id)
        if not stream_id or stream_id > self.last_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"DATA on idle stream {stream_id}")
        if stream_id not in self._answered_early:
            raise StreamFailure(ErrorCode.STREAM_CLOSED, stream_id)
        if ends:
            self._answered_early.discard(stream_id)

    def for_trailers(self, stream_id: int, ends: bool) -> Stream | None:
        """Return the stream of a second HEADERS frame, or None if the frame must be ignored (section 8.1)."""
        stream = self.by_id.get(stream_id)
        if stream is None:
            if stream_id not in self._answered_early:
                raise ConnectionFailure(ErrorCode.STREAM_CLOSED, f"HEADERS on closed stream {stream_id}")
            return None
        if stream.remote_ended:
            raise StreamFailure(ErrorCode.STREAM_CLOSED, stream_id)
        if not ends:
            raise StreamFailure(ErrorCode.PROTOCOL_ERROR, stream_id)
        return stream

    def close(self, stream_id: int) -> Stream | None:
        """Remove a stream. Return it, or None if it is not open."""
        return self.by_id.pop(stream_id, None)

    def close_all(self) -> list[Stream]:
        streams = list(self.by_id.values())
        self.by_id.clear()
        return streams

    def ignore(self, stream_id: int) -> None:
        """Ignore further frames on a stream that this side has closed."""
        if len(self._answered_early) >= MAX_REMEMBERED:
            self._answered_early.clear()
        self._answered_early.add(stream_id)

    def reset_by_peer(self, stream_id: int) -> None:
        """Expect no more frames on a stream that the peer has reset. Raises for an idle stream (section 6.4)."""
        if not stream_id or stream_id > self.last_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on idle stream {stream_id}")
        self._answered_early.discard(stream_id)
