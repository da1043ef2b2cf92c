"""auth.json, by which the inference server knows who may infer, and the tokens of the database say the same, whatever fails."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.accounts import tokens
from dashboard.accounts.accounts import account_update
from dashboard.accounts.tokens import auth_file_repair, token_create, token_revoke
from dashboard.catalog.services import model_delete
from dashboard.models import ApiToken, AuditEntry, ServerEvent, Version
from dashboard.servers.services import server_ensure_local
from dashboard.shared.choices import EventKind
from dashboard.shared.exceptions import StorageFull
from dashboard.watch.periodic import periodic_tasks

pytestmark = pytest.mark.django_db


def granted(settings: Any) -> list[str]:
    """The names in the file, but for the dashboard's own and those of its people."""
    return [row["name"] for row in granted_rows(settings)]


def granted_rows(settings: Any) -> list[dict[str, Any]]:
    rows = json.loads(Path(settings.AUTH_FILE).read_text())["tokens"]
    return [row for row in rows[1:] if not row["name"].endswith(": dashboard")]


@pytest.fixture
def root(person: Callable[..., Any]) -> Actor:
    return Actor(user=person(name="root", is_superuser=True))


@pytest.fixture
def token(actor: Actor) -> ApiToken:
    return token_create(user=actor.user, actor=actor, name="ci", rights=["infer", "read"])[0]


@pytest.fixture
def full_disk(token: ApiToken, settings: Any, small_disk: Path) -> Path:
    """auth.json, with a token, on a disk on which there is no room for another file."""
    settings.AUTH_FILE = small_disk / "auth.json"
    tokens.auth_file_write()
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "ballast").write_bytes(b"x" * (1 << 20))
    assert granted(settings) == ["olga: ci"]
    return small_disk


def changes(token: ApiToken, actor: Actor, root: Actor) -> dict[str, Callable[[], Any]]:
    """Every change of the tokens that may infer."""
    return {
        "revoking": lambda: token_revoke(token=token, actor=actor),
        "making": lambda: token_create(user=actor.user, actor=actor, name="another", rights=["infer"]),
        "shutting out": lambda: account_update(actor=root, user=actor.user, is_active=False),
    }


@pytest.mark.parametrize("change", ["revoking", "making", "shutting out"])
def test_where_the_disk_is_full_nothing_changes_and_the_file_says_so_too(
    change: str, token: ApiToken, actor: Actor, root: Actor, full_disk: Path, settings: Any
) -> None:
    act = changes(token, actor, root)[change]
    with pytest.raises(StorageFull, match="nothing was changed"):
        act()
    assert (granted(settings), list(ApiToken.objects.values_list("name", flat=True))) == (["olga: ci"], ["ci"])
    actor.user.refresh_from_db()
    assert actor.user.is_active
    (full_disk / "ballast").unlink()
    act()
    assert granted(settings) == {"revoking": [], "making": ["olga: ci", "olga: another"], "shutting out": []}[change]


def test_the_api_says_that_a_token_is_not_revoked_for_want_of_room(
    token: ApiToken, api: APIClient, full_disk: Path
) -> None:
    answer = api.delete(f"/api/v1/tokens/{token.pk}")
    assert (answer.status_code, "cannot be written" in answer.json()["error"]) == (507, True)
    (full_disk / "ballast").unlink()
    assert api.delete(f"/api/v1/tokens/{token.pk}").status_code == 204


def test_a_revocation_that_the_database_does_not_take_has_ended_the_grant_until_watch_gives_it_back(
    token: ApiToken, actor: Actor, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "_write", lambda write=tokens._write: (write(), _fail()))
        with pytest.raises(IntegrityError):
            token_revoke(token=token, actor=actor)
    assert (granted(settings), ApiToken.objects.count()) == ([], 1)
    assert "written again" in auth_file_repair()
    assert granted(settings) == ["olga: ci"]


def _fail() -> None:
    raise IntegrityError("as though the commit had failed")


@pytest.mark.parametrize("damage", ["the row is gone", "the file is gone", "the person is gone", "the file is garbage"])
def test_watch_mends_a_file_that_says_something_else(damage: str, token: ApiToken, actor: Actor, settings: Any) -> None:
    server_ensure_local()
    assert auth_file_repair() == ""
    if damage == "the row is gone":
        ApiToken.objects.all().delete()
    elif damage == "the person is gone":
        actor.user.delete()
    elif damage == "the file is gone":
        Path(settings.AUTH_FILE).unlink()
    else:
        Path(settings.AUTH_FILE).write_bytes(b"{")
    assert "differed" in auth_file_repair()
    assert granted(settings) == (["olga: ci"] if "file" in damage else [])
    assert ServerEvent.objects.filter(kind=EventKind.REPAIRED).count() == 1
    assert AuditEntry.objects.filter(action="token.repair").count() == 1
    assert auth_file_repair() == ""
    assert ServerEvent.objects.filter(kind=EventKind.REPAIRED).count() == 1


def test_watch_looks_every_second() -> None:
    assert [task.seconds for task in periodic_tasks() if task.work is auth_file_repair] == [1.0]


def test_a_deleted_models_name_opens_nothing_on_a_token_any_more(
    published: Callable[..., Version], actor: Actor, settings: Any
) -> None:
    """Somebody else may give another model that name; and a token without names would be one for all models."""
    version = published(load=False)
    for name, models in (("one", ["relu"]), ("two", ["other", "relu"]), ("three", []), ("four", ["other"])):
        token_create(user=actor.user, actor=actor, name=name, rights=["infer"], model_names=models)
    model_delete(model=version.model, actor=actor, confirm_name="relu")
    left = {token.name: token.model_names for token in ApiToken.objects.all()}
    assert left == {"two": ["other"], "three": [], "four": ["other"]}
    assert {row["name"]: row["models"] for row in granted_rows(settings)} == {
        "olga: two": ["other"],
        "olga: three": ["*"],
        "olga: four": ["other"],
    }
