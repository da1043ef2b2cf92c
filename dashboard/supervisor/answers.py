"""Whether a process answers: one cheap exchange on its own protocol, bounded in time."""

import asyncio

TIMEOUT_S = 5.0
# RFC 9113, 3.4: the client's preface and an empty SETTINGS frame; the server's first frame is SETTINGS (type 4).
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def http_answers(host: str, port: int, path: str, *, whatever: bool = False) -> bool:
    """True for any 200 on GET `path`; with `whatever` for any other status too: who says that it cannot does not hang."""
    name = f"[{host}]" if ":" in host else host
    request = f"GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode()
    head = await _exchange(host, port, request, 12)
    return head.startswith(b"HTTP/1.") and (whatever or head.endswith(b" 200"))


async def grpc_answers(host: str, port: int) -> bool:
    """True where an HTTP/2 server listens."""
    frame = await _exchange(host, port, _HTTP2_PREFACE, 9)
    return len(frame) == 9 and frame[3] == 4


async def _exchange(host: str, port: int, request: bytes, answer_bytes: int) -> bytes:
    """The first bytes of the answer, b"" without one."""
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
