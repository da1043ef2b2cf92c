"""Tokens are shown once and stored as hashes. The inference server reads auth.json, which lists the tokens that may infer.

The server reads no database. So every change of the right to infer is made inside `auth_file_kept`, which writes the file
before the rows are committed. If the file cannot be written, nothing is changed. `watch` compares the file with the rows every
second (`auth_file_repair`), because a crash may happen between the two writes, and somebody may change rows by hand.
"""

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TypedDict

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, VIEWERS, Actor, Right, require, token_rights
from dashboard.accounts.token_use import TOKEN_USE
from dashboard.models import ApiToken, Quota, Server
from dashboard.servers.infer_key import infer_key
from dashboard.servers.services import LOCAL, server_event_record
from dashboard.shared.choices import EventKind, TokenRight
from dashboard.shared.exceptions import Forbidden, Invalid, StorageFull
from dashboard.shared.repository_errors import repository_errors
from repository.core.errors import NoSpace
from repository.files.storage import locked, write_atomic

PREFIX = "slw_"


def token_create(
    *,
    user: User,
    actor: Actor,
    name: str,
    rights: list[str],
    expires_at: datetime | None = None,
    model_names: list[str] | None = None,
) -> tuple[ApiToken, str]:
    """Make a token, and return its row and its text, which is shown once and never again.

    rights: a list of TokenRight values. model_names: the models that the token may infer with; empty for all models.
    Raises Forbidden if the person or the actor lacks one of the rights. Raises Invalid if there is no name, a right is unknown,
    or the end is in the past. Raises StorageFull if auth.json cannot be written.
    """
    _refuse_for_others(user, actor)
    _check(name, rights, expires_at)
    _refuse_more_than_held(user, actor, rights)
    secret = PREFIX + secrets.token_urlsafe(32)
    with auth_file_kept():
        token = ApiToken.objects.create(
            user=user,
            name=name.strip(),
            prefix=secret[:10],
            hash=_hash(secret),
            rights=sorted(set(rights)),
            model_names=sorted(set(model_names or [])),
            expires_at=expires_at,
        )
        _record(token, actor, "token.create", "Made")
    return token, secret


def token_revoke(*, token: ApiToken, actor: Actor) -> None:
    """Delete a token. Raises Forbidden if the token belongs to somebody else, and the actor does not administer."""
    _refuse_for_others(token.user, actor)
    with auth_file_kept():
        _record(token, actor, "token.revoke", "Revoked")
        ApiToken.objects.filter(pk=token.pk).delete()


def tokens_forget_model(*, name: str, actor: Actor) -> None:
    """Remove the name of a deleted model from every token, because the tokens must not serve a later model of that name.

    A token that names no other model is deleted, because a token without names may use all models. Call this inside
    `auth_file_kept`.
    """
    for token in ApiToken.objects.select_for_update().select_related("user"):
        if name not in token.model_names:
            continue
        token.model_names = [other for other in token.model_names if other != name]
        if token.model_names:
            token.save(update_fields=["model_names"])
        else:
            _record(token, actor, "token.revoke", f"Deleted model {name}, and so revoked")
            token.delete()


def token_authenticate(*, secret: str) -> ApiToken | None:
    """Return the row of a token, or None if the token is unknown or has expired, or its person is not active."""
    token = ApiToken.objects.select_related("user").filter(hash=_hash(secret), user__is_active=True).first()
    now = timezone.now()
    if token is None or (token.expires_at is not None and token.expires_at <= now):
        return None
    TOKEN_USE.note(token)
    return token


@contextlib.contextmanager
def auth_file_kept() -> Iterator[Callable[[], None]]:
    """Run a change of the right to infer in a transaction: auth.json is written first, then the rows are committed.

    The block receives a function that writes the file immediately, to call before a step that cannot be undone. Only one
    process at a time runs this, so that no process writes the file from rows that another process is about to change.
    Raises StorageFull, and changes nothing, if the file cannot be written.
    """
    with repository_errors(), _held(), transaction.atomic():
        yield _write
        _write()


def auth_file_write() -> None:
    """Write auth.json, the server's --auth-file: the hashes of tokens that may infer. The server rereads it after a change."""
    with auth_file_kept():
        pass


def auth_file_repair() -> str:
    """Write auth.json again if it differs from the rows. Return the message of the event, or "" if nothing differs."""
    with repository_errors(), _held():
        if _as_written() == _content():
            return ""
        _write()
    message = (
        "The file that says who may infer (auth.json) differed from the tokens of the database; it was written again."
    )
    if server := Server.objects.filter(name=LOCAL).first():
        server_event_record(server=server, kind=EventKind.REPAIRED, message=message)
    audit_record(actor=SYSTEM, action="token.repair", summary=message)
    return message


@contextlib.contextmanager
def _held() -> Iterator[None]:
    path = Path(settings.AUTH_FILE)
    with contextlib.ExitStack() as held:
        with _or_full():
            held.enter_context(locked(path.with_name(f"{path.name}.lock"), "who may infer"))
        yield


def _write() -> None:
    content = _content()
    if _as_written() != content:
        with _or_full():
            write_atomic(Path(settings.AUTH_FILE), content, mode=0o600)


def _as_written() -> bytes:
    try:
        return Path(settings.AUTH_FILE).read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def _or_full() -> Iterator[None]:
    """Raise StorageFull, with a sentence, for an error that prevents the file from being written."""
    try:
        yield
    except (OSError, NoSpace) as error:
        reason = "the disk is full" if isinstance(error, NoSpace) else error.strerror
        raise StorageFull(
            f"nothing was changed, because the inference server's file of tokens (auth.json) cannot be written: {reason}; "
            "try again when it can"
        ) from None


def _content() -> bytes:
    tokens = ApiToken.objects.select_related("user").prefetch_related("user__groups").order_by("pk")
    grants = [_grant("dashboard", _hash(settings.SERVER_INFER_KEY), [], None, "", [])]
    grants += [
        _grant(
            account_name(token),
            token.hash,
            token.model_names,
            token.expires_at,
            token.user.get_username(),
            groups_of(token.user),
        )
        for token in tokens
        if Actor(user=token.user, token=token).may(Right.INFER)
    ]
    people = User.objects.filter(is_active=True).prefetch_related("groups").order_by("pk")
    grants += [
        _grant(f"{name}: dashboard", _hash(infer_key(name)), [], None, name, groups_of(person))
        for person in people
        if Actor(user=person).may(Right.INFER) and (name := person.get_username())
    ]
    return json.dumps({"tokens": grants, "quotas": _quotas()}, indent=1).encode()


def account_name(token: ApiToken) -> str:
    """Return the name by which the inference server knows a token."""
    return f"{token.user.get_username()}: {token.name}"


def groups_of(user: User) -> list[str]:
    """Return the groups that a person's use counts for."""
    return sorted(group.name for group in user.groups.all() if group.name != VIEWERS)


def _quotas() -> list[dict[str, object]]:
    return [
        {"of": quota.of, "name": quota.token.hash if quota.token else quota.name, **dict(quota.limits())}
        for quota in Quota.objects.select_related("token", "user", "group").order_by("pk")
    ]


class _Grant(TypedDict):
    """An entry of auth.json (docs/configuration.md). sha256: the hash of the token, in hex. expires_at: in Unix seconds."""

    name: str
    sha256: str
    models: list[str]
    rights: list[str]
    expires_at: int | None
    person: str
    groups: list[str]


def _grant(
    name: str, sha256: str, model_names: list[str], expires_at: datetime | None, person: str, groups: list[str]
) -> _Grant:
    return {
        "name": name,
        "sha256": sha256,
        "models": model_names or ["*"],
        "rights": ["infer"],
        "expires_at": int(expires_at.timestamp()) if expires_at else None,
        "person": person,
        "groups": groups,
    }


def _hash(secret: str) -> str:
    """Return the SHA-256 of a token in hex. One round is enough because a token is random and long."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _refuse_for_others(user: User, actor: Actor) -> None:
    """Raise Forbidden unless the actor administers, or is signed in and manages their own tokens.

    A token may not make tokens, because they could outlive it or have more rights.
    """
    if actor.token is not None and not actor.may(Right.ADMINISTER):
        raise Forbidden("a token cannot make or revoke tokens; sign in for that")
    if actor.user != user:
        require(actor, Right.ADMINISTER)


def _check(name: str, rights: list[str], expires_at: datetime | None) -> None:
    unknown = sorted(set(rights) - set(TokenRight.values))
    if not name.strip() or len(name.strip()) > 100:
        raise Invalid("a token needs a name of at most 100 characters")
    if not rights or unknown:
        raise Invalid(f"expected rights out of {', '.join(TokenRight.values)}, got {', '.join(unknown) or 'none'}")
    if expires_at is not None and expires_at <= timezone.now():
        raise Invalid("the token's end is in the past; choose a later one")


def _refuse_more_than_held(user: User, actor: Actor, rights: list[str]) -> None:
    """Raise Forbidden for a right that the token's person lacks, or that the caller's own token lacks."""
    for holder, noun in ((Actor(user=user), f"account {user.get_username()}"), (actor, "this token")):
        lacking = sorted(set(rights) - set(token_rights(holder)))
        if lacking and (holder is not actor or actor.token is not None):
            raise Forbidden(f"a token cannot be given the right '{lacking[0]}', because {noun} does not have it")


def _record(token: ApiToken, actor: Actor, action: str, verb: str) -> None:
    summary = f"{verb} token '{token.name}' of {token.user.get_username()}"
    audit_record(actor=actor, action=action, summary=summary, after={"rights": token.rights, "prefix": token.prefix})
