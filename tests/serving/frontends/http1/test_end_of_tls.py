"""A connection over TLS that ends gives its client the time that the last answer takes."""

import asyncio
import ssl
from pathlib import Path

from serving.cli.tls import TlsFiles, server_context
from serving.frontends.http1.connection import Connections
from serving.frontends.http1.context import Context
from serving.frontends.http1.listener import Listener
from serving.frontends.http1.message import Reply
from serving.frontends.http1.routes import Route, RouteTable
from serving.frontends.shared.authorisation import Authoriser
from serving.resources.request_memory import RequestMemory
from tests.support.certificates import Authority

SIZE = 32 << 20  # more than the system's buffers hold


def test_a_slow_client_of_tls_gets_the_whole_last_answer(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("server")
    tls = server_context(TlsFiles("http", True, False, files.cert, files.key, None), "http/1.1")
    route = Route("GET", "/", "", lambda _, exchange: Reply(body=[bytes(SIZE)]))
    listener = Listener(RouteTable((route,), None, 0), Context(Authoriser((), "", None), RequestMemory()))
    connections: Connections = listener._connections

    async def run() -> int:
        host, port = await listener.start("127.0.0.1", 0, tls)
        trusted = ssl.create_default_context(cafile=str(authority.cert))
        reader, writer = await asyncio.open_connection(host, port, ssl=trusted)
        writer.write(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        taken = 0
        while connections.tick < 4 and not reader.at_eof():
            taken += len(await reader.read(1 << 16))
            await asyncio.sleep(0.02)
        taken += len(await reader.read(-1))
        writer.close()
        await listener.close()
        return taken

    assert asyncio.run(run()) == SIZE
