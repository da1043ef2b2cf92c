"""People: the first administrator, and the rights of others."""

import secrets
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractUser, Permission
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor, Right, require
from dashboard.accounts.tokens import auth_file_kept
from dashboard.shared.exceptions import Conflict, Invalid

# What an account may be given besides seeing and inferring.
GRANTABLE = ("operate", "upload_data", "upload_code")


def administrator_ensure() -> tuple[str, str] | None:
    """Makes the first administrator when there is none: (name, password to show once), else None.

    The password is empty when SLIPWAY_ADMIN_PASSWORD gave it: who set it knows it.
    """
    users = get_user_model().objects
    with transaction.atomic():
        if users.filter(is_superuser=True).exists():
            return None
        password = settings.ADMIN_PASSWORD or secrets.token_urlsafe(12)
        users.create_superuser(settings.ADMIN_USER, password=password)
        summary = f"Made the first administrator, {settings.ADMIN_USER}"
        audit_record(actor=SYSTEM, action="account.create", summary=summary)
    return settings.ADMIN_USER, "" if settings.ADMIN_PASSWORD else password


def account_create(*, actor: Actor, username: str, password: str, permissions: list[str]) -> AbstractUser:
    """A new person with some of GRANTABLE."""
    require(actor, Right.ADMINISTER)
    users = get_user_model().objects
    user = get_user_model()(username=username)
    _check(lambda: UnicodeUsernameValidator()(username))
    _check(lambda: validate_password(password, user))
    with transaction.atomic():
        if users.filter(username__iexact=username).exists():
            raise Conflict(f"there is an account '{username}' already")
        user = users.create_user(username, password=password)
        user.user_permissions.set(_permissions(permissions))
        _record(actor, "account.create", f"Made account {username}", user)
    return user


def account_update(
    *, actor: Actor, user: AbstractUser, permissions: list[str] | None = None, is_active: bool | None = None
) -> AbstractUser:
    """Changes rights, or lets in and shuts out; what is None stays. Shut out, a person's tokens end with them."""
    require(actor, Right.ADMINISTER)
    if is_active is False and actor.user is not None and user.pk == actor.user.pk:
        raise Conflict("you cannot shut out yourself")
    with auth_file_kept():
        before = _facts(user)
        if permissions is not None:
            user.user_permissions.set(_permissions(permissions))
        if is_active is not None:
            user.is_active = is_active
            user.save(update_fields=["is_active"])
        _record(actor, "account.update", f"Changed account {user.get_username()}", user, before)
    return user


def _permissions(names: list[str]) -> list[Permission]:
    unknown = sorted(set(names) - set(GRANTABLE))
    if unknown:
        raise Invalid(f"expected permissions out of {', '.join(GRANTABLE)}, got {', '.join(unknown)}")
    return list(Permission.objects.filter(content_type__app_label="dashboard", codename__in=names))


def _check(validate: Any) -> None:
    try:
        validate()
    except ValidationError as error:
        raise Invalid(" ".join(error.messages)) from None


def _facts(user: AbstractUser) -> dict[str, Any]:
    names = user.user_permissions.values_list("codename", flat=True)
    return {"permissions": sorted(names), "is_active": user.is_active}


def _record(actor: Actor, action: str, summary: str, user: AbstractUser, before: dict[str, Any] | None = None) -> None:
    audit_record(actor=actor, action=action, summary=summary, before=before, after=_facts(user))
