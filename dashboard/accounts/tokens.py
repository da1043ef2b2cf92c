"""Tokens: shown once, kept as hashes; those that may infer are written for the inference server to check itself.

The server asks no database: it reads auth.json. So whatever changes who may infer does it inside `auth_file_kept`, which
writes the file before the rows are committed; what cannot be written there does not happen. `watch` holds the file against
the rows all the while (`auth_file_repair`): for a crash between the two, and for rows that somebody changed by hand.
"""

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor, Right, require, token_rights
from dashboard.models import ApiToken
from dashboard.servers.services import server_ensure_local, server_event_record
from dashboard.shared.choices import EventKind, TokenRight
from dashboard.shared.exceptions import Forbidden, Invalid, StorageFull
from dashboard.shared.repository_errors import repository_errors
from repository.core.errors import NoSpace
from repository.files.storage import locked, write_atomic

PREFIX = "slw_"
_SEEN_EVERY = timedelta(minutes=1)  # last_used_at is no finer than this, so that reading stays reading


def token_create(
    *,
    user: User,
    actor: Actor,
    name: str,
    rights: list[str],
    expires_at: datetime | None = None,
    model_names: list[str] | None = None,
) -> tuple[ApiToken, str]:
    """The row and the token itself, which is shown once and never again."""
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
    _refuse_for_others(token.user, actor)
    with auth_file_kept():
        _record(token, actor, "token.revoke", "Revoked")
        ApiToken.objects.filter(pk=token.pk).delete()


def tokens_forget_model(*, name: str, actor: Actor) -> None:
    """Takes a deleted model's name off every token: another model of that name is not what they were given for. A token
    that named no other ends, for one without names is for all. Call it inside `auth_file_kept`."""
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
    """The token's row, unless it is unknown, expired, or its person inactive."""
    token = ApiToken.objects.select_related("user").filter(hash=_hash(secret), user__is_active=True).first()
    now = timezone.now()
    if token is None or (token.expires_at is not None and token.expires_at <= now):
        return None
    if token.last_used_at is None or now - token.last_used_at > _SEEN_EVERY:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


@contextlib.contextmanager
def auth_file_kept() -> Iterator[Callable[[], None]]:
    """The transaction of a change to who may infer; the file is written first, then the rows are committed.

    StorageFull, and nothing is changed, where the file cannot be written. One such change at a time, whichever process
    makes it, so that none writes the file from rows that another is about to change. It gives a function that writes the
    file at once, for a block that goes on with what cannot be taken back.
    """
    with repository_errors(), _held(), transaction.atomic():
        yield _write
        _write()


def auth_file_write() -> None:
    """The inference server's --auth-file: who may infer with what, as hashes. The server re-reads it by itself."""
    with auth_file_kept():
        pass


def auth_file_repair() -> str:
    """Writes the file anew where it says something else than the rows; the sentence of the event, "" without one."""
    with repository_errors(), _held():
        if _as_written() == _content():
            return ""
        _write()
    message = (
        "The file that says who may infer (auth.json) differed from the tokens of the database; it is written anew."
    )
    server_event_record(server=server_ensure_local(), kind=EventKind.REPAIRED, message=message)
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
    """What keeps a file from being written, in a sentence."""
    try:
        yield
    except (OSError, NoSpace) as error:
        reason = "the disk is full" if isinstance(error, NoSpace) else error.strerror
        raise StorageFull(
            f"nothing was changed, for the file that tells the inference server who may infer cannot be written: {reason}; "
            "try again when it can"
        ) from None


def _content() -> bytes:
    tokens = ApiToken.objects.select_related("user").order_by("pk")
    grants = [_grant("dashboard", _hash(settings.SERVER_INFER_KEY), [], None)]
    grants += [
        _grant(f"{token.user.get_username()}: {token.name}", token.hash, token.model_names, token.expires_at)
        for token in tokens
        if Actor(user=token.user, token=token).may(Right.INFER)
    ]
    return json.dumps({"tokens": grants}, indent=1).encode()


def _grant(name: str, sha256: str, model_names: list[str], expires_at: datetime | None) -> dict[str, Any]:
    return {
        "name": name,
        "sha256": sha256,
        "models": model_names or ["*"],
        "rights": ["infer"],
        "expires_at": int(expires_at.timestamp()) if expires_at else None,
    }


def _hash(secret: str) -> str:
    """A token is random and long, so one round of SHA-256 is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _refuse_for_others(user: User, actor: Actor) -> None:
    """A person manages their own tokens in person: a token makes none, or it could outlive or outgrow itself."""
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
        raise Invalid("the token would expire before it is made")


def _refuse_more_than_held(user: User, actor: Actor, rights: list[str]) -> None:
    """A token has no right that its person lacks, and none that the token which makes it lacks."""
    for holder, noun in ((Actor(user=user), f"account {user.get_username()} has"), (actor, "this token has")):
        lacking = sorted(set(rights) - set(token_rights(holder)))
        if lacking and (holder is not actor or actor.token is not None):
            raise Forbidden(f"a token cannot be given the right '{lacking[0]}', which {noun} not itself")


def _record(token: ApiToken, actor: Actor, action: str, verb: str) -> None:
    summary = f"{verb} token '{token.name}' of {token.user.get_username()}"
    audit_record(actor=actor, action=action, summary=summary, after={"rights": token.rights, "prefix": token.prefix})
