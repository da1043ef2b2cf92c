"""When a token was last used is written beside the requests: a database that takes no writes refuses no read."""

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError, connection
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.accounts.token_use import TokenUse
from dashboard.accounts.tokens import token_create
from dashboard.models import ApiToken
from tests.dashboard.web_process import finished, listening, migrate
from tests.support.serving_process import PATIENCE_S, wait_until

PREPARE = """
from dashboard.access.authorisation import Actor
from dashboard.accounts.accounts import administrator_ensure
from dashboard.accounts.tokens import token_create
from django.contrib.auth import get_user_model
from django.test import Client
administrator_ensure()
user = get_user_model().objects.get()
print(token_create(user=user, actor=Actor(user=user), name="t", rights=["read"])[1])
browser = Client()
browser.force_login(user)
print(browser.cookies["slipway_session"].value)
"""
READS = ("/api/v1/me", "/api/v1/models", "/api/v1/servers", "/api/v1/jobs", "/readyz")
PAGES = ("/", "/models/", "/jobs/", "/servers/", "/settings/")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the database so that nobody else may write."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def last_used(path: Path) -> str | None:
    with contextlib.closing(sqlite3.connect(path)) as reader:
        [(at,)] = reader.execute("SELECT last_used_at FROM dashboard_apitoken").fetchall()
    return str(at) if at else None


def test_reads_and_pages_are_answered_while_the_database_takes_no_writes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    migrate(data)
    token, session = finished(data, "manage.py", "shell", "--no-imports", "-c", PREPARE).split()
    database = data / "db.sqlite3"
    with (
        listening(data, "-m", "daphne") as (address, _),
        httpx.Client(base_url=address, trust_env=False, timeout=PATIENCE_S) as client,
    ):
        by_token, by_session = {"Authorization": f"Bearer {token}"}, {"Cookie": f"slipway_session={session}"}
        with locked(database):
            for path in READS + PAGES:
                answer = client.get(path, headers=by_token if path in READS else by_session)
                assert answer.status_code == 200, (path, answer.text)
            assert last_used(database) is None
        wait_until(lambda: last_used(database), what="the time of use, once it can be written")


@pytest.fixture
def token(transactional_db: None) -> ApiToken:
    user = get_user_model().objects.create_superuser("ada")
    return token_create(user=user, actor=Actor(user=user), name="t", rights=["read"])[0]


def used_at(token: ApiToken) -> object:
    return ApiToken.objects.values_list("last_used_at", flat=True).get(pk=token.pk)


def test_what_cannot_be_written_is_kept_for_the_next_time(token: ApiToken) -> None:
    def refuse(*_: object) -> None:
        raise OperationalError("database is locked")

    use = TokenUse()
    use.note(token)
    with connection.execute_wrapper(refuse):
        use.write()
    assert used_at(token) is None
    use.write()
    assert used_at(token) is not None


def test_a_token_in_use_is_written_once_a_minute(token: ApiToken) -> None:
    use = TokenUse()
    for seconds, written in ((30, False), (61, True)):
        ApiToken.objects.update(last_used_at=(before := timezone.now() - timedelta(seconds=seconds)))
        token.refresh_from_db()
        use.note(token)
        use.write()
        assert (used_at(token) != before) is written
