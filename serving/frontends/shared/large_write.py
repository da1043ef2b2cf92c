"""Large answers are written without the interpreter's lock, so that a model's thread can go on meanwhile.

A transport of uvloop writes what the socket takes at once, and holds the lock: 0.2 ms and more for each megabyte, for which no
other thread runs. os.writev releases it.
"""

import asyncio
import os
from collections.abc import Sequence


def write_large(transport: asyncio.WriteTransport, chunks: Sequence[bytes | memoryview]) -> None:
    """Do the same as `transport.writelines`; errors of the socket are left to the transport."""
    if transport.get_write_buffer_size() or transport.is_closing() or transport.get_extra_info("sslcontext"):
        transport.writelines(chunks)
        return
    try:
        sent = os.writev(transport.get_extra_info("socket").fileno(), chunks)
    except OSError:  # full, or broken: which the transport finds out
        sent = 0
    if sent == sum(map(len, chunks)):
        return
    left = []
    for chunk in chunks:
        if sent < len(chunk):
            left.append(chunk[sent:] if sent else chunk)
        sent = max(0, sent - len(chunk))
    if left:
        transport.writelines(left)
