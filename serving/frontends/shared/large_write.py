"""Writes large answers without the interpreter's lock, so that models' threads can run.

A transport of uvloop holds the lock while it writes to the socket, 0.2 ms or more for each megabyte. os.writev releases it.
"""

import asyncio
import os
from collections.abc import Sequence


def write_large(transport: asyncio.WriteTransport, chunks: Sequence[bytes | memoryview]) -> None:
    """Write the chunks like `transport.writelines`. The transport handles errors of the socket."""
    if transport.get_write_buffer_size() or transport.is_closing() or transport.get_extra_info("sslcontext"):
        transport.writelines(chunks)
        return
    try:
        sent = os.writev(transport.get_extra_info("socket").fileno(), chunks)
    except OSError:  # the socket is full or broken; the transport handles both
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
