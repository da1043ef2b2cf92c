"""A model whose folder was spoilt by hand has its pages all the same, and can be put right from them or is refused in words."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from rest_framework.test import APIClient

from dashboard.configuration.drift import drift_check
from dashboard.models import Model, Version
from tests.support.odd_folders import CONFIG, ODD

pytestmark = pytest.mark.django_db
PAGES = ("", "versions", "configuration", "playground", "activity")


@pytest.fixture
def browser(actor) -> Client:
    client = Client()
    client.force_login(actor.user)
    return client


@pytest.mark.parametrize("what", ODD)
def test_pages_and_routes_answer_whatever_lies_in_the_folder(
    what: str, published: Callable[..., Version], browser: Client, api: APIClient
) -> None:
    text = published().model.releases.first().text
    ODD[what](Path(settings.MODEL_REPOSITORY, "relu"))
    for _ in range(2):
        assert {browser.get(f"/models/relu/{page}").status_code for page in PAGES} == {200}
        assert browser.get("/models/").status_code == 200
        for path in ("models", "models/relu", "models/relu/config", "models/relu/versions", "repository/unmanaged"):
            assert api.get(f"/api/v1/{path}").status_code == 200, path
        drift_check()  # and once more, with what it has noticed
    changed = text.replace("max_batch_size: 8", "max_batch_size: 4")
    for act in (
        lambda: api.post("/api/v1/models/relu/config/preview", {"text": changed}),
        lambda: api.put("/api/v1/models/relu/config", {"text": changed}),
        lambda: api.post("/api/v1/models/relu/config/adopt"),
        lambda: api.post("/api/v1/models/relu/config/overwrite"),
        lambda: api.post("/api/v1/models/relu/load"),
        lambda: api.post("/api/v1/models/relu/versions/1/archive"),
        lambda: api.post("/api/v1/models/relu/unload"),
        lambda: api.delete("/api/v1/models/relu?confirm=relu"),
    ):
        answer = act()
        assert answer.status_code < 500, (what, answer.content)


@pytest.mark.parametrize("what", ODD)
def test_a_spoilt_folder_that_nobody_manages_is_listed_or_passed_over_and_adopted_or_refused(
    what: str, published: Callable[..., Version], api: APIClient
) -> None:
    published()
    root = Path(settings.MODEL_REPOSITORY)
    shutil.copytree(root / "relu", root / "stray")
    ODD[what](root / "stray")
    assert api.get("/api/v1/repository/unmanaged").status_code == 200
    answer = api.post("/api/v1/models/stray/adopt")
    assert answer.status_code < 500, (what, answer.content)


@pytest.mark.parametrize("what", [what for what in ODD if what.startswith(f"{CONFIG} is")])
def test_a_configuration_that_is_no_text_is_not_adopted_as_an_empty_one(
    what: str, published: Callable[..., Version], api: APIClient
) -> None:
    model = published().model
    release = model.releases.first()
    root = Path(settings.MODEL_REPOSITORY)
    shutil.copytree(root / "relu", root / "stray")
    for name in ("relu", "stray"):
        ODD[what](root / name)
    drift_check()
    for path in ("models/relu/config/adopt", "models/stray/adopt"):
        answer = api.post(f"/api/v1/{path}")
        assert answer.status_code == 400, (path, answer.content)
    assert model.releases.first() == release
    model.refresh_from_db()
    assert model.drift  # still shown
    assert not Model.objects.filter(name="stray").exists()
