"""A file goes through a model that serves: every row comes back once, in its order, whatever happens meanwhile."""

import csv
import io
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import VIEWERS, Actor
from dashboard.batches import running
from dashboard.batches.formats.table import Limits
from dashboard.batches.selectors import batch_get
from dashboard.batches.services import batch_create, batch_preview, batch_remove, batch_start, batches_expire
from dashboard.jobs.context import JobCancelled, JobContext
from dashboard.jobs.runner import job_run
from dashboard.models import AuditEntry, BatchJob, BatchPart, Job, Model, Server, Version
from dashboard.servers.selectors import server_get
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, NotFound
from tests.dashboard.batches.conftest import csv_of, mapping_of, result_of
from tests.dashboard.conftest import text_of
from tests.dashboard.processes import FixedServer, server_client

pytestmark = pytest.mark.django_db

Sent = Callable[..., BatchJob]


def rows_of(batch: BatchJob) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(result_of(batch).decode())))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PART", Limits(rows=50, size=1 << 20))


def test_every_row_is_answered_in_its_order(inference: FixedServer, sent: Sent, run: Sent) -> None:
    batch = run(sent("scale", csv_of(333)))
    rows = rows_of(batch)
    assert [row["id"] for row in rows] == [f"row {at}" for at in range(333)]
    assert [float(row["OUTPUT0"]) for row in rows] == [2.0 * at for at in range(333)]
    assert {row["error"] for row in rows} == {""}
    assert (batch.rows, batch.rows_done, batch.error_rows) == (333, 333, 0)
    assert mapping_of(batch) == {"INPUT0": ["INPUT0"]}
    assert not BatchPart.objects.exists()
    assert not (batch.folder / "inputs").exists()
    assert batch.job is not None
    assert batch.job.result == {"batch": str(batch.pk), "done": 333, "refused": 0}


def test_the_chosen_server_answers(
    inference: FixedServer, sent: Sent, run: Sent, as_person: Callable[..., Client], actor: Actor
) -> None:
    nobody = {"http_url": "http://127.0.0.1:1", "grpc_url": "127.0.0.1:1", "metrics_url": "http://127.0.0.1:1"}
    Server.objects.update(**nobody)
    Server.objects.create(name="other", **inference.addresses())
    with pytest.raises(NotFound, match="there is no server named 'none'"):
        batch_start(batch=sent("scale", csv_of(3)), actor=actor, server="none")
    batch = sent("scale", csv_of(60))
    page = as_person("operate")
    assert '<option value="local" selected>local, production</option>' in text_of(page, f"/batches/{batch.pk}/")
    batch = run(batch, server="other")
    assert [float(row["OUTPUT0"]) for row in rows_of(batch)] == [2.0 * at for at in range(60)]
    assert "answered by version 1 on other" in text_of(page, f"/batches/{batch.pk}/")
    assert page.get(f"/api/v1/batches/{batch.pk}").json()["server"] == "other"


def test_jsonl_and_texts_go_through_as_well(inference: FixedServer, sent: Sent, run: Sent) -> None:
    lines = [{"words": f"größe {at}", "more": [at]} for at in range(120)]
    batch = run(sent("words", "\n".join(map(json.dumps, lines)).encode(), "rows.jsonl"), mapping={"INPUT0": ["words"]})
    found = [json.loads(line) for line in result_of(batch).splitlines()]
    assert found == [{**line, "OUTPUT0": line["words"]} for line in lines]


def test_rows_that_the_model_refuses_are_kept_with_their_reasons(inference: FixedServer, sent: Sent, run: Sent) -> None:
    content = csv_of(40, "x").replace(b",7\n", b",word\n").replace(b",3\n", b",300\n")
    batch = run(sent("pick", content), most_errors=100)
    rows = rows_of(batch)
    assert [row["y"] for row in rows[:3]] == ["100", "101", "102"]
    assert rows[3]["y"] == ""
    assert "300" in rows[3]["error"] or "index" in rows[3]["error"].lower()
    assert rows[7]["error"] == "'x': expected INT64"
    assert [bool(row["error"]) for row in rows[:10]] == [at in (3, 7) for at in range(10)]
    assert batch.error_rows == 32
    assert "300" not in batch.job.log + batch.job.step  # type: ignore[union-attr]


def test_too_many_refused_rows_end_the_job_and_a_higher_bound_continues_it(
    inference: FixedServer, sent: Sent, run: Sent, actor: Actor, as_person: Callable[..., Client]
) -> None:
    # Two parts are under way at a time: the first two have no refused row, so that one of them is stored in any case.
    content = b"id,x\n" + b"".join(b"row %d,%d\n" % (at, at % 10 if at < 100 else at) for at in range(200))
    batch = run(sent("pick", content), most_errors=45)
    assert batch.state == "failed"
    assert "at most 45 may be" in batch.job.error  # type: ignore[union-attr]
    before = BatchPart.objects.filter(done=True).count()
    assert before >= 1
    found = APIClient()
    found.force_authenticate(actor.user)
    [reason, *_] = found.get(f"/api/v1/batches/{batch.pk}").json()["reasons"]
    assert "out of data bounds" in reason
    page = as_person("operate")
    assert "Why rows were refused" in text_of(page, f"/batches/{batch.pk}/")
    assert "out of data bounds" in text_of(page, f"/batches/{batch.pk}/")
    batch = run(batch, again=True, most_errors=1000)
    rows = rows_of(batch)
    assert [bool(row["error"]) for row in rows] == [at >= 100 for at in range(200)]
    assert (batch.rows_done, batch.error_rows) == (200, 100)
    assert "Why rows were refused" not in text_of(page, f"/batches/{batch.pk}/"), "the result has them"


def test_a_cancelled_job_continues_where_it_stopped(
    inference: FixedServer, sent: Sent, run: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = sent("scale", csv_of(500))
    tell = running._Run._tell

    def cancelled(self: Any) -> None:
        tell(self)
        # A slow machine tells often before the first part is stored.
        if BatchPart.objects.filter(done=True).count() >= 2:
            raise JobCancelled

    monkeypatch.setattr(running._Run, "_tell", cancelled)
    batch = run(batch)
    assert batch.state == "cancelled"
    done = set(BatchPart.objects.filter(done=True).values_list("number", flat=True))
    assert 1 <= len(done) < 10
    monkeypatch.setattr(running._Run, "_tell", tell)
    batch = run(batch, again=True)
    assert [float(row["OUTPUT0"]) for row in rows_of(batch)] == [2.0 * at for at in range(500)]


def test_a_server_that_goes_and_comes_back_is_waited_for(
    inference: FixedServer, sent: Sent, run: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = sent("scale", csv_of(1000))
    steps: list[str] = []
    progress = JobContext.progress

    def note(self: JobContext, percent: float, step: str = "") -> None:
        steps.append(step)
        progress(self, percent, step)

    monkeypatch.setattr(JobContext, "progress", note)
    store, stored = running._Run._store, []
    starter = threading.Thread(target=lambda: come_back())

    def kill(self: Any, waiting: Any) -> None:
        store(self, waiting)
        stored.append(waiting.part.number)
        if len(stored) == 3:
            inference.kill()
            starter.start()

    def come_back() -> None:
        wait = threading.Event()
        while not any("Waiting" in step for step in steps):
            wait.wait(0.05)
        inference.start("--load-model=scale")

    monkeypatch.setattr(running._Run, "_store", kill)
    batch = run(batch)
    starter.join()
    assert [float(row["OUTPUT0"]) for row in rows_of(batch)] == [2.0 * at for at in range(1000)]
    assert any("does not answer" in step for step in steps)


@pytest.mark.parametrize("gone", ["archived", "deleted"])
def test_a_version_that_cannot_come_back_by_itself_is_not_waited_for(
    inference: FixedServer, sent: Sent, run: Sent, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    batch = sent("scale", csv_of(1000))
    store = running._Run._store

    def lose(self: Any, waiting: Any) -> None:
        store(self, waiting)
        server_client(server_get("local")).unload("scale")
        if gone == "archived":
            Version.objects.filter(model__name="scale").update(state="archived")
        else:
            Model.objects.filter(name="scale").delete()

    monkeypatch.setattr(running._Run, "_store", lose)
    batch = run(batch)
    assert batch.job is not None
    assert batch.state == "failed"
    assert (
        batch.job.error
        == {
            "archived": "version 1 of 'scale' is archived: restore it, or choose another version",
            "deleted": "there is no model named 'scale'",
        }[gone]
    )
    assert batch.rows_done >= 50


def test_a_batch_job_is_not_started_with_an_archived_version(inference: FixedServer, sent: Sent, actor: Actor) -> None:
    batch = sent("scale", csv_of(3))
    Version.objects.filter(model__name="scale").update(state="archived")
    with pytest.raises(Conflict, match="is archived: restore it"):
        batch_start(batch=batch, actor=actor, version="1")


def test_a_model_that_is_unloaded_is_waited_for(inference: FixedServer, sent: Sent, actor: Actor) -> None:
    server = server_get("local")
    server_client(server).unload("scale")
    batch = sent("scale", csv_of(10))
    preview = batch_preview(batch=batch, actor=actor, ask=False)
    assert preview.problems == []
    assert "the first rows were not answered" in batch_preview(batch=batch, actor=actor).problems[0]
    job = batch_start(batch=batch, actor=actor)
    timer = threading.Timer(1.0, lambda: server_client(server).load("scale"))
    timer.start()
    job_run(job_id=job.pk)
    timer.join()
    assert len(rows_of(batch_get(batch.pk, actor))) == 10


def test_the_first_rows_are_answered_before_the_start(inference: FixedServer, sent: Sent, actor: Actor) -> None:
    preview = batch_preview(batch=sent("scale", csv_of(100)), actor=actor)
    assert preview.columns == ["id", "INPUT0"]
    assert [answer.values for answer in preview.answers] == [[2.0 * at] for at in range(5)]
    assert preview.version == "1"
    other = batch_preview(batch=sent("scale", b"a,b\n1,2\n"), actor=actor)
    assert other.problems == ["input 'INPUT0' (FP32, [1]) needs a column: choose one"]
    assert other.answers == []


def test_a_folder_that_an_administrator_allows_is_read(
    inference: FixedServer, run: Sent, actor: Actor, tmp_path: Any
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "b.csv").write_bytes(csv_of(60))
    (folder / "a.csv").write_bytes(csv_of(70))
    with pytest.raises(Forbidden, match="SLIPWAY_SOURCE_FOLDERS"):
        batch_create(actor=actor, model_name="scale", source=str(folder))
    settings.SOURCE_FOLDERS = [folder]
    try:
        batch = batch_create(actor=actor, model_name="scale", source=str(folder))
        assert [file.name for file in batch.files.all()] == ["a.csv", "b.csv"]
        with pytest.raises(Forbidden):
            batch_create(actor=actor, model_name="scale", source=f"{folder}/../other")
        batch = run(batch_get(batch.pk, actor))
        assert result_of(batch, 0).count(b"\n") == 71
        assert result_of(batch, 1).count(b"\n") == 61
    finally:
        settings.SOURCE_FOLDERS = []


def test_a_batch_job_belongs_to_the_person_who_made_it(
    inference: FixedServer, sent: Sent, person: Callable[..., Any], actor: Actor
) -> None:
    mine, other = Actor(user=person()), Actor(user=person())
    batch = sent("scale", csv_of(3), by=mine)
    assert batch_get(batch.pk, actor) == batch  # an operator sees the data of clients
    with pytest.raises(NotFound):
        batch_get(batch.pk, other)
    viewer = Actor(user=person())
    assert viewer.user is not None
    viewer.user.groups.add(Group.objects.get(name=VIEWERS))
    with pytest.raises(Forbidden):
        batch_create(actor=viewer, model_name="scale", files=[{"path": "a.csv", "size": 1}])
    with pytest.raises(Forbidden):
        batch_create(actor=mine, model_name="scale", source="/anywhere")


def test_a_second_batch_job_waits_until_the_first_has_ended(inference: FixedServer, sent: Sent, actor: Actor) -> None:
    first, second = sent("scale", csv_of(3)), sent("scale", csv_of(3))
    jobs = [batch_start(batch=batch, actor=actor) for batch in (first, second)]
    Job.objects.filter(pk=jobs[0].pk).update(state="running", started_at=timezone.now())
    job_run(job_id=jobs[1].pk)
    waiting = batch_get(second.pk, actor)
    assert waiting.job is not None
    assert (waiting.state, waiting.job.step) == (
        "queued",
        f"Waits until job {jobs[0].pk} has ended: Batch job for scale: rows.csv",
    )
    Job.objects.filter(pk=jobs[0].pk).update(state="succeeded")
    job_run(job_id=jobs[1].pk)
    assert batch_get(second.pk, actor).state == "succeeded"


def test_a_batch_job_is_removed_with_its_files(inference: FixedServer, sent: Sent, actor: Actor) -> None:
    first, second = sent("scale", csv_of(3)), sent("scale", csv_of(3))
    batch_start(batch=first, actor=actor)
    with pytest.raises(Conflict, match="cancel it first"):
        batch_remove(batch=batch_get(first.pk, actor), actor=actor)
    batch_remove(batch=second, actor=actor)
    assert not second.folder.exists()
    assert AuditEntry.objects.filter(action="batch.remove").count() == 1


def test_old_batch_jobs_are_removed_and_those_under_way_stay(
    inference: FixedServer, sent: Sent, run: Sent, actor: Actor
) -> None:
    ended, waiting = run(sent("scale", csv_of(3))), sent("scale", csv_of(3))
    batch_start(batch=waiting, actor=actor)
    assert batches_expire() == 0
    settings.BATCH_BYTES, before = 1, settings.BATCH_BYTES
    try:
        assert batches_expire() == 1
    finally:
        settings.BATCH_BYTES = before
    assert not ended.folder.exists()
    assert list(BatchJob.objects.all()) == [waiting]


def test_a_file_without_rows_has_an_empty_result(inference: FixedServer, sent: Sent, run: Sent) -> None:
    batch = run(sent("scale", b"INPUT0\n"))
    assert result_of(batch) == b"INPUT0,OUTPUT0,error\n"


def test_a_file_of_another_kind_is_refused_at_its_announcement(inference: FixedServer, actor: Actor) -> None:
    with pytest.raises(Invalid, match=r"rows\.xlsx"):
        batch_create(actor=actor, model_name="scale", files=[{"path": "rows.xlsx", "size": 3}])
