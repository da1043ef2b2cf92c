"""What the pages show of publishing, archiving and restoring a large version: each step, how to stop it, how it ended."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from dashboard.jobs.runner import job_run
from dashboard.jobs.services import job_cancel
from dashboard.models import Job, Upload, Version
from tests.dashboard.conftest import as_inspected, relu_bytes, text_of


@pytest.fixture
def owner(actor: Any) -> Client:
    client = Client()
    client.force_login(actor.user)
    return client


@pytest.fixture
def to_a_worker(settings: Any, monkeypatch: pytest.MonkeyPatch, relu: Version) -> None:
    """Treat every version from now on as large, and the archive as on another disk."""
    settings.AT_ONCE_BYTES = 0
    monkeypatch.setattr("repository.files.storage.same_disk", lambda one, other: False)


@pytest.fixture
def publishing(to_a_worker: None, received: Callable[..., Upload], owner: Client) -> Upload:
    """Version 2, asked for on its page."""
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    asked = {"text": upload.proposal["config"] + "# reviewed\n", "note": "typed", "after": "keep"}
    owner.post(f"/uploads/{upload.pk}/publish", asked)
    upload.refresh_from_db()
    return upload


def test_the_page_of_an_upload_shows_the_step_that_publishing_is_at(publishing: Upload, owner: Client) -> None:
    path = f"/uploads/{publishing.pk}/"
    page = text_of(owner, path)
    assert "Publishing version 2" in page
    assert "Waiting for a worker" in page
    Job.objects.filter(pk=publishing.job_id).update(state="running", step="Hashing", progress=40)
    page = text_of(owner, path)
    assert "<span>Hashing</span>" in page
    assert "Version 2, 40 %" in page
    assert "Cancel publishing" in page
    assert "Cancel upload" not in page
    for place in ("/models/relu/versions", f"/jobs/{publishing.job_id}/", "/jobs/"):
        assert "Publish version 2 of relu" in text_of(owner, place)


def test_what_was_cancelled_can_be_published_again_as_it_was_typed(publishing: Upload, owner: Client) -> None:
    path = f"/uploads/{publishing.pk}/"
    assert owner.post(f"/jobs/{publishing.job_id}/cancel", {"next": path})["Location"] == path
    page = text_of(owner, path)
    assert "Nothing was published: Publishing was cancelled." in page
    assert "# reviewed" in page
    assert 'value="typed"' in page
    assert 'value="keep" checked' in page
    assert "Publish version 3" in page


def test_nobody_else_is_offered_to_stop_it(publishing: Upload, as_person: Callable[..., Client]) -> None:
    assert "Cancel publishing" not in text_of(as_person("upload_data"), f"/uploads/{publishing.pk}/")
    assert "Cancel publishing" in text_of(as_person("operate"), f"/uploads/{publishing.pk}/")


@pytest.mark.usefixtures("to_a_worker")
def test_archiving_a_large_version_is_shown_where_the_versions_are(
    publishing: Upload, owner: Client, actor: Any
) -> None:
    job_run(job_id=publishing.job_id)
    said = owner.post("/models/relu/versions/2/archive", follow=True).content.decode()
    assert "Archive version 2 of relu: under way." in said
    job = Job.objects.get(kind="archive")
    page = text_of(owner, "/models/relu/versions")
    assert f'href="/jobs/{job.pk}/">Archive version 2 of relu' in page
    assert '<span class="tag">moving</span>' in page
    job_cancel(job=job, actor=actor)
    assert "Archive version 2 of relu" not in text_of(owner, "/models/relu/versions")
