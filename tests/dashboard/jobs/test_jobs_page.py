"""The list of jobs: an upload is one row, and what has ended is forgotten in time."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from dashboard.jobs.services import jobs_forget
from dashboard.models import Job, Upload, Version
from tests.dashboard.conftest import text_of


def rows(client: Client, query: str = "") -> int:
    return text_of(client, f"/jobs/{query}").count('<tr class="linked"')


def test_an_upload_is_one_row_on_its_way_and_afterwards(
    inspected: Callable[..., Upload], as_person: Callable[..., Client]
):
    viewer = as_person()
    upload = inspected()
    page = text_of(viewer, "/jobs/")
    assert "Under way" in page
    assert "Upload to relu" in page
    assert rows(viewer) == 1
    Upload.objects.filter(pk=upload.pk).update(state="failed", error="The file ends too early.")
    page = text_of(viewer, "/jobs/")
    assert "Under way" not in page
    assert "The file ends too early." in page
    assert rows(viewer) == 1


def test_a_published_upload_is_one_row(published: Callable[..., Version], as_person: Callable[..., Client]):
    version = published()
    assert version.upload is not None
    Job.objects.create(
        kind="inspect", title="Inspect relu", state="succeeded", params={"upload": str(version.upload.pk)}
    )  # as its inspection left it: the upload knows its last job alone
    viewer = as_person()
    assert "Publish version 1 of relu" in text_of(viewer, "/jobs/")
    assert rows(viewer) == 1


def test_other_work_is_under_way_and_then_ended(db: None, as_person: Callable[..., Client]):
    job = Job.objects.create(kind="archive", title="Archive version 3", state="running", step="Copying")
    viewer = as_person()
    assert "Under way" in text_of(viewer, "/jobs/")
    assert "Copying" in text_of(viewer, "/jobs/")
    Job.objects.filter(pk=job.pk).update(state="cancelled", finished_at=timezone.now())
    assert "Under way" not in text_of(viewer, "/jobs/")
    assert rows(viewer, "?state=cancelled") == 1
    assert "No job ended in that state" in text_of(viewer, "/jobs/?state=failed")


def test_ended_jobs_are_forgotten_after_some_days(inspected: Callable[..., Upload], settings: Any):
    settings.JOB_DAYS = 14
    upload = inspected()
    now = timezone.now()
    Job.objects.filter(pk=upload.job_id).update(finished_at=now - timedelta(days=15))
    Job.objects.create(kind="archive", state="failed", finished_at=now - timedelta(days=13))
    Job.objects.create(kind="archive", state="running", created_at=now - timedelta(days=40))
    assert jobs_forget() == 1
    assert jobs_forget() == 0
    assert Job.objects.count() == 2
    assert Upload.objects.get(pk=upload.pk).job is None, "the upload stays"
