"""Limits password guessing: counts the attempts for each name, each address, and each pair of name and address.

An attempt is counted before the password is checked, so that simultaneous attempts cannot evade the limit. If the password was
right, the attempt is subtracted. The counts are database rows (at most MAX_COUNTS), which all web processes share.
"""

import hashlib
import math
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.http import HttpRequest
from django.utils import timezone

from dashboard.models import SignInCount

SPAN = timedelta(minutes=10)
# The attempts allowed within SPAN. A whole office may share an address; a name may be attacked from many addresses.
PER_NAME_AND_ADDRESS, PER_ADDRESS, PER_NAME = 10, 50, 100
MAX_COUNTS = 10_000


def sign_in_begin(*, name: str, address: str) -> int:
    """Count an attempt and return 0. After too many attempts, only return the seconds until the next one is allowed."""
    now, limits = timezone.now(), _limits(name, address)
    with transaction.atomic():
        counts = {
            row.key: row for row in SignInCount.objects.select_for_update().filter(key__in=limits, ends_at__gt=now)
        }
        waits = [row.ends_at - now for key, row in counts.items() if row.attempts >= limits[key]]
        if waits:
            return math.ceil(max(waits).total_seconds())
        SignInCount.objects.filter(key__in=counts).update(attempts=F("attempts") + 1)
        for key in limits.keys() - counts.keys():
            SignInCount.objects.update_or_create(key=key, defaults={"attempts": 1, "ends_at": now + SPAN})
        _bound(now)
    return 0


def sign_in_succeeded(*, name: str, address: str) -> None:
    """Delete the count of the name and address together, and subtract one attempt from each of the other two counts."""
    together, *single = _limits(name, address)
    SignInCount.objects.filter(key=together).delete()
    SignInCount.objects.filter(key__in=single, attempts__gt=0).update(attempts=F("attempts") - 1)


def sign_in_forget() -> None:
    """Remove the counts whose span has ended."""
    SignInCount.objects.filter(ends_at__lte=timezone.now()).delete()


def client_address(request: HttpRequest | None) -> str:
    """Return the address under which attempts are counted: for IPv6 the /64 network, because one host may use all of it.

    Behind a proxy (SLIPWAY_HTTPS) the address is the last entry of X-Forwarded-For, which the proxy itself wrote.
    """
    if request is None:
        return ""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "") if settings.BEHIND_PROXY else ""
    text = forwarded.rpartition(",")[2].strip() or request.META.get("REMOTE_ADDR", "")
    try:
        address = ip_address(text)
    except ValueError:
        return text
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(getattr(address, "ipv4_mapped", None) or address)


def _limits(name: str, address: str) -> dict[str, int]:
    return {
        _key("name and address", name, address): PER_NAME_AND_ADDRESS,
        _key("address", address): PER_ADDRESS,
        _key("name", name): PER_NAME,
    }


def _key(*parts: str) -> str:
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _bound(now: datetime) -> None:
    """If there are more than MAX_COUNTS counts, remove the counts that end first."""
    rows = SignInCount.objects.order_by("ends_at")
    if rows.count() > MAX_COUNTS:
        rows.filter(ends_at__lte=now).delete()
        surplus = rows.count() - MAX_COUNTS
        SignInCount.objects.filter(pk__in=list(rows.values_list("pk", flat=True)[: max(surplus, 0)])).delete()
