"""Tokens: shown once, kept as hashes; those that may infer are written for the inference server to check itself."""

import hashlib
import json
import secrets
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.utils import timezone

from dashboard.authorisation import Actor, Right, require
from dashboard.choices import TokenRight
from dashboard.exceptions import Forbidden, Invalid
from dashboard.models import ApiToken
from dashboard.services.audit import audit_record
from repository.storage import write_atomic

PREFIX = "slw_"
_SEEN_EVERY = timedelta(minutes=1)  # last_used_at is no finer than this, so that reading stays reading


def token_create(
    *,
    user: AbstractBaseUser,
    actor: Actor,
    name: str,
    rights: list[str],
    expires_at: datetime | None = None,
    model_names: list[str] | None = None,
) -> tuple[ApiToken, str]:
    """The row and the token itself, which is shown once and never again."""
    _refuse_for_others(user, actor)
    _check(name, rights, expires_at)
    secret = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
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
        transaction.on_commit(auth_file_write)
    return token, secret


def token_revoke(*, token: ApiToken, actor: Actor) -> None:
    _refuse_for_others(token.user, actor)
    with transaction.atomic():
        _record(token, actor, "token.revoke", "Revoked")
        token.delete()
        transaction.on_commit(auth_file_write)


def token_authenticate(*, secret: str) -> ApiToken | None:
    """The token's row, unless it is unknown, expired, or its person inactive."""
    token = ApiToken.objects.select_related("user").filter(hash=_hash(secret), user__is_active=True).first()
    now = timezone.now()
    if token is None or (token.expires_at is not None and token.expires_at <= now):
        return None
    if token.last_used_at is None or now - token.last_used_at > _SEEN_EVERY:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def auth_file_write() -> None:
    """The inference server's --auth-file: who may infer with what, as hashes. The server re-reads it by itself."""
    tokens = ApiToken.objects.select_related("user").filter(user__is_active=True)
    grants = [_grant("dashboard", _hash(settings.SERVER_INFER_KEY), [], None)]
    grants += [
        _grant(f"{token.user.get_username()}: {token.name}", token.hash, token.model_names, token.expires_at)
        for token in tokens
        if TokenRight.INFER in token.rights
    ]
    write_atomic(settings.AUTH_FILE, json.dumps({"tokens": grants}, indent=1).encode(), mode=0o600)


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


def _refuse_for_others(user: AbstractBaseUser, actor: Actor) -> None:
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


def _record(token: ApiToken, actor: Actor, action: str, verb: str) -> None:
    summary = f"{verb} token '{token.name}' of {token.user.get_username()}"
    audit_record(actor=actor, action=action, summary=summary, after={"rights": token.rights, "prefix": token.prefix})
