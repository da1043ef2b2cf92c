"""Batch jobs over REST and on their pages: make, send, preview, start, download, remove."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.jobs.runner import job_run
from dashboard.models import BatchJob
from tests.dashboard.batches.conftest import csv_of
from tests.dashboard.conftest import text_of
from tests.dashboard.processes import FixedServer

pytestmark = pytest.mark.django_db


def body_of(answer: Any) -> bytes:
    async def whole() -> bytes:
        return b"".join([piece async for piece in cast("AsyncIterator[bytes]", answer.streaming_content)])

    return asyncio.run(whole())


def test_a_file_goes_through_over_rest(inference: FixedServer, api: APIClient) -> None:
    content = csv_of(20)
    made = api.post("/api/v1/batches", {"model_name": "scale", "files": [{"path": "rows.csv", "size": len(content)}]})
    assert made.status_code == 201, made.content
    address = f"/api/v1/batches/{made.json()['id']}"
    assert made.json()["state"] == "receiving"
    assert api.post(f"{address}/preview", {}).status_code == 409
    for offset in (0, 100):
        chunk = content[offset : 100 if offset == 0 else None]
        sent = api.put(f"{address}/files/0?offset={offset}", chunk, content_type="application/octet-stream")
        assert sent.json()["received"] == offset + len(chunk)
    wrong = api.put(f"{address}/files/0?offset=5", b"x", content_type="application/octet-stream")
    assert (wrong.status_code, wrong.json()["received"]) == (409, len(content))
    shown = api.post(f"{address}/preview", {}).json()
    assert shown["inputs"][0]["columns"] == ["INPUT0"]
    assert [row["answer"] for row in shown["rows"]] == [[2.0 * at] for at in range(5)]
    started = api.post(f"{address}/start", {"mapping": {"INPUT0": ["INPUT0"]}, "most_errors": 0})
    assert started.status_code == 202, started.content
    job_run(job_id=started.json()["id"])
    found = api.get(address).json()
    assert (found["state"], found["rows_done"], found["error_rows"]) == ("succeeded", 20, 0)
    result = api.get(f"{address}/files/0/result")
    assert "rows_answered.csv" in result["Content-Disposition"]
    assert body_of(result).splitlines()[20] == b"row 19,19,38.0,"
    assert api.get("/api/v1/batches?model=scale").json()["count"] == 1
    assert api.delete(address).status_code == 204
    assert api.get(address).status_code == 404


def test_another_person_does_not_see_a_batch_job(
    inference: FixedServer, person: Callable[..., Any], api: APIClient
) -> None:
    other = APIClient()
    other.force_authenticate(person())
    made = api.post("/api/v1/batches", {"model_name": "scale", "files": [{"path": "rows.csv", "size": 3}]}).json()
    assert other.get(f"/api/v1/batches/{made['id']}").status_code == 404
    assert other.get("/api/v1/batches").json()["count"] == 0
    assert api.get("/api/v1/batches").json()["count"] == 1


def test_the_pages_show_a_batch_job_from_its_file_to_its_result(
    inference: FixedServer, as_person: Callable[..., Client], sent: Callable[..., BatchJob]
) -> None:
    client = as_person(name="ines")
    person = Actor(user=user("ines"))
    assert "No batch jobs yet" in text_of(client, "/models/scale/batches")
    batch = sent("scale", csv_of(9), by=person)
    page = f"/batches/{batch.pk}/"
    assert "Version 1 answers" in text_of(client, page)
    asked = client.post(f"{page}preview", {"input.INPUT0": "=INPUT0"}).content.decode()
    assert '<td class="mono">8.0</td>' in asked
    refused = client.post(f"{page}start", {"input.INPUT0": ""})
    assert refused.status_code == 400
    assert "needs a column" in refused.content.decode()
    assert client.post(f"{page}start", {"input.INPUT0": "=INPUT0", "most_errors": "5"}).status_code == 302
    assert "Waiting for a worker" in text_of(client, page)
    batch.refresh_from_db()
    assert batch.job_id is not None
    assert page in text_of(client, f"/jobs/{batch.job_id}/")
    job_run(job_id=batch.job_id)
    done = text_of(client, page)
    assert "9 rows, 0 refused" in done
    assert f"/api/v1/batches/{batch.pk}/files/0/result" in done
    assert "rows.csv" in text_of(client, "/models/scale/batches")


def test_the_person_who_started_a_batch_job_may_cancel_it(
    inference: FixedServer, as_person: Callable[..., Client], sent: Callable[..., BatchJob]
) -> None:
    client = as_person(name="ines")
    batch = sent("scale", csv_of(9), by=Actor(user=user("ines")))
    client.post(f"/batches/{batch.pk}/start", {})
    batch.refresh_from_db()
    client.post(f"/jobs/{batch.job_id}/cancel")
    assert BatchJob.objects.select_related("job").get().state == "cancelled"
    assert "Continue" in text_of(client, f"/batches/{batch.pk}/")


def user(name: str) -> Any:
    return get_user_model().objects.get(username=name)
