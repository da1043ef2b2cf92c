"""Probes that ask a process whether it answers: one cheap exchange in its own protocol, in at most TIMEOUT_S."""

import asyncio

TIMEOUT_S = 5.0
# RFC 9113, 3.4: the client's preface and an empty SETTINGS frame; the server's first frame is SETTINGS (type 4).
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def probe_http(host: str, port: int, path: str, *, any_status: bool = False) -> bool:
    """Return whether GET `path` is answered with 200, or with any status if `any_status`."""
    name = f"[{host}]" if ":" in host else host
    request = f"GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode()
    head = await _exchange(host, port, request, 12)
    return head.startswith(b"HTTP/1.") and (any_status or head.endswith(b" 200"))


async def probe_grpc(host: str, port: int) -> bool:
    """Return whether an HTTP/2 server answers."""
    frame = await _exchange(host, port, _HTTP2_PREFACE, 9)
    return len(frame) == 9 and frame[3] == 4


async def _exchange(host: str, port: int, request: bytes, answer_bytes: int) -> bytes:
    """Send a request, and return the first `answer_bytes` of the answer; b"" if there are fewer."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request)
                return await reader.readexactly(answer_bytes)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return b""
