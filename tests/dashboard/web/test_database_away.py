"""While the database cannot be used pages and REST say so, and when to try again."""

import sqlite3

import httpx
import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import Error, InterfaceError, OperationalError, connection
from django.test import Client

from dashboard.web.health import answer_health


def broken(cause: Exception, error: type[Error] = OperationalError) -> object:
    """A double of what a database does that has gone, or whose disk is full."""

    def execute(*_: object) -> None:
        raise error("connection to server at 10.0.0.7 failed") from cause

    return connection.execute_wrapper(execute)


def full() -> Exception:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"
    return error


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("cause", "status", "said"),
    [
        (psycopg.OperationalError("gone"), 503, "the database does not answer"),
        (full(), 507, "the disk of the database is full"),
        (psycopg.errors.DiskFull("no space left"), 507, "the disk of the database is full"),
    ],
)
def test_pages_and_rest_say_what_is_wrong_with_the_database(
    cause: Exception, status: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(raise_request_exception=False, headers={"Authorization": "Bearer x"})
    client.cookies["slipway_session"] = "a" * 32
    with broken(cause):
        api, page = client.get("/api/v1/models"), client.get("/models/")
    assert (api.status_code, page.status_code) == (status, status)
    assert said in api.json()["error"]
    assert said.capitalize() in page.content.decode()
    assert api.headers.get("Retry-After") == page.headers.get("Retry-After") == ("5" if status == 503 else None)
    assert "10.0.0.7" not in page.content.decode() + api.content.decode()
    logged = [one for one in caplog.records if one.name == "django.request"]
    assert ["10.0.0.7" in one.getMessage() and not one.exc_info for one in logged] == [status == 503] * 2


@pytest.mark.django_db
@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_the_event_loop_answers_health_checks_itself(error: type[Error]) -> None:
    async def asked(method: str, path: str) -> httpx.Response:
        async def pages(*_: object) -> None:
            raise AssertionError("a page was asked")

        transport = httpx.ASGITransport(app=answer_health(pages))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://10.0.0.7") as client:
            return await client.request(method, path)

    def ask(path: str, method: str = "GET") -> tuple[int, str]:
        answer = async_to_sync(asked)(method, path)
        return answer.status_code, answer.text and answer.json()["status"]

    assert ask("/readyz") == ask("/livez") == (200, "ok")
    assert ask("/readyz", "HEAD") == (200, "")
    assert ask("/readyz", "POST") == (405, "/readyz takes GET and HEAD")
    with broken(psycopg.OperationalError("gone"), error):
        assert ask("/readyz") == (503, "the database does not answer")
        assert ask("/livez") == (200, "ok")
