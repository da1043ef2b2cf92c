"""Fetches a page from a server of `--traffic-remotes`, such as a Prometheus server's answer to a guardrail's query."""

import asyncio

from serving.core.errors import unavailable
from serving.resources.request_memory import RequestMemory
from serving.traffic.remotes.allow_list import RemoteAccess, RemoteAllowList
from serving.traffic.remotes.http_client import HttpClient
from serving.traffic.remotes.protocol import refused

TIMEOUT_S = 5.0
MAX_PAGE = 1 << 20  # the largest page, in bytes


class RemotePages:
    """Used on the event loop's thread."""

    def __init__(self, allow_list: RemoteAllowList, memory: RequestMemory) -> None:
        self._allow_list = allow_list
        self._memory = memory
        self._clients: dict[RemoteAccess, HttpClient] = {}

    async def fetch(self, url: str) -> bytes:
        """Return the body of a GET. Raises ServingError if the server may not be called, or does not answer with status 200."""
        page, _, query = url.partition("?")
        access = await asyncio.to_thread(self._allow_list.of, page)
        client = self._clients.get(access)
        if client is None:
            client = self._clients[access] = HttpClient(access, self._memory, MAX_PAGE)
        path = f"{access.address.path or '/'}{query and '?'}{query}"
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await client.get(path)
        except TimeoutError:
            raise unavailable(f"the server at {access.address} has not answered within {TIMEOUT_S:g} s") from None
        if answer.status != 200:
            raise refused(access.address, answer.status, answer.body)
        return answer.body

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.close() for client in clients.values()))
