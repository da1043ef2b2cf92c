"""Shared memory between the server and a child process: sealed memory files without a name.

The writer writes into segments of its `SharedMemoryPool`. The reader maps them when their descriptors arrive
(`SharedMemoryMap`). A memory file is freed with its last user, so neither process leaves a file behind, however it ends. Memory
files are sealed against shrinking, so that the writer cannot invalidate a mapping that the reader has checked.

A segment of up to KEEP_BYTES stays mapped on both sides, and is written again after the reader has released it. A larger
segment is used once, because an idle instance must not hold the memory of its largest batch.
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence

from serving.backends.channel.channel import Channel, ProtocolError
from serving.backends.channel.messages import Message
from serving.backends.channel.tensors import TensorWriter

KEEP_BYTES = 32 << 20
MIN_BYTES = 64 << 10
_SPARE = 3  # the most free segments that a pool keeps


def memory_file(size: int) -> tuple[int, mmap.mmap]:
    """Return the descriptor of a new memory file of `size` bytes, sealed, and its mapping."""
    descriptor = os.memfd_create("slipway", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return descriptor, mmap.mmap(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


class Segment:
    """`size` bytes of shared memory. `fresh`: the reader does not have its descriptor yet."""

    __slots__ = ("descriptor", "fresh", "id", "memory", "size")

    def __init__(self, identifier: int, size: int) -> None:
        self.id = identifier
        self.size = size
        self.fresh = True
        self.descriptor, self.memory = memory_file(size)

    @property
    def kept(self) -> bool:
        """Return whether the segment is written again after its first use."""
        return self.size <= KEEP_BYTES

    def fill(self, writer: TensorWriter) -> None:
        """Write tensors. A segment that is used once is also unmapped on this thread, because unmapping is slow."""
        writer.write(self.memory)
        if not self.kept:
            self.memory.close()

    def close(self) -> None:
        """Release this side's mapping and descriptor. The memory is freed with its last view."""
        with contextlib.suppress(BufferError):  # there are views of the memory
            self.memory.close()
        os.close(self.descriptor)


class SharedMemoryPool:
    """The writer's segments. The writer calls `acquire`, writes and sends, and calls `release` when the reader is done."""

    def __init__(self) -> None:
        self._next_id = 1
        self._lent: dict[int, Segment] = {}  # segments in use that will be written again
        self._free: list[Segment] = []
        self._dropped: list[int] = []

    @property
    def free_bytes(self) -> int:
        return sum(segment.size for segment in self._free)

    def acquire(self, size: int) -> Segment:
        """Return a segment of at least `size` bytes that no reader uses."""
        for index, segment in enumerate(self._free):
            if segment.size >= size:
                del self._free[index]
                self._lent[segment.id] = segment
                return segment
        if size <= KEEP_BYTES:  # all free segments are too small, because batches have grown
            for segment in self._free:
                self._drop(segment)
            self._free.clear()
        segment = Segment(self._next_id, _rounded(size))
        self._next_id += 1
        if segment.kept:
            self._lent[segment.id] = segment
        return segment

    def sent(self, segment: Segment) -> None:
        """Note that the reader has received a fresh segment, and close the segment if it is used once."""
        segment.fresh = False
        if not segment.kept:
            segment.close()

    def release(self, identifier: int) -> None:
        """Note that the reader is done with a segment. Unknown ids, and ids of segments that are used once, are ignored."""
        segment = self._lent.pop(identifier, None)
        if segment is None:
            return
        if len(self._free) < _SPARE:
            self._free.append(segment)
        else:
            self._drop(segment)

    def take_dropped(self) -> list[int]:
        """Return the ids that the reader should forget. Each id is returned once."""
        if not self._dropped:
            return []
        dropped, self._dropped = self._dropped, []
        return dropped

    def keep_dropped(self, identifiers: Sequence[int]) -> None:
        """Undo `take_dropped`, because the message to the reader was not sent."""
        self._dropped.extend(identifiers)

    def close(self) -> None:
        for segment in (*self._lent.values(), *self._free):
            segment.close()
        self._lent.clear()
        self._free.clear()

    def _drop(self, segment: Segment) -> None:
        segment.close()
        if not segment.fresh:
            self._dropped.append(segment.id)


class SharedMemoryMap:
    """The reader's mappings of the other side's segments."""

    def __init__(self, writable: bool, limit: int = 256) -> None:
        self._access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._limit = limit
        self._maps: dict[int, mmap.mmap] = {}

    def open(self, identifier: int, descriptor: int) -> mmap.mmap:
        """Map a received segment. The caller closes the descriptor.

        Raises ProtocolError if the segment is not a sealed memory file, or if too many segments are mapped.
        """
        memory = map_sealed(descriptor, self._access)
        if len(memory) <= KEEP_BYTES:
            if len(self._maps) >= self._limit:
                raise ProtocolError(f"more than {self._limit} segments are in use")
            self._maps[identifier] = memory
        return memory

    def get(self, identifier: int) -> mmap.mmap:
        """Return a segment that was received before. Raises ProtocolError if no segment has this id."""
        try:
            return self._maps[identifier]
        except (KeyError, TypeError):
            raise ProtocolError(f"segment {identifier!r} is unknown") from None

    def clear(self) -> None:
        self._maps.clear()

    def drop(self, identifiers: Sequence[int]) -> None:
        for identifier in identifiers:
            self._maps.pop(identifier, None)


def map_sealed(descriptor: int, access: int) -> mmap.mmap:
    """Map the memory of a received descriptor. Raises ProtocolError if the descriptor is not a sealed memory file."""
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
            raise ProtocolError("a segment is not sealed against shrinking")
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=access)
    except (OSError, ValueError) as error:
        raise ProtocolError(f"a segment cannot be mapped: {error}") from None


def send_tensors(channel: Channel, message: Message, writer: TensorWriter | None) -> None:
    """Send a message and its tensors, which are in a segment that is used once."""
    if writer is None or not writer.size:
        channel.send(message)
        return
    segment = Segment(0, writer.size)
    try:
        segment.fill(writer)
        channel.send(message, [segment.descriptor])
    finally:
        segment.close()


def _rounded(size: int) -> int:
    """Round a size up to a power of two if it is at most 1 MiB, or else to whole MiB."""
    if size <= 1 << 20:
        return max(MIN_BYTES, 1 << max(size - 1, 1).bit_length())
    return -(-size // (1 << 20)) << 20
