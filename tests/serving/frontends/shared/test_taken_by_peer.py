"""The bytes that a peer has taken are counted for every kind of connection and kernel."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from serving.frontends.shared import client_limits
from serving.frontends.shared.client_limits import TAKEN, taken_by_peer
from tests.support.serving_process import PATIENCE_S

SIZE = 16 << 20


@contextlib.asynccontextmanager
async def connected(path: Path | None) -> AsyncIterator[tuple[asyncio.Transport, asyncio.StreamReader]]:
    """A server's transport, and a client that reads a little ahead. path: of a Unix socket."""
    made: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.set_result(writer)

    if path is None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=4096)
    else:
        server = await asyncio.start_unix_server(serve, path)
        reader, writer = await asyncio.open_unix_connection(path, limit=4096)
    async with server:
        yield (await made).transport, reader
        writer.transport.abort()
        (await made).transport.abort()


@pytest.mark.parametrize("kind", ["tcp", "tcp of a kernel that does not count", "unix"])
def test_it_grows_as_the_peer_reads(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "tcp of a kernel that does not count":
        monkeypatch.setattr(client_limits, "_BYTES_ACKED", 1000)  # farther than any kernel tells

    async def main() -> None:
        async with connected(tmp_path / "s" if kind == "unix" else None) as (transport, reader):
            transport.write(bytes(SIZE))
            before = taken_by_peer(transport)
            for _ in range(4):
                await reader.readexactly(SIZE // 4)
                async with asyncio.timeout(PATIENCE_S):
                    while taken_by_peer(transport) - before < TAKEN:
                        await asyncio.sleep(0.01)
                before += TAKEN

    uvloop.run(main())
