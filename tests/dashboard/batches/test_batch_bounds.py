"""Batch jobs at their bounds: files that differ from each other, a full disk, a lost source, numbers that JSON lacks."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from django.conf import settings
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.batches import running
from dashboard.batches.formats.table import Answer, Limits
from dashboard.batches.selectors import batch_get
from dashboard.batches.services import batch_create, batch_preview, batch_receive_chunk
from dashboard.models import BatchJob, BatchPart
from dashboard.shared.exceptions import Conflict
from tests.dashboard.batches.conftest import csv_of, result_of
from tests.dashboard.processes import FixedServer

pytestmark = pytest.mark.django_db

Sent = Callable[..., BatchJob]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that an administrator allows."""
    found = tmp_path / "files"
    found.mkdir()
    monkeypatch.setattr(settings, "SOURCE_FOLDERS", [found])
    return found


def error_of(batch: BatchJob) -> str:
    assert batch.job is not None
    assert batch.state == "failed"
    return batch.job.error


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"id,other\n1,2\n", "'b.csv': the file has no column 'INPUT0', which an input needs"),
        (b"INPUT0,OUTPUT0\n1,2\n", "'b.csv': the file has a column 'OUTPUT0'"),
        (b"", "'b.csv': the file is empty"),
        (b'INPUT0\n"1', "'b.csv': the file is not CSV: a quotation mark"),
    ],
)
def test_a_file_unlike_the_first_one_is_refused_by_its_name(
    inference: FixedServer, run: Sent, actor: Actor, folder: Path, content: bytes, reason: str
) -> None:
    (folder / "a.csv").write_bytes(csv_of(3))
    (folder / "b.csv").write_bytes(content)
    batch = batch_create(actor=actor, model_name="scale", source=str(folder))
    assert reason in error_of(run(batch_get(batch.pk, actor)))
    assert not BatchPart.objects.filter(done=True).exists()


def test_a_source_that_goes_away_ends_the_job_and_can_be_continued(
    inference: FixedServer, run: Sent, actor: Actor, folder: Path
) -> None:
    (folder / "a.csv").write_bytes(csv_of(3))
    (folder / "b.csv").write_bytes(csv_of(4))
    batch = batch_get(batch_create(actor=actor, model_name="scale", source=str(folder)).pk, actor)
    shutil.move(folder / "b.csv", folder / "b.away")
    assert "'b.csv' cannot be read any more" in error_of(run(batch))
    shutil.move(folder / "b.away", folder / "b.csv")
    assert result_of(run(batch_get(batch.pk, actor), again=True), 1).count(b"\n") == 5


def test_a_batch_job_of_a_source_takes_no_chunks(inference: FixedServer, actor: Actor, folder: Path) -> None:
    (folder / "a.csv").write_bytes(csv_of(3))
    batch = batch_get(batch_create(actor=actor, model_name="scale", source=str(folder)).pk, actor)
    with pytest.raises(Conflict, match="reads a source"):
        batch_receive_chunk(batch=batch, number=0, offset=batch.files.all()[0].size, chunk=b"", actor=actor)
    assert not list((batch.folder / "inputs").iterdir())


def test_a_full_disk_ends_the_job_without_a_rest_and_the_job_can_be_continued(
    inference: FixedServer, sent: Sent, run: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PART", Limits(rows=50, size=1 << 20))
    fsync, calls = running.os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(running.os, "fsync", full)
    batch = run(sent("scale", csv_of(300)))
    assert "needed on the disk" in error_of(batch)
    assert not list(batch.folder.glob("*/*.tmp"))
    lines = result_of(run(batch, again=True)).decode().splitlines()
    assert lines[1:] == [f"row {at},{at},{2.0 * at}," for at in range(300)]


def test_numbers_that_json_lacks_are_shown_as_words(
    inference: FixedServer, sent: Sent, api: APIClient, run: Sent
) -> None:
    content = b'{"INPUT0": NaN, "more": [Infinity, "\\ud800"]}\n{"INPUT0": 1}\n'
    batch = sent("scale", content, "rows.jsonl")
    shown = api.post(f"/api/v1/batches/{batch.pk}/preview", {})
    assert shown.status_code == 200
    assert shown.json()["rows"][0]["values"] == {"INPUT0": "NaN", "more": ["Infinity", "\\ud800"]}
    assert shown.json()["rows"][0]["answer"] == ["NaN"]
    rows = [json.loads(line) for line in result_of(run(batch)).splitlines()]
    assert rows[0]["OUTPUT0"] == "NaN"
    assert rows[1] == {"INPUT0": 1, "OUTPUT0": 2.0}


def test_a_row_larger_than_a_chunk_is_previewed(inference: FixedServer, sent: Sent, actor: Actor) -> None:
    batch = sent("words", b"INPUT0\n" + b"x" * (2 << 20) + b"\n")
    assert len(batch_preview(batch=batch, actor=actor).rows) == 1


def test_an_answer_that_never_comes_in_time_ends_the_wait(inference: FixedServer, sent: Sent) -> None:
    answers: Future[list[Answer]] = Future()
    answers.set_exception(TimeoutError())
    with pytest.raises(TimeoutError):
        running._Run._wait(None, answers)  # type: ignore[arg-type]
