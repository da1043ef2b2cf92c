"""People with their rights, tokens and quotas. Passwords and the texts of tokens are no text: what is new gets new ones."""

import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q
from django.utils import timezone

from dashboard.access.authorisation import VIEWERS, Actor
from dashboard.accounts.accounts import GRANTABLE, account_create, account_update, granted
from dashboard.accounts.tokens import account_name, groups_of, token_create, token_revoke
from dashboard.models import ApiToken, Quota
from dashboard.shared.choices import TokenRight
from dashboard.shared.exceptions import NotFound
from dashboard.text.kinds import INSTALLATION, Change, Kind, Secrets, administers
from dashboard.text.shapes import MOMENT, NAMES, Record, Table
from dashboard.usage.services import quota_remove, quota_set

_PERSON = {"permissions": [], "groups": [], "active": True, "administrator": False}
_QUOTA = dict.fromkeys(Quota.LIMITS)


# -- people ------------------------------------------------------------------------------------------------------------
def _people() -> Mapping[str, Any]:
    people = User.objects.prefetch_related("user_permissions", "groups")
    return {INSTALLATION: {person.get_username(): _person(person) for person in people}}


def _person(person: User) -> dict[str, object]:
    return {
        "permissions": [name for name in granted(person) if name in GRANTABLE],
        "groups": groups_of(person),
        "active": person.is_active,
        "administrator": person.is_superuser,
    }


def _write_person(change: Change, actor: Actor, kept: Secrets) -> None:
    wanted = {**_PERSON, **(change.after or {})}
    if change.before is None:
        password = secrets.token_urlsafe(12)
        person = account_create(actor=actor, username=change.key, password=password, permissions=wanted["permissions"])
        kept.keep(f"password of {change.key}", password)
        if wanted["groups"] or not wanted["active"]:
            account_update(actor=actor, user=person, groups=wanted["groups"], is_active=wanted["active"])
        return
    person = User.objects.get(username=change.key)
    if change.after is None:
        account_update(actor=actor, user=person, is_active=False)
        return
    account_update(
        actor=actor,
        user=person,
        permissions=wanted["permissions"] if change.changed("permissions", []) else None,
        groups=wanted["groups"] if change.changed("groups", []) else None,
        is_active=wanted["active"] if change.changed("active", True) else None,
    )


def _refused_person(change: Change, actor: Actor) -> str:
    if change.after is not None and change.changed("administrator", False):
        if change.before is None:
            return "an administrator is made by 'manage.py createsuperuser' before the text is applied"
        return "who administers is not changed by a text; use 'manage.py shell' or leave the field as it is"
    if change.key == actor.person and not (change.after or {"active": False}).get("active", True):
        return "you cannot deactivate your own account"
    unknown = sorted(set((change.after or {}).get("permissions", ())) - set(GRANTABLE))
    return f"expected permissions out of {', '.join(GRANTABLE)}, got {', '.join(unknown)}" if unknown else ""


PEOPLE = Kind(
    name="people",
    one="person",
    file="people.yaml",
    shape=Table(Record({"permissions": NAMES, "groups": NAMES, "active": bool, "administrator": bool}, _PERSON)),
    read=_people,
    write=_write_person,
    entries=True,
    refused=_refused_person,
    rights=administers,
    makes_secret=lambda entry: True,
    lasting=lambda entry: not entry.get("active", True),
)


# -- tokens ------------------------------------------------------------------------------------------------------------
def _tokens() -> Mapping[str, Any]:
    rows = ApiToken.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now())).select_related("user")
    return {INSTALLATION: [_token(token) for token in rows]}


def _token(token: ApiToken) -> dict[str, object]:
    return {
        "person": token.user.get_username(),
        "name": token.name,
        "rights": token.rights,
        "models": token.model_names,
        "expires": token.expires_at,
    }


def _write_token(change: Change, actor: Actor, kept: Secrets) -> None:
    if change.after is None:
        token_revoke(token=_token_like(change.before), actor=actor)
        return
    wanted = change.after
    person = User.objects.filter(username=wanted["person"]).first()
    if person is None:
        raise NotFound(f"there is no account '{wanted['person']}'")
    expires = datetime.fromisoformat(wanted["expires"]) if "expires" in wanted else None
    token, secret = token_create(
        user=person,
        actor=actor,
        name=wanted["name"],
        rights=wanted["rights"],
        expires_at=expires,
        model_names=wanted.get("models", []),
    )
    kept.keep(f"token {account_name(token)}", secret)


def _token_like(entry: Mapping[str, Any]) -> ApiToken:
    """Return a token whose entry this is."""
    rows = ApiToken.objects.filter(user__username=entry["person"], name=entry["name"]).select_related("user")
    for token in rows:
        if sorted(token.rights) == entry["rights"] and sorted(token.model_names) == entry.get("models", []):
            expires = entry.get("expires")
            if token.expires_at == (datetime.fromisoformat(expires) if expires else None):
                return token
    raise NotFound(f"token '{entry['name']}' of {entry['person']} was revoked meanwhile")


def _refused_token(change: Change, actor: Actor) -> str:
    if change.after is None:
        return ""
    expires = change.after.get("expires")
    if expires and datetime.fromisoformat(expires) <= timezone.now():
        return "the token has expired; remove it from the text"
    unknown = sorted(set(change.after["rights"]) - set(TokenRight.values))
    return f"expected rights out of {', '.join(TokenRight.values)}, got {', '.join(unknown)}" if unknown else ""


TOKENS = Kind(
    name="tokens",
    one="token",
    file="tokens.yaml",
    shape=[
        Record(
            {"person": str, "name": str, "rights": NAMES, "models": NAMES, "expires": MOMENT},
            {"models": [], "expires": None},
        )
    ],
    read=_tokens,
    write=_write_token,
    entries=True,
    listed=True,
    refused=_refused_token,
    rights=administers,
    makes_secret=lambda entry: True,
)


# -- quotas ------------------------------------------------------------------------------------------------------------
def _quotas() -> Mapping[str, Any]:
    """Return the quotas, without those that no text can name: of groups without members, and of tokens that share a name."""
    rows = Quota.objects.select_related("token__user", "user", "group")
    named = Counter(account_name(token) for token in ApiToken.objects.select_related("user"))
    peopled = set(User.objects.exclude(groups=None).values_list("groups__name", flat=True))
    found: dict[str, dict[str, object]] = defaultdict(dict)
    for quota in rows:
        name = account_name(quota.token) if quota.token is not None else quota.name
        if (quota.group is not None and name not in peopled) or (quota.token is not None and named[name] > 1):
            continue
        found[f"{quota.of} {name}"] = dict(quota.limits())
    return {INSTALLATION: dict(found)}


def _write_quota(change: Change, actor: Actor, kept: Secrets) -> None:
    of, _, name = change.key.partition(" ")
    if change.after is None:
        for quota in Quota.objects.select_related("token__user", "user", "group"):
            if f"{quota.of} {account_name(quota.token) if quota.token else quota.name}" == change.key:
                quota_remove(actor=actor, quota=quota)
        return
    if of == "token":
        person, _, token_name = name.partition(": ")
        rows = list(ApiToken.objects.filter(user__username=person, name=token_name))
        if not rows:
            raise NotFound(f"there is no token '{token_name[:100]}' of '{person[:100]}'")
        name = rows[0].prefix
    quota_set(actor=actor, of=of, name=name, limits=change.after)


def _refused_quota(change: Change, actor: Actor) -> str:
    of, _, name = change.key.partition(" ")
    if of not in ("person", "group", "token") or not name or name == VIEWERS:
        return "expected the name of an entry as 'person NAME', 'group NAME' or 'token PERSON: NAME'"
    return "" if change.after is None or any(change.after.values()) else "a quota needs at least one limit"


QUOTAS = Kind(
    name="quotas",
    one="quota",
    file="quotas.yaml",
    shape=Table(
        Record(
            {
                "requests_per_day": int,
                "rows_per_day": int,
                "compute_seconds_per_day": float,
                "requests_per_second": float,
            },
            _QUOTA,
        )
    ),
    read=_quotas,
    write=_write_quota,
    entries=True,
    refused=_refused_quota,
    rights=administers,
)
