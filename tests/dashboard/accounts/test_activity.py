"""Activity on its page, over REST and as a file: people, servers and failures in one order of time."""

import csv
import io
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access import audit
from dashboard.access.happenings import Filter, Happenings, changes, happenings
from dashboard.models import AuditEntry, Job, Model, Server, ServerEvent
from tests.dashboard.conftest import text_of

NOON = datetime(2025, 6, 10, 12, tzinfo=timezone.get_default_timezone())


@pytest.fixture
def history(server: Server) -> Server:
    """An hour of digits: published, failed to load, a crash, and an upload that could not be inspected."""
    model = Model.objects.create(name="digits")

    def at(minutes: int) -> datetime:
        return NOON + timedelta(minutes=minutes)

    AuditEntry.objects.create(
        at=at(0), actor_name="maria", action="version.publish", model=model, model_name="digits", summary="Published version 2",
    )  # fmt: skip
    ServerEvent.objects.create(
        server=server, at=at(1), kind="model_failed", model_name="digits", message="The file ends too early."
    )
    ServerEvent.objects.create(server=server, at=at(2), kind="crashed", message="It was killed by SIGKILL.")
    ServerEvent.objects.create(server=server, at=at(3), kind="restarted", message="It is back.")
    Job.objects.create(
        kind="inspect", title="Inspect ghost", state="failed", error="no model file", finished_at=at(4), model=model
    )
    AuditEntry.objects.create(at=at(5), actor_name="maria", action="token.create", summary="Made a token")
    AuditEntry.objects.create(
        at=at(6), actor_name="tom", action="config.apply", model=model, model_name="digits", summary="Changed the batch size",
        before={"text": "a: 1\nb: 2\n", "revision": 1}, after={"text": "a: 1\nb: 3\n", "revision": 2},
    )  # fmt: skip
    return server


def texts(rows: Happenings) -> list[str]:
    return [row.text for row in rows]


ALL = [
    "Changed the batch size",
    "Made a token",
    "Inspect ghost failed: no model file",
    "It is back.",
    "It was killed by SIGKILL.",
    "The file ends too early.",
    "Published version 2",
]


def test_all_that_happened_is_in_one_order_of_time_on_every_page_of_it(history: Server):
    rows = happenings(Filter())
    assert len(rows) == len(ALL)
    assert texts(rows) == ALL
    assert [[row.text for row in rows[start : start + 3]] for start in (0, 3, 6)] == [ALL[:3], ALL[3:6], ALL[6:]]
    assert [rows.newer_than(row.source, row.pk) for row in rows] == list(range(len(ALL)))


def test_rows_of_one_moment_have_one_order(server: Server):
    for number in range(3):
        AuditEntry.objects.create(at=NOON, actor_name="maria", action="model.load", summary=f"entry {number}")
        ServerEvent.objects.create(at=NOON, server=server, kind="started", message=f"event {number}")
    rows = happenings(Filter())
    assert texts(rows) == ["entry 2", "entry 1", "entry 0", "event 2", "event 1", "event 0"]
    assert [rows[place].text for place in range(6)] == texts(rows)
    assert [rows.newer_than(row.source, row.pk) for row in rows] == list(range(6))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"what": "failures"}, [2, 4, 5]),
        ({"what": "people"}, [0, 1, 6]),
        ({"what": "servers"}, [3, 4, 5]),
        ({"what": "crashed"}, [4]),
        ({"what": "version.publish"}, [6]),
        ({"what": "job.failed"}, [2]),
        ({"who": "maria"}, [1, 6]),
        ({"who": "local"}, [3, 4, 5]),
        ({"model": "digits"}, [0, 2, 5, 6]),
        ({"text": "VERSION digits"}, [6]),
        ({"text": "sigkill"}, [4]),
        ({"since": NOON + timedelta(minutes=5)}, [0, 1]),
        ({"until": NOON + timedelta(minutes=1)}, [6]),
        ({"what": "failures", "model": "digits", "text": "early"}, [5]),
    ],
)
def test_a_filter_finds(history: Server, wanted: dict[str, Any], found: list[int]):
    assert texts(happenings(Filter(**wanted))) == [ALL[place] for place in found]


def test_what_changed_last_has_crashes_and_failed_loads_but_no_tokens(
    history: Server, as_person: Callable[..., Client]
):
    assert texts(changes()) == [ALL[0], ALL[4], ALL[5], ALL[6]]
    page = text_of(as_person(), "/")
    assert "It was killed by SIGKILL." in page
    assert "The file ends too early." in page
    assert "Made a token" not in page
    assert "Made a token" in text_of(as_person(), "/activity/")


def test_a_changed_text_is_shown_as_a_difference(history: Server, as_person: Callable[..., Client]):
    page = text_of(as_person(), "/activity/?what=config.apply")
    assert '<span class="del">-b: 2</span><span class="add">+b: 3</span>' in page
    assert "Published version 2" not in page


def test_a_row_has_an_address_that_finds_its_page(history: Server, as_person: Callable[..., Client]):
    for number in range(120):
        AuditEntry.objects.create(
            actor_name="maria", action="model.load", model_name="digits", summary=f"load {number}"
        )
    client = as_person()
    oldest = AuditEntry.objects.order_by("at").first()
    assert oldest is not None
    answer = client.get(f"/activity/entry-{oldest.pk}?model=digits")
    assert answer["Location"] == f"/models/digits/activity?page=3#entry-{oldest.pk}"
    assert f'id="entry-{oldest.pk}"' in text_of(client, "/models/digits/activity?page=3")
    assert "no such entry" in text_of(client, "/activity/entry-999999", status=404)
    assert "no such entry" in text_of(client, "/activity/nothing-1", status=404)


def test_what_fits_the_filter_is_exported(history: Server, as_person: Callable[..., Client]):
    AuditEntry.objects.create(actor_name="maria", action="model.describe", summary="=1+1")
    client = as_person()
    answer = client.get("/activity/export.csv?q=batch")
    assert answer["Content-Type"].startswith("text/csv")
    assert 'attachment; filename="slipway-activity-' in answer["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [(row["who"], row["kind"], row["text"]) for row in rows] == [
        ("tom", "config.apply", "Changed the batch size")
    ]
    assert json.loads(rows[0]["after"])["revision"] == 2
    sheet = list(csv.DictReader(io.StringIO(client.get("/activity/export.csv").content.decode())))
    assert sheet[0]["text"] == "'=1+1", "no spreadsheet takes it for a formula"
    everything = json.loads(client.get("/activity/export.json").content)
    assert [row["text"] for row in everything] == ["=1+1", *ALL]
    assert [row["id"] for row in everything if row["failed"]] == [row["id"] for row in everything][3:4] + [
        row["id"] for row in everything
    ][5:7]


def test_a_date_that_is_none_is_said(history: Server, as_person: Callable[..., Client], api: APIClient):
    assert "expected &#x27;from&#x27; as a date" in text_of(
        as_person(), "/activity/?from=yesterday", status=400
    ).replace("Expected", "expected")
    assert api.get("/api/v1/activity", {"to": "2025-13-01"}).status_code == 400
    assert "Published version 2" in text_of(as_person(), "/activity/?from=2025-06-10&to=2025-06-10")
    assert "Published version 2" not in text_of(as_person(), "/activity/?from=2025-06-11")
    assert "Published version 2" not in text_of(as_person(), "/activity/?to=2025-06-09")


def test_the_events_are_read_over_rest(history: Server, api: APIClient):
    answer = api.get("/api/v1/activity", {"what": "failures", "page_size": 2}).json()
    assert answer["count"] == 3
    assert [row["text"] for row in answer["results"]] == [ALL[2], ALL[4]]
    assert {row["failed"] for row in answer["results"]} == {True}
    assert api.get("/api/v1/activity", {"from": "2025-06-10T12:05:00Z"}).json()["count"] == 2


def test_the_audit_trail_takes_moments_over_rest(history: Server, api: APIClient) -> None:
    def summaries(**query: str) -> list[str]:
        return [row["summary"] for row in api.get("/api/v1/audit", query).json()["results"]]

    assert summaries(**{"from": "2025-06-10T12:05:00Z", "to": "2025-06-10T12:06:00Z"}) == ["Made a token"]
    assert summaries(to="2025-06-10", model="digits") == ["Changed the batch size", "Published version 2"]
    assert api.get("/api/v1/audit", {"from": "soon"}).status_code == 400


@pytest.mark.django_db
def test_a_program_copies_the_trail_from_where_it_stopped(api: APIClient) -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    start = AuditEntry.objects.order_by("pk").values_list("pk", flat=True).last() or 0
    for number in range(5):
        AuditEntry.objects.create(at=long_ago, actor_name="maria", action="x", summary=str(number))
    AuditEntry.objects.create(actor_name="maria", action="x", summary="perhaps before one that is not committed yet")
    copied: list[str] = []
    while rows := api.get("/api/v1/audit", {"after": start, "page_size": 2}).json()["results"]:
        copied += [row["summary"] for row in rows]
        start = rows[-1]["id"]
    assert copied == ["0", "1", "2", "3", "4"]
    for wrong in ("-1", "x", "9" * 30):
        assert api.get("/api/v1/audit", {"after": wrong}).status_code == 400


@pytest.mark.django_db
def test_the_audit_trail_is_kept_as_long_as_the_setting_says(
    settings: Any, monkeypatch: pytest.MonkeyPatch, as_person: Callable[..., Client]
) -> None:
    now = timezone.now()
    for days in (1, 29, 31, 32, 400):
        AuditEntry.objects.create(at=now - timedelta(days=days), actor_name="maria", action="x", summary=str(days))
    kept = AuditEntry.objects.filter(action="x").values_list("summary", flat=True)
    assert (audit.audit_forget(), kept.count()) == (0, 5)
    assert "is kept for" not in text_of(as_person(), "/activity/")
    settings.AUDIT_DAYS = 30
    monkeypatch.setattr(audit, "_AT_ONCE", 2)
    assert (audit.audit_forget(), list(kept)) == (3, ["1", "29"])
    assert "What people did is kept for 30 days." in text_of(as_person(), "/activity/")
