"""The group of viewers exists from the beginning; its members see everything and change nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import VIEWERS, Actor, Right, only_looks, token_rights, with_permissions
from dashboard.accounts.accounts import account_create, account_update
from dashboard.accounts.tokens import token_create
from dashboard.models import Version
from dashboard.shared.exceptions import Forbidden, Invalid

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(person: Callable[..., Any]) -> Actor:
    return Actor(user=person(name="root", is_superuser=True))


@pytest.fixture
def viewer(root: Actor) -> Any:
    return account_create(actor=root, username="vera", password="a long secret", permissions=["only_look"])


def test_the_group_is_there_without_anybody_making_it() -> None:
    assert Group.objects.filter(name=VIEWERS).exists()


def test_a_viewer_sees_and_does_nothing(viewer: Any, relu: Version) -> None:
    assert [right for right in Right if Actor(user=viewer).may(right)] == [Right.VIEW]
    client, api = Client(), APIClient()
    client.force_login(viewer)
    api.force_authenticate(viewer)
    assert client.get("/models/relu/").status_code == 200
    assert client.get("/models/relu/playground").status_code == 200
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    answer = api.post("/api/v1/models/relu/infer", {"inputs": [x]}, format="json")
    assert (answer.status_code, "permission to send inference requests" in answer.json()["error"]) == (403, True)
    assert client.post("/models/relu/load").status_code == 403


def test_the_pages_offer_a_viewer_nothing_that_is_refused(
    viewer: Any, person: Callable[..., Any], relu: Version
) -> None:
    client = Client()
    client.force_login(viewer)
    page = client.get("/models/relu/playground").content.decode()
    assert 'id="play-send" disabled' in page
    assert "Sending needs the permission to infer, which this account does not have." in page
    assert 'data-act="run"' not in page
    assert "Signed in as vera, viewer." in client.get("/settings/").content.decode()
    client.force_login(person(name="mia"))
    page = client.get("/models/relu/playground").content.decode()
    assert 'id="play-send">' in page
    assert 'data-act="run"' in page


def test_a_viewer_loses_every_other_right(person: Callable[..., Any]) -> None:
    somebody = person("operate", "upload_code", name="una")
    somebody.groups.add(Group.objects.get(name=VIEWERS))
    assert not any(Actor(user=somebody).may(right) for right in Right if right is not Right.VIEW)
    [read] = with_permissions(type(somebody).objects.filter(pk=somebody.pk))
    assert only_looks(read)


def test_the_tokens_of_a_viewer_read_alone(
    viewer: Any, person: Callable[..., Any], root: Actor, data_folder: Path
) -> None:
    assert [str(right) for right in token_rights(Actor(user=viewer))] == ["read"]
    with pytest.raises((Forbidden, Invalid)):
        token_create(user=viewer, actor=Actor(user=viewer), name="mine", rights=["infer"])
    member = person(name="mia")
    _, secret = token_create(user=member, actor=Actor(user=member), name="hers", rights=["read", "infer"])
    before = (data_folder / "auth.json").read_text()
    account_update(actor=root, user=member, permissions=["only_look"])
    assert before != (data_folder / "auth.json").read_text(), "the server does not take the token any more"
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert client.get("/api/v1/models").status_code == 200
    assert client.post("/api/v1/models/relu/infer", {}, format="json").status_code in (403, 404)


def test_only_looking_goes_with_nothing_else(root: Actor, viewer: Any) -> None:
    for names in (["only_look", "operate"],):
        with pytest.raises(Invalid, match="excludes every other permission"):
            account_update(actor=root, user=viewer, permissions=names)
    with pytest.raises(Invalid, match="an administrator may do everything"):
        account_update(actor=root, user=root.user, permissions=["only_look"])
    account_update(actor=root, user=viewer, permissions=["operate"])
    assert Actor(user=viewer).may(Right.OPERATE)
    assert not viewer.groups.exists()


def test_an_administrator_makes_a_viewer_on_the_page_and_over_rest(root: Actor) -> None:
    client, api = Client(), APIClient()
    client.force_login(root.user)
    api.force_authenticate(root.user)
    form = {"username": "vic", "password": "a long secret", "permissions": ["only_look"]}
    client.post("/settings/people", form)
    page = re.sub(r"\s+", " ", client.get("/settings/").content.decode())
    assert '<th scope="row">vic</th><td>viewer</td><td><span class="tag">see the dashboard</span>' in page
    made = api.post("/api/v1/accounts", {**form, "username": "wim"}, format="json")
    assert (made.status_code, made.json()["permissions"]) == (201, ["only_look"])


def test_the_documentation_of_the_api_leads_to_the_sign_in() -> None:
    answer = Client().get("/api/v1/docs", {"a": "b"})
    assert (answer.status_code, answer["Location"]) == (302, "/sign-in?next=/api/v1/docs%3Fa%3Db")
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION="Bearer wrong")
    assert client.get("/api/v1/docs", HTTP_ACCEPT="text/html").status_code == 401
