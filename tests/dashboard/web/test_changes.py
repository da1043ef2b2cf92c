"""Open pages are told what changed: marks of tables after each commit, the tables of each part, and the WebSocket between."""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction
from django.test import Client

from dashboard.application import application
from dashboard.models import Job, MetricSample, Model, Server, ServerState, Version
from dashboard.servers.server_state import server_seen
from dashboard.shared import changes, heartbeat
from dashboard.web.changes import READS_HEADER, Changes
from dashboard.web.traffic import TRAFFIC
from tests.dashboard.conftest import beaten, text_of
from tests.support.serving_process import PATIENCE_S

PAGES = (
    "/",
    "/models/",
    "/models/relu/",
    "/models/relu/versions",
    "/models/relu/activity",
    "/jobs/",
    "/servers/",
    "/servers/local/",
    "/activity/",
)
Caught = Callable[..., Any]


@pytest.fixture(autouse=True)
def changes_folder(settings: Any, tmp_path: Path) -> None:
    settings.CHANGES_DIR = tmp_path / "changes"
    settings.CHANGES_DIR.mkdir()


@pytest.fixture
def committed(django_capture_on_commit_callbacks: Caught) -> Caught:
    """with committed(): what the block writes is committed at its end."""
    return lambda: django_capture_on_commit_callbacks(execute=True)


@contextmanager
def marked() -> Iterator[set[str]]:
    """The tables whose mark the block changes."""
    before, tables = changes.marks(), set[str]()
    yield tables
    tables |= {name for name, mark in changes.marks().items() if before.get(name) != mark}


def test_a_commit_marks_the_tables_that_it_wrote(db: None, committed: Caught) -> None:
    mark = changes.mark()
    with marked() as tables, committed():
        model = Model.objects.create(name="relu")
        Job.objects.create(kind="inspect", model=model)
    assert tables == {"dashboard_model", "dashboard_job"}
    assert changes.mark() != mark
    for write in (lambda: Model.objects.update(generation=2), lambda: Model.objects.bulk_create([Model(name="more")])):
        with marked() as tables, committed():
            write()
        assert tables == {"dashboard_model"}
    with marked() as tables, committed():
        model.delete()
    assert tables >= {"dashboard_model", "dashboard_job"}, "the job's model is set to null"


def test_what_is_undone_or_changes_no_row_marks_nothing(db: None, committed: Caught) -> None:
    Model.objects.create(name="relu")
    with marked() as tables, committed():
        Model.objects.filter(name="other").update(generation=2)
        Model.objects.filter(name="other").delete()
        with suppress(RuntimeError), transaction.atomic():
            Model.objects.update(generation=2)
            raise RuntimeError
    assert not tables


def test_signs_of_life_and_the_second_by_second_metrics_mark_nothing(server: Server, committed: Caught) -> None:
    with committed():
        server_seen(server=server, ready=True, instance="a")
    before = ServerState.objects.get().checked_at
    with marked() as tables, committed():
        server_seen(server=server, ready=True, instance="a")
        MetricSample.objects.create(server=server, resolution=1, at=1, data=b"")
    assert not tables
    checked = ServerState.objects.get().checked_at
    assert checked
    assert before
    assert checked > before
    with marked() as tables, committed():
        server_seen(server=server, ready=False, instance="a")
    assert tables == {"dashboard_serverstate"}


def test_a_folder_that_cannot_be_written_costs_no_change(db: None, committed: Caught) -> None:
    settings.CHANGES_DIR.rmdir()
    with committed():
        Model.objects.create(name="relu")
    assert Model.objects.exists()
    assert changes.mark() == ""


@pytest.mark.django_db(transaction=True)
def test_a_selector_is_kept_until_a_table_changes_that_it_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    @changes.kept_while_unchanged
    def names() -> list[str]:
        asked.append(1)
        return list(Model.objects.values_list("name", flat=True))

    Model.objects.create(name="relu")
    for _ in range(3):
        with changes.tables_read() as tables:
            assert names() == ["relu"]
        assert tables == {"dashboard_model"}, "of what was kept, too, the tables are told"
    Job.objects.create(kind="inspect")
    assert names() == ["relu"]
    assert len(asked) == 1
    Model.objects.create(name="softmax")
    assert names() == ["relu", "softmax"]
    with transaction.atomic():
        Model.objects.all().delete()
        assert names() == [], "a transaction sees what it changed"
        transaction.set_rollback(True)
    assert names() == ["relu", "softmax"]
    assert len(asked) == 3
    monkeypatch.setattr(changes, "KEPT_S", 0.0)
    names()
    assert len(asked) == 4, "what was changed without a mark is seen in time"


def test_each_part_of_a_page_names_the_tables_it_was_made_from(relu: Version, as_person: Callable[..., Client]) -> None:
    viewer = as_person("operate", "upload_data")
    reads = {}
    for page in PAGES:
        text = text_of(viewer, page)
        assert "every " not in "".join(re.findall('hx-trigger="([^"]*)"', text)), "parts wait until something changed"
        for region in re.findall(r"<[^>]*data-refresh[^>]*>", text):
            found = re.search('hx-get="([^"]+)"', region)
            assert found is not None
            assert 'hx-trigger="changed' in region
            address = found[1].removesuffix("?")
            reads[address] = set(viewer.get(address, headers={"HX-Request": "true"})[READS_HEADER].split())
    assert all("auth_user" in tables for tables in reads.values()), "of everybody's own rights"
    assert "dashboard_job" in reads["/jobs/"]
    assert "dashboard_job" not in reads["/health"] | reads["/models/"]
    assert reads["/health"] >= {"dashboard_modelstate", "dashboard_serverstate", changes.HEARTBEATS}
    assert "dashboard_auditentry" in reads["/activity/"]
    assert "django_session" not in set().union(*reads.values())


def test_a_page_carries_the_mark_from_before_it_was_read(relu: Version, as_person: Callable[..., Client]) -> None:
    changes.announce("dashboard_model")
    viewer = as_person()
    assert f'data-mark="{changes.mark()}"' in text_of(viewer, "/")
    assert "data-mark" not in text_of(Client(), "/sign-in"), "who is not signed in follows nothing"


def browser(user: Any) -> WebsocketCommunicator:
    client = Client()
    client.force_login(user)
    cookie = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}".encode()
    headers = [(b"origin", b"http://localhost"), (b"host", b"localhost"), (b"cookie", cookie)]
    return WebsocketCommunicator(application, "/ws/changes/", headers=headers)


async def reported(socket: WebsocketCommunicator) -> dict[str, Any]:
    """Return what is told next that is no mere sign of life."""
    while (message := await socket.receive_json_from(PATIENCE_S)) == {"type": "alive"}:
        pass
    found: dict[str, Any] = message
    return found


def test_a_browser_hears_signs_of_life_while_nothing_changes(db: None) -> None:
    socket = browser(get_user_model().objects.create_user("ada"))

    async def scenario() -> None:
        assert (await socket.connect(PATIENCE_S))[0]
        heard = [(await socket.receive_json_from(PATIENCE_S))["type"] for _ in range(3)]
        assert heard == ["mark", "alive", "alive"]
        assert TRAFFIC.websockets["changes"] == 1
        await socket.disconnect(timeout=PATIENCE_S)
        assert TRAFFIC.websockets["changes"] == 0

    async_to_sync(scenario)()


def test_a_browser_gets_the_mark_and_then_each_table_that_changes(db: None) -> None:
    watch = beaten("watch")
    socket = browser(get_user_model().objects.create_user("ada"))

    async def scenario() -> None:
        assert (await socket.connect(PATIENCE_S))[0]
        assert await reported(socket) == {"type": "mark", "mark": changes.mark()}
        changes.announce("dashboard_model")
        first = await reported(socket)
        assert first == {"type": "changed", "mark": changes.mark(), "tables": ["dashboard_model"]}
        changes.announce("dashboard_job")
        assert (await reported(socket))["tables"] == ["dashboard_job"]
        long_ago = time.time() - 2 * heartbeat.SILENT_AFTER_S
        os.utime(watch, (long_ago, long_ago))
        assert (await reported(socket))["tables"] == [changes.HEARTBEATS]
        await socket.disconnect(timeout=PATIENCE_S)

    async_to_sync(scenario)()


def test_nobody_looks_at_the_marks_when_nobody_subscribes() -> None:
    async def scenario() -> None:
        tables = Changes()
        with tables.subscribe(), tables.subscribe():
            looking = [task for task in asyncio.all_tasks() if task.get_name() == "changes of tables"]
            assert len(looking) == 1
        await asyncio.wait(looking, timeout=PATIENCE_S)
        assert looking[0].cancelled()

    asyncio.run(scenario())
