"""The channel for batches between the server and a child process: one JSON message in each packet of a Unix socket.

A message that is too long for a packet is passed in a memory file. Descriptors, including the memory file's, are sent in a
second packet, which the first packet announces. So a usual message takes one `send` and one `recv`, without control data.

The channel raises the errors of serving.backends.channel.channel. Each packet of the other side is checked before it is used.
"""

import array
import mmap
import os
import socket
from collections.abc import Sequence

from serving.backends.channel.channel import (
    CONTROL_BYTES,
    MAX_DESCRIPTORS,
    MAX_MESSAGE_BYTES,
    TRUNCATED,
    Closed,
    ProtocolError,
    close_all,
    dumps,
    loads,
    received_descriptors,
)
from serving.backends.channel.shared_memory import map_sealed, memory_file

PACKET_BYTES = 32 << 10  # 16 requests with different headers take only 10 KiB
_ANNOUNCED = b"+"  # a packet with descriptors follows
_IN_FILE = b"*"  # replaces a message that is in the file of the first descriptor
_RIGHTS = int(socket.SCM_RIGHTS)
_LEVEL = int(socket.SOL_SOCKET)
_FLAGS = int(socket.MSG_CMSG_CLOEXEC)


class PacketChannel:
    """One end of a packet socket. The server's end never blocks: it raises BlockingIOError if no message has arrived."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._announced = False  # True if the next packet has descriptors
        self._send = end.send
        self._receive = end.recv

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send a message with file descriptors, which the caller still owns.

        Raises Closed if the other side has ended, and ProtocolError if it has too many unread messages.
        """
        packet = dumps(message)
        try:
            if descriptors or len(packet) > PACKET_BYTES:
                self._send_with_descriptors(packet, descriptors)
            else:
                self._send(packet)
        except BlockingIOError:
            raise ProtocolError("it does not read the messages that it gets") from None
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self) -> tuple[object, list[int]]:
        """Return the next message, which may be any JSON value, and its descriptors, which the caller must close.

        Raises Closed, ProtocolError, or BlockingIOError if no message has arrived.
        """
        descriptors: list[int] = []
        try:
            packet = _ANNOUNCED if self._announced else self._receive(PACKET_BYTES)
            if packet == _ANNOUNCED:
                self._announced = True
                packet, descriptors = self._receive_with_descriptors()
                self._announced = False
        except BlockingIOError:
            raise
        except OSError as error:
            raise Closed(str(error)) from None
        if not packet:
            raise Closed("the other end was closed")
        try:
            return loads(packet), descriptors
        except ValueError as error:
            close_all(descriptors)
            raise ProtocolError(f"a message is not JSON: {error}") from None

    def close(self) -> None:
        self._socket.close()

    # -- inside ----------------------------------------------------------------------------------------------------
    def _send_with_descriptors(self, packet: bytes, descriptors: Sequence[int]) -> None:
        self._send(_ANNOUNCED)
        file = -1
        if len(packet) > PACKET_BYTES:
            file, memory = memory_file(len(packet))
            with memory:
                memory[:] = packet
            packet, descriptors = _IN_FILE, [file, *descriptors]
        try:
            self._socket.sendmsg([packet], [(_LEVEL, _RIGHTS, array.array("i", descriptors))])
        finally:
            if file >= 0:
                os.close(file)

    def _receive_with_descriptors(self) -> tuple[bytes, list[int]]:
        packet, ancillary, flags, _ = self._socket.recvmsg(PACKET_BYTES, CONTROL_BYTES, _FLAGS)
        descriptors = received_descriptors(ancillary)
        try:
            if flags & TRUNCATED or len(descriptors) > MAX_DESCRIPTORS:
                raise ProtocolError("more descriptors came than a message may have")
            if packet != _IN_FILE:
                return packet, descriptors
            if not descriptors:
                raise ProtocolError("descriptors were announced, and none came")
            packet = _text_of(descriptors[0])
        except BaseException:
            close_all(descriptors)
            raise
        os.close(descriptors.pop(0))
        return packet, descriptors


def _text_of(descriptor: int) -> bytes:
    with map_sealed(descriptor, mmap.ACCESS_READ) as memory:
        if len(memory) > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {len(memory)} bytes is over the limit")
        return memory[:]
