"""The HTTP frontend on the real core in the test's own event loop, to see inside of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from serving.cli.options import Options
from serving.frontends.http1.context import Limits
from serving.frontends.http_server import HttpServer
from serving.frontends.shared.authorisation import Authoriser
from serving.server.inference_server import InferenceServer

STANDARD = Limits()


@contextlib.asynccontextmanager
async def http_frontend(
    repository: Path, limits: Limits = STANDARD, **options: Any
) -> AsyncIterator[tuple[HttpServer, InferenceServer]]:
    """A started frontend on a free loopback port."""
    settings = {"model_control_mode": "none", "http_address": "127.0.0.1", "http_port": 0} | options
    chosen = Options(model_repository=(repository,), **settings)
    server = InferenceServer(chosen)
    await server.start()
    frontend = HttpServer(server, chosen, Authoriser.from_options(chosen, "http"), limits)
    await frontend.start()
    try:
        yield frontend, server
    finally:
        await frontend.close()
        await server.drain(10)


@contextlib.asynccontextmanager
async def connection(
    frontend: HttpServer, limit: int = 1 << 16
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's streams; `limit` bounds what it reads ahead."""
    reader, writer = await asyncio.open_connection(*frontend.address, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(head[0].split()[1]), headers, body
