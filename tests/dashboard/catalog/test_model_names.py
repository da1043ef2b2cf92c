"""Models whose names an address cannot hold as they are: published, shown on every page, answered by every route."""

import html
import json
import re
from collections.abc import Callable
from urllib.parse import quote, unquote

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.models import Server, Version
from tests.dashboard.conftest import text_of
from tests.support.model_factory import ODD_NAMES

PAGES = ("", "versions", "configuration", "playground", "activity", "head")
BAD_NAMES = (".", "..", ".git", "*", "a\nb", "a\u202eb", "é" * 101)


@pytest.fixture
def odd_models(published: Callable[..., Version], server: Server) -> None:
    for name in ODD_NAMES:
        assert published(model_name=name).model.name == name


@pytest.mark.usefixtures("odd_models")
def test_every_page_of_a_model_is_shown_whatever_its_name(as_person: Callable[..., Client]) -> None:
    person = as_person(is_superuser=True)
    for name in ODD_NAMES:
        for page in PAGES:
            text_of(person, f"/models/{quote(name, safe='')}/{page}")
    for path in ("/models/", "/activity/", "/places"):
        shown = html.unescape(text_of(person, path))
        assert [name for name in ODD_NAMES if name not in shown and json.dumps(name) not in shown] == [], path


@pytest.mark.usefixtures("odd_models")
def test_the_links_of_the_list_lead_to_the_models(as_person: Callable[..., Client]) -> None:
    person = as_person(is_superuser=True)
    links = [html.unescape(link) for link in re.findall(r'<a href="(/models/[^"]+/)"', text_of(person, "/models/"))]
    assert {unquote(link) for link in links} == {f"/models/{name}/" for name in ODD_NAMES}
    for link in links:
        assert html.escape(unquote(link)[8:-1], quote=False).split("'")[0].split('"')[0] in text_of(person, link)


@pytest.mark.usefixtures("odd_models")
def test_the_rest_api_takes_any_name_of_a_model(api: APIClient) -> None:
    for name in ODD_NAMES:
        path = f"/api/v1/models/{quote(name, safe='')}"
        assert api.get(path).json()["name"] == name
        for part in ("versions", "releases", "aliases", "config"):
            assert api.get(f"{path}/{part}").status_code == 200, part
        assert api.post(f"{path}/load").status_code == 200
    assert {row["name"] for row in api.get("/api/v1/models").json()["results"]} == set(ODD_NAMES)


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:12])
def test_a_name_that_no_folder_may_have_is_refused(name: str, api: APIClient) -> None:
    asked = {"model_name": name, "files": [{"path": "model.onnx", "size": 1}]}
    answer = api.post("/api/v1/uploads", asked, format="json")
    assert (
        answer.status_code,
        "model name" in answer.json()["error"] or "means every model" in answer.json()["error"],
    ) == (400, True)
