"""A connection that is accepted before a server drains, and made while it does, ends as the others do."""

import asyncio
import socket
from pathlib import Path

from serving.cli.options import Options
from serving.frontends.grpc_server import GrpcServer
from serving.frontends.shared.authorisation import Authoriser
from tests.serving.frontends.http2.http2_peer import GOAWAY, PREFACE, settings
from tests.serving.frontends.http_in_process import connection, http_frontend, read_answer
from tests.serving.in_process import core
from tests.support.serving_process import PATIENCE_S


def test_an_answer_over_a_late_connection_says_that_it_closes(tmp_path: Path) -> None:
    async def main() -> dict[str, str]:
        async with http_frontend(tmp_path) as (frontend, _), connection(frontend):
            draining = asyncio.ensure_future(frontend.drain())
            await asyncio.sleep(0)  # it waits for the connection
            theirs, ours = socket.socketpair()
            ours.setblocking(False)
            assert frontend._listener is not None
            await frontend._listener.serve(ours)
            reader, writer = await asyncio.open_connection(sock=theirs)
            writer.write(b"GET /v2 HTTP/1.1\r\nHost: test\r\n\r\n")
            _, headers, _ = await asyncio.wait_for(read_answer(reader), PATIENCE_S)
            writer.transport.abort()
            draining.cancel()
            return headers

    assert asyncio.run(main())["connection"] == "close"


def test_a_late_connection_of_grpc_is_sent_goaway(tmp_path: Path) -> None:
    async def main() -> int:
        async with core(tmp_path) as server:
            options = Options(model_repository=(tmp_path,), grpc_address="127.0.0.1", grpc_port=0)
            frontend = GrpcServer(server, options, Authoriser.from_options(options, "grpc"))
            await frontend.start()
            _, first = await asyncio.open_connection(*frontend.address)
            first.write(PREFACE + settings())
            while not frontend._connections:
                await asyncio.sleep(0)
            draining = asyncio.ensure_future(frontend.drain())
            await asyncio.sleep(0)  # it waits for the connection
            theirs, ours = socket.socketpair()
            ours.setblocking(False)
            await frontend.serve(ours)
            reader, writer = await asyncio.open_connection(sock=theirs)
            writer.write(PREFACE + settings())
            kind = -1
            async with asyncio.timeout(PATIENCE_S):
                while kind != GOAWAY:
                    head = await reader.readexactly(9)
                    kind = head[3]
                    await reader.readexactly(int.from_bytes(head[:3], "big"))
            first.transport.abort()
            writer.transport.abort()
            await asyncio.wait_for(draining, PATIENCE_S)
            await frontend.close()
            return kind

    assert asyncio.run(main()) == GOAWAY
