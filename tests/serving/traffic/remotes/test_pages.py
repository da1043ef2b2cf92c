"""Pages of listed servers, such as a Prometheus that guardrails query."""

from pathlib import Path

import pytest

from serving.core.errors import ServingError
from serving.resources.request_memory import RequestMemory
from serving.traffic.remotes.fetch import RemotePages
from tests.serving.traffic.remotes.asking import allow_list
from tests.serving.traffic.remotes.services import service

pytestmark = pytest.mark.asyncio


async def test_a_page_is_read_with_its_query_and_the_listed_headers(tmp_path: Path) -> None:
    with service(lambda received: {"status": "success"}) as prometheus:
        listed = allow_list(tmp_path, {prometheus.url: {"headers": {"Authorization": "Bearer x"}}})
        pages = RemotePages(listed, RequestMemory(1 << 20))
        for _ in range(2):
            assert (
                await pages.fetch(f"{prometheus.url}/api/v1/query?query=up%7Ba%3D%22b%22%7D")
                == b'{"status": "success"}'
            )
        assert {one.path for one in prometheus.received} == {"/api/v1/query?query=up%7Ba%3D%22b%22%7D"}
        assert {one.headers["authorization"] for one in prometheus.received} == {"Bearer x"}
        assert len({one.client for one in prometheus.received}) == 1
        with pytest.raises(ServingError, match="is not listed in --traffic-remotes"):
            await pages.fetch("http://127.0.0.1:1/api/v1/query?query=up")
        await pages.close()


async def test_a_wrong_query_is_refused_with_the_reason(tmp_path: Path) -> None:
    with service(lambda received: (400, {}, b'{"status": "error", "error": "parse error"}')) as prometheus:
        pages = RemotePages(allow_list(tmp_path, {prometheus.url: {}}), RequestMemory(1 << 20))
        with pytest.raises(ServingError, match="HTTP 400: parse error"):
            await pages.fetch(f"{prometheus.url}/api/v1/query?query=%7B")
        await pages.close()


async def test_a_page_that_never_ends_takes_no_room_from_the_requests_of_clients(tmp_path: Path) -> None:
    memory = RequestMemory(8 << 20)
    with service(lambda received: (200, {}, b" " * (4 << 20))) as prometheus:
        pages = RemotePages(allow_list(tmp_path, {prometheus.url: {}}), memory)
        with pytest.raises(ServingError, match="more than 1 MiB"):
            await pages.fetch(f"{prometheus.url}/api/v1/query?query=up")
        assert memory.taken == 0
        await pages.close()
