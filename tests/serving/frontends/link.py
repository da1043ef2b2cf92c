"""A connection whose peer takes as much as a test says."""

import asyncio
from collections.abc import Iterable
from typing import Any


class Link(asyncio.Transport):
    """written: all written bytes. taken: how many the peer has taken, by the kernel's word."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.taken = 1
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, *_: int) -> None:
        pass

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return bytes(size - 8) + self.taken.to_bytes(8, "little")

    def fileno(self) -> int:
        return -1  # nothing can be written to it but by `write`

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(list_of_data)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_aborted

    def close(self) -> None:
        pass  # what was written waits for the peer

    def abort(self) -> None:
        self.is_aborted = True
