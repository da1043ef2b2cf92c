"""Accounts of people: the first administrator, new accounts, and their rights."""

import secrets
from collections.abc import Callable, Mapping

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission, User
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, VIEWERS, Actor, Right, only_looks, require
from dashboard.accounts.tokens import auth_file_kept, groups_of
from dashboard.shared.exceptions import Conflict, Invalid

# The permissions (Model.Meta.permissions) that an account may be given. Everybody may see and, except viewers, infer.
ONLY_LOOK = "only_look"  # this entry means the group VIEWERS, not a permission
MAX_GROUP_NAME = 150
GRANTABLE = ("operate", "upload_data", "upload_code", ONLY_LOOK)


def administrator_ensure() -> tuple[str, str] | None:
    """Create the first administrator, and return the name and password; return None if there already is an administrator.

    The caller shows the password once. The password is "" if SLIPWAY_ADMIN_PASSWORD sets it, because the operator knows it.
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


def account_create(*, actor: Actor, username: str, password: str, permissions: list[str]) -> User:
    """Make an account with some of the permissions in GRANTABLE.

    Raises Forbidden if the actor does not administer. Raises Conflict if the name is taken. Raises Invalid if the name or the
    password breaks a rule. Raises StorageFull if auth.json cannot be written.
    """
    require(actor, Right.ADMINISTER)
    users = get_user_model().objects
    user = get_user_model()(username=username)
    _check("username", lambda: UnicodeUsernameValidator()(username))
    _check("password", lambda: validate_password(password, user))
    with auth_file_kept():
        if users.filter(username__iexact=username).exists():
            raise Conflict(f"there is an account '{username}' already; choose another name")
        user = users.create_user(username, password=password)
        _grant(user, permissions)
        _record(actor, "account.create", f"Made account {username}", user)
    return user


def account_update(
    *,
    actor: Actor,
    user: User,
    permissions: list[str] | None = None,
    is_active: bool | None = None,
    groups: list[str] | None = None,
) -> User:
    """Change the permissions of an account, whether it is active, or its groups; a value of None changes nothing.

    groups: the names of groups that share quotas and whose use is added up. They give no permission. New ones are made.

    The tokens of an inactive account give no right.
    Raises Forbidden if the actor does not administer. Raises Conflict if the actor would deactivate their own account.
    """
    require(actor, Right.ADMINISTER)
    if is_active is False and actor.user is not None and user.pk == actor.user.pk:
        raise Conflict("you cannot deactivate your own account; ask another administrator")
    with auth_file_kept():
        before = _facts(user)
        if permissions is not None:
            _grant(user, permissions)
        if groups is not None:
            _join(user, groups)
        if is_active is not None:
            user.is_active = is_active
            user.save(update_fields=["is_active"])
        _record(actor, "account.update", f"Changed account {user.get_username()}", user, before)
    return user


def granted(user: User) -> list[str]:
    """Return the entries of GRANTABLE that an account was given."""
    names = {permission.codename for permission in user.user_permissions.all()}
    return sorted(names | ({ONLY_LOOK} if only_looks(user) else set()))


def _grant(user: User, names: list[str]) -> None:
    unknown = sorted(set(names) - set(GRANTABLE))
    if unknown:
        raise Invalid(f"expected permissions out of {', '.join(GRANTABLE)}, got {', '.join(unknown)}")
    looks = ONLY_LOOK in names
    if looks and len(set(names)) > 1:
        raise Invalid.at(
            "permissions", f"'{ONLY_LOOK}' excludes every other permission: choose it alone, or the others"
        )
    if looks and user.is_superuser:
        raise Invalid.at("permissions", f"an administrator may do everything, so '{ONLY_LOOK}' cannot be set")
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="dashboard", codename__in=names))
    viewers, _ = Group.objects.get_or_create(name=VIEWERS)
    (user.groups.add if looks else user.groups.remove)(viewers)
    user._only_looks = looks  # type: ignore[attr-defined]  # the cache of authorisation.only_looks


def _join(user: User, names: list[str]) -> None:
    """Set the groups of an account, other than the group of viewers."""
    wanted = sorted({name.strip() for name in names if name.strip()})
    if VIEWERS in wanted:
        raise Invalid.at("groups", f"the group '{VIEWERS}' is the permission '{ONLY_LOOK}': choose another name")
    if any(len(name) > MAX_GROUP_NAME or "," in name or not name.isprintable() for name in wanted):
        raise Invalid.at("groups", f"expected names of groups of at most {MAX_GROUP_NAME} characters, without a comma")
    before = {group.name: group for group in user.groups.all() if group.name != VIEWERS}
    user.groups.remove(*[group for name, group in before.items() if name not in wanted])
    user.groups.add(*[Group.objects.get_or_create(name=name)[0] for name in wanted if name not in before])


def _check(field: str, validate: Callable[[], None]) -> None:
    try:
        validate()
    except ValidationError as error:
        message = " ".join(error.messages)
        raise Invalid.at(field, message) from None


def _facts(user: User) -> dict[str, object]:
    return {"permissions": granted(user), "is_active": user.is_active, "groups": groups_of(user)}


def _record(actor: Actor, action: str, summary: str, user: User, before: Mapping[str, object] | None = None) -> None:
    audit_record(actor=actor, action=action, summary=summary, before=before, after=_facts(user))
