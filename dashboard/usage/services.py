"""Sets and removes quotas, which the server reads from auth.json and enforces, and forgets old usage."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import Group, User

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import VIEWERS, Actor, Right, require
from dashboard.accounts.tokens import auth_file_kept
from dashboard.models import ApiToken, Quota, UsageDay, UsageFile
from dashboard.shared.exceptions import Invalid, NotFound
from dashboard.usage.selectors import kept_from

OF = ("token", "person", "group")
MOST = 10**12
_WHOLE = ("requests_per_day", "rows_per_day")


def quota_set(*, actor: Actor, of: str, name: str, limits: Mapping[str, float | None]) -> Quota:
    """Set the quota of a token (by the first characters of its text), person or group, in place of the one that it has.

    limits: the names in Quota.LIMITS with their values; one that is missing or None does not limit.
    Raises Forbidden if the actor does not administer. Raises NotFound for an unknown name. Raises Invalid for limits that are
    not numbers above 0, or if there is no limit.
    """
    require(actor, Right.ADMINISTER)
    values = {limit: _checked(limit, limits.get(limit)) for limit in Quota.LIMITS}
    if not any(values.values()):
        raise Invalid("a quota needs at least one limit")
    with auth_file_kept():
        whose = _whose(of, name.strip())
        before = Quota.objects.filter(**whose).first()
        quota, _ = Quota.objects.update_or_create(**whose, defaults=values)
        _record(actor, "quota.set", f"Set the quota of {of} {quota.label}", before=before, after=quota)
    return quota


def quota_remove(*, actor: Actor, quota: Quota) -> None:
    """Remove a quota. Raises Forbidden if the actor does not administer."""
    require(actor, Right.ADMINISTER)
    with auth_file_kept():
        _record(actor, "quota.remove", f"Removed the quota of {quota.of} {quota.label}", before=quota, after=None)
        Quota.objects.filter(pk=quota.pk).delete()


def usage_forget() -> int:
    """Delete the usage of months that are older than the setting keeps, and return how many rows."""
    cut = kept_from()
    UsageFile.objects.filter(day__lt=cut).delete()
    return UsageDay.objects.filter(day__lt=cut).delete()[0]


def _whose(of: str, name: str) -> dict[str, Any]:
    if of == "person":
        user = User.objects.filter(username=name).first()
        if user is not None:
            return {"user": user}
    elif of == "group":
        group = Group.objects.filter(name=name).exclude(name=VIEWERS).first()
        if group is not None:
            return {"group": group}
    elif of == "token":
        tokens = list(ApiToken.objects.filter(prefix=name)[:2])
        if len(tokens) == 1:
            return {"token": tokens[0]}
    else:
        raise Invalid.at("of", f"expected one of {', '.join(OF)}, got '{of[:40]}'")
    hint = ": give the first characters of its text, as the list of tokens shows them" if of == "token" else ""
    raise NotFound(f"there is no {of} '{name[:100]}'{hint}")


def _checked(limit: str, value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not 0 < value <= MOST or (limit in _WHOLE and value != int(value)):
        kind = "a whole number" if limit in _WHOLE else "a number"
        raise Invalid.at(limit, f"expected {kind} above 0 and of at most {MOST:,}")
    return int(value) if limit in _WHOLE else value


def _record(actor: Actor, action: str, summary: str, *, before: Quota | None, after: Quota | None) -> None:
    shown = [dict(one.limits()) if one is not None else None for one in (before, after)]
    audit_record(actor=actor, action=action, summary=summary, before=shown[0], after=shown[1])
