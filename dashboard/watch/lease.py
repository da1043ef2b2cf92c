"""The lease that one of several watchers holds. All times are by the clock of the database, so that machines need not agree."""

import os
import secrets
import threading
from datetime import UTC, datetime, timedelta

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from dashboard.access.control import restored_from
from dashboard.models import WatchLease
from dashboard.shared.changes import quietly
from dashboard.shared.heartbeat import HOST

LEASE_S = 3.0
RENEW_S = 1.0
FOLLOW_S = 0.5  # a watcher that follows asks for the lease so often

_ROW = 1


class Lease:
    """One watcher's use of the lease. number: the fencing number, 0 before it leads. Every method is one conditional write.

    The methods are called on several threads; `give_up` waits for a `take` under way."""

    def __init__(self) -> None:
        self.holder = f"{WatchLease.holder_of(HOST, os.getpid())}{secrets.token_hex(4)})"
        self.number = 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take the lease if it is free, has ended or is this watcher's own; return whether this watcher leads now. Nobody takes
        it in an installation that was restored and is not in control."""
        with self._lock:
            return self._take()

    def renew(self) -> bool:
        """Prolong the lease; return False if another watcher has taken it."""
        with quietly():  # pages show who leads, not until when
            return bool(self._own().update(until=Now() + timedelta(seconds=LEASE_S)))

    def give_up(self) -> None:
        """End the lease, so that another watcher leads immediately. Nothing happens if another has it."""
        with self._lock:
            self._own().update(holder="", until=datetime.fromtimestamp(0, UTC))

    def _take(self) -> bool:
        if restored_from():
            return False
        WatchLease.objects.get_or_create(pk=_ROW, defaults={"until": datetime.fromtimestamp(0, UTC)})
        free = Q(until__lt=Now()) | Q(holder=self.holder)
        facts = {"holder": self.holder, "since": Now(), "until": Now() + timedelta(seconds=LEASE_S)}
        if not WatchLease.objects.filter(free, pk=_ROW).update(number=F("number") + 1, **facts):
            return False
        number = WatchLease.objects.filter(pk=_ROW, holder=self.holder).values_list("number", flat=True).first()
        self.number = number or 0
        return number is not None

    def _own(self) -> QuerySet[WatchLease]:
        return WatchLease.objects.filter(pk=_ROW, holder=self.holder, number=self.number)
