"""Settings of one version: seen with where they come from, changed as a release over REST and from the page, gone back from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.models import AuditEntry, Release, Upload, Version
from dashboard.releases.selectors import current_document
from dashboard.uploads.publication import upload_publish
from repository.config import model_config, version_settings
from tests.dashboard.conftest import text_of, version_from
from tests.support.torchserve_archives import archive

pytestmark = pytest.mark.django_db

ADDRESS = "/api/v1/models/words/versions/1/settings"
PAGE = "/models/words/versions/1/settings"


@pytest.fixture(autouse=True)
def version(inspected: Callable[..., Upload], actor: Actor, tmp_path: Path, server: Any) -> Version:
    """An archive that says how large its batches are and how many workers it wants."""
    said = {"batchSize": 4, "maxBatchDelay": 50, "minWorkers": 2, "maxWorkers": 2, "responseTimeout": 30}
    packed = archive(tmp_path / "words.mar", version="1.0", config=said).read_bytes()
    return version_from(
        upload_publish(upload=inspected({"words.mar": packed}, model_name="words"), actor=actor, load=False)
    )


def rows(api: APIClient) -> dict[str, tuple[int | None, int | None, str]]:
    return {row["name"]: (row["own"], row["otherwise"], row["said_by"]) for row in api.get(ADDRESS).json()["settings"]}


def test_settings_are_said_of_one_version_and_taken_away_again(api: APIClient, version: Version) -> None:
    assert rows(api)["response_timeout_s"] == (None, 30, "its model-config.yaml")
    release = api.get(ADDRESS).json()["release"]
    given = {"max_batch_size": 16, "instances": 3, "response_timeout_s": 9, "base_release": release}
    assert api.put(ADDRESS, given).status_code == 200
    assert [rows(api)[name][0] for name in ("max_batch_size", "instances", "response_timeout_s")] == [16, 3, 9]
    config = model_config.parse(current_document(version.model).text)
    own = version_settings.for_version(config, 1)
    assert (own.max_batch_size, own.instance_group[0].count) == (16, 3)
    assert own.parameters["torchserve.response_timeout_s"].string_value == "9"
    assert version_settings.for_version(config, 2).max_batch_size != 16
    newest = Release.objects.latest("number")
    assert "settings of version 1 (1.0)" in newest.summary
    assert AuditEntry.objects.filter(action="config.apply").exists()

    outdated = api.put(ADDRESS, {"max_batch_size": 8, "base_release": release})
    assert (outdated.status_code, rows(api)["max_batch_size"][0]) == (409, 16)
    assert api.put(ADDRESS, {"max_batch_size": None, "instances": None, "response_timeout_s": None}).status_code == 200
    assert version_settings.KEY not in model_config.parse(current_document(version.model).text).parameters


def test_the_page_keeps_what_was_typed_and_says_what_is_wrong(client: Client, actor: Actor) -> None:
    assert actor.user is not None
    client.force_login(actor.user)
    assert "Batches, instances, time-outs of this version" in text_of(client, "/models/words/versions")
    assert "30, as its model-config.yaml says" in text_of(client, PAGE)
    refused = client.post(PAGE, {"max_batch_size": "many", "instances": "2"})
    page = refused.content.decode()
    assert (refused.status_code, 'value="many" aria-invalid="true"' in page) == (400, True)
    assert "Expected a whole number, not &#x27;many&#x27;" in page
    assert client.post(PAGE, {"max_batch_size": "5", "instances": ""}).status_code == 302
    assert 'value="5"' in text_of(client, PAGE)
    assert "Its own, in place of the model’s" in text_of(client, "/models/words/versions")


def test_it_takes_the_right_to_operate(as_person: Callable[..., Client], api: APIClient, person: Any) -> None:
    client = as_person("upload_code")
    assert "takes the permission to operate" in text_of(client, PAGE)
    assert client.post(PAGE, {"max_batch_size": "5"}).status_code == 403
    api.force_authenticate(person("upload_code"))
    assert api.put(ADDRESS, {"max_batch_size": 5}).status_code == 403
