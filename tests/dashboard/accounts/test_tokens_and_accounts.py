"""Tokens are kept as hashes and narrow what a person may do; accounts are made by administrators alone."""

import hashlib
import json
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import NOBODY, SYSTEM, Actor, Right
from dashboard.accounts.accounts import account_create, account_update, administrator_ensure
from dashboard.accounts.tokens import auth_file_write, token_authenticate, token_create, token_revoke
from dashboard.models import ApiToken, AuditEntry
from dashboard.servers.infer_key import infer_key
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid

pytestmark = pytest.mark.django_db


def make(actor: Actor, *rights: str, **more: Any) -> tuple[ApiToken, str]:
    return token_create(user=actor.user, actor=actor, name="ci", rights=list(rights), **more)


def with_token(secret: str) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def test_a_token_is_kept_as_a_hash_alone(actor: Actor) -> None:
    token, secret = make(actor, "read")
    assert secret not in json.dumps(list(ApiToken.objects.values()), default=str)
    assert token.hash == hashlib.sha256(secret.encode()).hexdigest()
    assert secret.startswith(token.prefix)
    assert secret not in json.dumps(list(AuditEntry.objects.values()), default=str)
    assert token_authenticate(secret=secret) == token


@pytest.mark.parametrize("secret", ["", "slw_", "slw_wrong"])
def test_an_unknown_token_opens_nothing(actor: Actor, secret: str) -> None:
    make(actor, "read")
    assert token_authenticate(secret=secret) is None
    answer = with_token(secret).get("/api/v1/models")
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
    assert answer.json() == {"error": "the token is not known or has expired"}


def test_an_expired_token_and_one_of_somebody_shut_out_open_nothing(actor: Actor) -> None:
    token, secret = make(actor, "read")
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert token_authenticate(secret=secret) is None
    ApiToken.objects.update(expires_at=None)
    assert token_authenticate(secret=secret) == token
    get_user_model().objects.update(is_active=False)
    assert token_authenticate(secret=secret) is None


def test_a_token_narrows_what_its_person_may_do(actor: Actor) -> None:
    reader, _ = make(actor, "read")
    writer, _ = make(actor, "read", "write")
    may = [[right for right in Right if Actor(actor.user, token).may(right)] for token in (reader, writer)]
    assert may == [[Right.VIEW], [Right.VIEW, Right.OPERATE, Right.UPLOAD_DATA]]


@pytest.mark.parametrize("right", ["write", "upload_code", "admin"])
def test_a_viewer_makes_no_token_that_claims_more(person: Callable[..., Any], right: str) -> None:
    viewer = person()
    with pytest.raises(Forbidden, match=f"the right '{right}', because account {viewer.username} does not have it"):
        make(Actor(user=viewer), "read", right)
    client = APIClient()
    client.force_authenticate(viewer)
    answer = client.post("/api/v1/tokens", {"name": "x", "rights": ["read", right]})
    assert (answer.status_code, ApiToken.objects.count()) == (403, 0)
    assert client.post("/api/v1/tokens", {"name": "x", "rights": ["read", "infer"]}).status_code == 201


def test_one_right_of_several_that_a_token_right_stands_for_is_enough(person: Callable[..., Any]) -> None:
    uploader = Actor(user=person("upload_data"))
    token, _ = make(uploader, "write")
    may = [right for right in Right if Actor(uploader.user, token).may(right)]
    assert may == [Right.UPLOAD_DATA]


def test_a_token_of_an_administrator_gives_no_more_on_than_it_has(person: Callable[..., Any]) -> None:
    root = person(name="root", is_superuser=True)
    _, secret = make(Actor(user=root), "read", "admin")
    answer = with_token(secret).post("/api/v1/tokens", {"name": "child", "rights": ["read", "upload_code"]})
    assert (answer.status_code, "because this token does not have it" in answer.json()["error"]) == (403, True)
    assert with_token(secret).post("/api/v1/tokens", {"name": "child", "rights": ["admin"]}).status_code == 201


def test_a_right_that_its_person_loses_is_lost_to_the_token_at_once_and_shown_so(
    person: Callable[..., Any],
) -> None:
    user, root = person("operate"), Actor(user=person(name="root", is_superuser=True))
    _, secret = make(Actor(user=user), "read", "write")
    assert with_token(secret).get("/api/v1/me").json()["rights"] == ["view", "operate"]
    account_update(actor=root, user=user, permissions=[])
    assert with_token(secret).get("/api/v1/me").json()["rights"] == ["view"]
    [row] = with_token(secret).get("/api/v1/tokens").json()["results"]
    assert (row["rights"], row["opens"]) == (["read", "write"], ["read"])
    browser = Client()
    browser.force_login(user)
    assert browser.get("/settings/").content.decode().count("you no longer have it") == 1


def test_a_person_who_is_not_signed_in_may_do_nothing() -> None:
    assert not any(NOBODY.may(right) for right in Right)


def test_a_token_makes_no_tokens(actor: Actor) -> None:
    _, secret = make(actor, "read", "write")
    answer = with_token(secret).post("/api/v1/tokens", {"name": "child", "rights": ["write"]})
    assert answer.status_code == 403
    assert "a token cannot make" in answer.json()["error"]


def test_nobody_makes_or_revokes_somebody_elses_tokens(actor: Actor, person: Callable[..., Any]) -> None:
    other = Actor(user=person())
    with pytest.raises(Forbidden):
        token_create(user=actor.user, actor=other, name="x", rights=["read"])
    token, _ = make(actor, "read")
    with pytest.raises(Forbidden):
        token_revoke(token=token, actor=other)


@pytest.mark.parametrize(("name", "rights"), [("", ["read"]), ("x", []), ("x", ["fly"])])
def test_a_token_without_a_name_or_with_unknown_rights_is_refused(actor: Actor, name: str, rights: list[str]) -> None:
    with pytest.raises(Invalid):
        token_create(user=actor.user, actor=actor, name=name, rights=rights)


def test_a_token_that_would_have_ended_already_is_refused(actor: Actor) -> None:
    with pytest.raises(Invalid, match="in the past"):
        make(actor, "read", expires_at=timezone.now())


def test_the_servers_auth_file_holds_hashes_of_those_that_may_infer(
    actor: Actor, data_folder: Path, settings: Any, django_capture_on_commit_callbacks: Any
) -> None:
    end = timezone.now() + timedelta(days=1)
    with django_capture_on_commit_callbacks(execute=True):
        make(actor, "read")
        token, secret = make(actor, "infer", model_names=["relu"], expires_at=end)
    path = data_folder / "auth.json"
    grants = json.loads(path.read_text())["tokens"]
    assert grants[1] == {
        "name": "olga: ci",
        "sha256": hashlib.sha256(secret.encode()).hexdigest(),
        "models": ["relu"],
        "rights": ["infer"],
        "expires_at": int(end.timestamp()),
        "person": "olga",
        "groups": [],
    }
    assert grants[0]["sha256"] == hashlib.sha256(settings.SERVER_INFER_KEY.encode()).hexdigest()
    own = [(one["name"], one["sha256"]) for one in grants[2:]]
    assert own == [("olga: dashboard", hashlib.sha256(infer_key("olga").encode()).hexdigest())]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in path.read_text()
    with django_capture_on_commit_callbacks(execute=True):
        token_revoke(token=token, actor=actor)
    assert [one["name"] for one in json.loads(path.read_text())["tokens"]] == ["dashboard", "olga: dashboard"]


def test_the_auth_file_is_one_that_the_server_reads(actor: Actor, data_folder: Path) -> None:
    from serving.usage.auth_file import AuthFile

    _, secret = make(actor, "infer")
    auth_file_write()
    grant = AuthFile(data_folder / "auth.json").grant(f"Bearer {secret}")
    assert grant is not None
    assert grant.rights == {"infer"}


# -- accounts --------------------------------------------------------------------------------------------------------


def test_the_first_administrator_is_made_once_with_a_password_shown_once(settings: Any) -> None:
    settings.ADMIN_PASSWORD = ""
    made = administrator_ensure()
    assert made is not None
    name, password = made
    user = get_user_model().objects.get()
    assert (user.username, user.check_password(password), user.is_superuser) == (name, True, True)
    assert len(password) >= 16
    assert administrator_ensure() is None


def test_a_password_given_by_the_environment_is_not_shown(settings: Any) -> None:
    settings.ADMIN_USER, settings.ADMIN_PASSWORD = "root", "a given secret"
    assert administrator_ensure() == ("root", "")
    assert get_user_model().objects.get().check_password("a given secret")


def test_an_administrator_makes_accounts_with_rights(person: Callable[..., Any]) -> None:
    root = Actor(user=person(name="root", is_superuser=True))
    user = account_create(actor=root, username="ann", password="correct horse battery", permissions=["operate"])
    user = get_user_model().objects.get(pk=user.pk)
    assert [right for right in Right if Actor(user).may(right)] == [Right.VIEW, Right.INFER, Right.OPERATE]
    with pytest.raises(Conflict, match="already"):
        account_create(actor=root, username="Ann", password="correct horse battery", permissions=[])
    with pytest.raises(Invalid, match="too short"):
        account_create(actor=root, username="bob", password="short", permissions=[])
    with pytest.raises(Invalid, match="fly"):
        account_create(actor=root, username="bob", password="correct horse battery", permissions=["fly"])


def test_shutting_somebody_out_ends_their_tokens(
    person: Callable[..., Any], actor: Actor, data_folder: Path, django_capture_on_commit_callbacks: Any
) -> None:
    _, secret = make(actor, "infer", "read")
    root = Actor(user=person(name="root", is_superuser=True))
    with django_capture_on_commit_callbacks(execute=True):
        account_update(actor=root, user=actor.user, is_active=False)
    assert token_authenticate(secret=secret) is None
    left = [one["name"] for one in json.loads((data_folder / "auth.json").read_text())["tokens"]]
    assert left == ["dashboard", "root: dashboard"]
    with pytest.raises(Conflict, match="your own account"):
        account_update(actor=root, user=root.user, is_active=False)


def test_accounts_are_the_affair_of_administrators(actor: Actor) -> None:
    with pytest.raises(Forbidden):
        account_create(actor=actor, username="x", password="correct horse battery", permissions=[])
    with pytest.raises(Forbidden):
        account_update(actor=actor, user=actor.user, permissions=["upload_code"])
    account_update(actor=SYSTEM, user=actor.user, permissions=["operate"])
