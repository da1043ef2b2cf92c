"""A web process that is told to end: requests under way are answered, and it ends, whatever its threads wait for."""

import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from dashboard.web.ending import THREADS_S, UNDER_WAY_S
from tests.dashboard.web_process import finished, listening, migrate
from tests.support.serving_process import PATIENCE_S, wait_until

TOKEN = """
from django.contrib.auth import get_user_model
from dashboard.access.authorisation import Actor
from dashboard.accounts.tokens import token_create
user = get_user_model().objects.create_superuser("ada")
print(token_create(user=user, actor=Actor(user=user), name="t", rights=["read", "admin"])[1])
"""


@contextmanager
def request_under_way(data: Path, address: str, token: str) -> "Iterator[Future[httpx.Response]]":
    """A request on a connection that its client would keep. It waits for the database until the block ends."""
    headers = {"Authorization": f"Bearer {token}"}
    with (
        httpx.Client(base_url=address, headers=headers, trust_env=False, timeout=PATIENCE_S) as client,
        ThreadPoolExecutor() as threads,
        closing(sqlite3.connect(data / "db.sqlite3", isolation_level=None)) as database,
    ):

        def under_way() -> bool:
            said = httpx.get(f"{address}/api/v1/web-metrics", headers=headers, trust_env=False).text
            return "slipway_web_requests_under_way 2" in said  # with the one that asks

        database.execute("BEGIN IMMEDIATE")
        answer = threads.submit(client.post, "/api/v1/environments", json={"name": "staging"})
        wait_until(lambda: under_way() or answer.done(), PATIENCE_S, "the request")
        assert not answer.done(), answer.result().text
        yield answer


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str, psutil.Process, str]]:
    """A data folder, the address and process of its dashboard, and a token."""
    data = tmp_path / "data"
    migrate(data)
    token = finished(data, "manage.py", "shell", "--no-imports", "-c", TOKEN).split()[-1]
    with listening(data, "-m", "daphne") as (address, process):
        yield data, address, process, token


def listens(address: str) -> bool:
    with suppress(httpx.ConnectError):
        httpx.get(f"{address}/livez", trust_env=False)
        return True
    return False


def test_a_request_under_way_is_answered_as_the_last_one_of_its_connection(
    web: tuple[Path, str, psutil.Process, str],
) -> None:
    data, address, process, token = web
    with request_under_way(data, address, token) as answer:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not listens(address), PATIENCE_S, "the end of listening")
        assert not answer.done(), answer.result().text
    answered = answer.result()
    assert (answered.status_code, answered.headers["connection"]) == (201, "close")
    assert process.wait(PATIENCE_S) == 0


def test_a_request_that_takes_too_long_is_cut_off_and_its_thread_does_not_keep_the_process(
    web: tuple[Path, str, psutil.Process, str],
) -> None:
    data, address, process, token = web
    with request_under_way(data, address, token) as answer:
        process.send_signal(signal.SIGTERM)
        assert process.wait(UNDER_WAY_S + THREADS_S + PATIENCE_S) == 0
    assert isinstance(answer.exception(), httpx.RemoteProtocolError | httpx.ReadError)
    assert "1 requests were cancelled 3 s after this process was told to end" in (data.parent / "errors").read_text()
