"""A real inference server at fixed ports for the dashboard's tests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from django.conf import settings

from dashboard.models import Server, ServerState
from dashboard.servers.client import AsyncServerClient, ServerClient, ServerConnections
from dashboard.servers.messages import IndexRow, LoadAnswer
from tests.support.ports import HOST, free_ports
from tests.support.serving_process import ServerProcess

T = TypeVar("T")
CONNECTIONS = ServerConnections()


class BlockingClient(ServerClient):
    """A client for tests without an event loop. It lists, loads and unloads models with the client of `watch`."""

    def index(self) -> list[IndexRow]:
        return asyncio.run(self._answer(lambda client: client.index()))

    def load(self, name: str) -> LoadAnswer:
        return asyncio.run(self._answer(lambda client: client.load(name)))

    def unload(self, name: str) -> None:
        asyncio.run(self._answer(lambda client: client.unload(name)))

    async def _answer(self, call: Callable[[AsyncServerClient], Awaitable[T]]) -> T:
        async with AsyncServerClient(self.server) as client:
            return await call(client)


def server_client(server: Server) -> BlockingClient:
    return BlockingClient(server, CONNECTIONS)


class FixedServer:
    """An inference server, as `up` would start it, that may go and come back at the same addresses."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._http, self._grpc, self._metrics = free_ports(3)
        self.process: ServerProcess | None = None

    def addresses(self) -> dict[str, str]:
        """The addresses, by the columns of its row."""
        return {
            "http_url": f"http://{HOST}:{self._http}",
            "grpc_url": f"{HOST}:{self._grpc}",
            "metrics_url": f"http://{HOST}:{self._metrics}",
        }

    def row(self) -> Server:
        """The server's row in the database."""
        server = Server.objects.create(name="local", bundled=True, **self.addresses())
        ServerState.objects.create(server=server)
        return server

    def start(self, *flags: str, environment: dict[str, str] | None = None) -> ServerProcess:
        key = f"{settings.SERVER_CONTROL_HEADER}={settings.SERVER_CONTROL_KEY}"
        self.process = ServerProcess(
            self._repository,
            "--model-control-mode=explicit",
            f"--http-port={self._http}",
            f"--grpc-port={self._grpc}",
            f"--metrics-port={self._metrics}",
            f"--http-restricted-api=model-repository:{key}",
            *flags,
            wait="live",
            environment=environment,
        )
        return self.process.start()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.close()

    def close(self) -> None:
        if self.process is not None:
            self.process.close()


@contextmanager
def fixed_server(repository: Path) -> Iterator[FixedServer]:
    """A server that is not started yet, and ends with the block."""
    repository.mkdir(exist_ok=True)
    server = FixedServer(repository)
    try:
        yield server
    finally:
        server.close()
