"""The link between the server and a child process: JSON over a Unix stream socket, with file descriptors.

A frame is `<I B>` (length of the JSON text, number of descriptors sent with it) and the text. Both sides check each frame
against the limits in this module before they use it.

ChannelError
 +-- Closed          the other side has ended
 +-- ProtocolError   the other side sent a malformed message
TimeoutError         no message came in time
"""

import array
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

from serving.backends.channel.messages import Message, Received

_HEADER = struct.Struct("<IB")
MAX_MESSAGE_BYTES = 64 << 20
MAX_DESCRIPTORS = 8
_CHUNK = 64 << 10
CONTROL_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
TRUNCATED = int(socket.MSG_CTRUNC)  # plain numbers, because operations on enums are slow
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)


def _standard_dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


dumps: Callable[[object], bytes] = _standard_dumps
loads: Callable[[bytes], object] = json.loads
try:
    import orjson
except ImportError:  # a model's own Python may lack it
    pass
else:
    dumps, loads = orjson.dumps, orjson.loads


class ChannelError(Exception):
    """The channel cannot be used any more."""


class Closed(ChannelError):
    """The other side has ended."""


class ProtocolError(ChannelError):
    """The other side sent a malformed message."""


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def received_descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in the control data of a `recvmsg`."""
    rights = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            rights.frombytes(payload[: len(payload) - len(payload) % rights.itemsize])
    return rights.tolist()


class Channel:
    """One end of a connection.

    pidfd: at the server's end, the child's pidfd, which shows that the child has ended even if a grandchild holds the socket.
    """

    def __init__(self, end: socket.socket, pidfd: int = -1) -> None:
        self._socket = end
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._pidfd = pidfd
        if pidfd >= 0:
            self._poll.register(pidfd, select.POLLIN)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message with file descriptors, which the caller still owns. Raises Closed if the other side has ended."""
        body = dumps(message)
        frame = _HEADER.pack(len(body), len(descriptors)) + body
        try:
            if descriptors:
                rights = array.array("i", descriptors)
                sent = self._socket.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            else:
                sent = self._socket.send(frame)
            if sent < len(frame):
                self._socket.sendall(frame[sent:])
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self, timeout_s: float | None = None) -> tuple[Received, list[int]]:
        """Return the next message and its descriptors, which the caller must close.

        Raises Closed, ProtocolError, or TimeoutError if no message has arrived after `timeout_s` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if len(self._buffer) >= _HEADER.size:
                message = self._take()
                if message is not None:
                    return message
            self._wait(deadline)
            self._read()

    def close(self) -> None:
        self._socket.close()
        close_all(self._descriptors)
        self._descriptors.clear()

    # -- inside ----------------------------------------------------------------------------------------------------
    def _take(self) -> tuple[Received, list[int]] | None:
        buffer = self._buffer
        length, count = _HEADER.unpack_from(buffer)
        if length > MAX_MESSAGE_BYTES or count > MAX_DESCRIPTORS:
            raise ProtocolError(f"a message of {length} bytes with {count} descriptors is over the limits")
        end = _HEADER.size + length
        if len(buffer) < end:
            return None
        if count > len(self._descriptors):
            raise ProtocolError(f"{count} descriptors were announced, {len(self._descriptors)} came")
        body = bytes(memoryview(buffer)[_HEADER.size : end])
        del buffer[:end]
        descriptors, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        try:
            message = loads(body)
            if not isinstance(message, dict):
                raise ValueError("not an object")
        except ValueError as error:
            close_all(descriptors)
            raise ProtocolError(f"a message is not a JSON object: {error}") from None
        return message, descriptors

    def _wait(self, deadline: float | None) -> None:
        """Wait until the socket can be read. Raises Closed after the last message of a dead child was read."""
        timeout_ms = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
        ready = [descriptor for descriptor, _ in self._poll.poll(timeout_ms)]
        if not ready:
            raise TimeoutError
        if self._socket.fileno() not in ready:
            raise Closed("the process has ended")

    def _read(self) -> None:
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(_CHUNK, CONTROL_BYTES, _CLOSE_ON_EXEC)
        except OSError as error:
            raise Closed(str(error)) from None
        self._descriptors.extend(received_descriptors(ancillary))
        if flags & TRUNCATED or len(self._descriptors) > MAX_DESCRIPTORS:
            raise ProtocolError("more descriptors came than a message may have")
        if not data:
            raise Closed("the other end was closed")
        self._buffer += data
