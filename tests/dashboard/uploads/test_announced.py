"""Bytes that are announced and never sent are bounded, listed in short, and given back."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.models import Upload, UploadFile
from dashboard.shared.exceptions import Conflict
from dashboard.uploads import services
from dashboard.uploads.services import Announced, upload_cancel, upload_create, uploads_expire

pytestmark = pytest.mark.django_db

UPLOADS = "/api/v1/uploads"


def names(count: int, length: int = 100) -> list[dict[str, Any]]:
    return [{"path": f"{number}{'n' * length}.onnx", "size": 1} for number in range(count)]


def test_a_list_does_not_grow_with_the_names_of_files(api: APIClient, actor: Actor) -> None:
    for number in range(2):
        upload_create(actor=actor, model_name=f"m{number}", files=names(services.MAX_FILES))
    answer = api.get(UPLOADS)
    assert len(answer.content) < 5000
    assert [row["file_count"] for row in answer.json()["results"]] == [services.MAX_FILES] * 2
    assert answer.json()["results"][0]["size_bytes"] == services.MAX_FILES
    detail = api.get(f"{UPLOADS}/{answer.json()['results'][0]['id']}").json()
    assert len(detail["files"]) == services.MAX_FILES


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (Announced(2, 1000, 100_000), "3 uploads"),
        (Announced(10, 20, 100_000), "30 names of files"),
        (Announced(10, 1000, 2500), "characters of names"),
    ],
)
def test_a_person_announces_so_much_and_others_go_on(
    actor: Actor, person: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, limit: Announced, said: str
) -> None:
    monkeypatch.setattr(services, "OF_A_PERSON", limit)
    first = upload_create(actor=actor, model_name="a", files=names(10))
    upload_create(actor=actor, model_name="b", files=names(10))
    with pytest.raises(Conflict, match=said):
        upload_create(actor=actor, model_name="c", files=names(10))
    other = Actor(user=person("operate", "upload_data"))
    upload_create(actor=other, model_name="d", files=names(10))
    upload_cancel(upload=first, actor=actor)
    upload_create(actor=actor, model_name="c", files=names(10))


def test_all_together_announce_so_much(
    actor: Actor, person: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "OF_ALL", Announced(100, 25, 100_000))
    upload_create(actor=actor, model_name="a", files=names(20))
    with pytest.raises(Conflict, match="the uploads of everybody would have 30 names of files"):
        upload_create(actor=Actor(user=person("operate", "upload_data")), model_name="b", files=names(10))


def test_what_ended_leaves_no_names_behind(actor: Actor) -> None:
    cancelled, forgotten, kept = (upload_create(actor=actor, model_name=name, files=names(5)) for name in "abc")
    upload_cancel(upload=cancelled, actor=actor)
    Upload.objects.filter(pk=forgotten.pk).update(expires_at=forgotten.created_at)
    assert uploads_expire() == 1
    assert set(UploadFile.objects.values_list("upload", flat=True)) == {kept.pk}
