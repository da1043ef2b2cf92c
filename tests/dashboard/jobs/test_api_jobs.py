"""Over REST, work that takes long is a job to wait for; work that is short answers with what it made."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from dashboard.jobs.runner import job_run
from dashboard.models import Model, Upload, Version
from repository.core.errors import NoSpace
from tests.dashboard.conftest import as_inspected, relu_bytes
from tests.dashboard.web.test_api import url

pytestmark = pytest.mark.django_db


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    return published(load=True).model


def test_large_work_is_a_job_to_wait_for(
    api: APIClient, model: Model, received: Callable[..., Upload], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AT_ONCE_BYTES = 0
    monkeypatch.setattr("repository.files.storage.same_disk", lambda one, other: False)
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    for path, result in (
        (f"uploads/{upload.pk}/publish", {"load": False}),
        ("models/relu/versions/2/archive", {}),
        ("models/relu/versions/2/restore", {}),
    ):
        answer = api.post(url(path), result)
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        assert answer["Location"] == url(f"jobs/{answer.json()['id']}")
        job_run(job_id=answer.json()["id"])
        job = api.get(answer["Location"]).json()
        assert (job["state"], job["progress"], job["result"]) == ("succeeded", 100, {"model": "relu", "version": 2})
    assert api.get(url("models/relu/versions/2")).json()["state"] == "published"


def test_work_that_failed_at_once_answers_with_its_own_status(
    api: APIClient, received: Callable[..., Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **more: Any) -> None:
        raise NoSpace(100 << 20, 1 << 20, 1 << 30)

    monkeypatch.setattr("repository.files.publish.stage_version", full)
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    answer = api.post(url(f"uploads/{upload.pk}/publish"), {})
    assert answer.status_code == 507
    assert "1 MiB are free in addition to the 1,024 MiB that are kept" in answer.json()["error"]
    again = api.get(url(f"uploads/{upload.pk}")).json()
    assert (again["state"], again["error"]) == ("inspected", answer.json()["error"])
