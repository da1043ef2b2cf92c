"""One of several watchers leads."""

import time

import pytest
from django.db import connection
from django.db.backends.signals import connection_created
from django.db.models.functions import Now

from dashboard.models import Model, WatchLease
from dashboard.shared.fence import Fence, LeaseEnded, fence_headers, fenced_by, refuse_late_writes
from dashboard.watch.lease import Lease

pytestmark = pytest.mark.django_db(transaction=True)


def test_one_leads_until_its_lease_ends_and_the_number_rises():
    first, second = Lease(), Lease()
    assert first.take()
    assert first.renew()
    assert not second.take()
    WatchLease.objects.update(until=Now())
    while not second.take():
        pass
    assert second.number == first.number + 1
    assert not first.renew()
    first.give_up()
    assert second.renew()
    assert not first.take(), "a late leader takes nothing away"
    second.give_up()
    assert first.take()
    assert first.number == second.number + 1


def test_after_its_lease_a_leader_writes_nothing_and_its_calls_carry_its_number():
    refuse_late_writes()
    connection_created.send(type(connection), connection=connection)
    Model.objects.create(name="kept")
    assert not fence_headers()
    with fenced_by(Fence(4, time.monotonic() + 60)):
        assert fence_headers() == {"slipway-fence": "4"}
        Model.objects.create(name="in_time")
    with fenced_by(Fence(4, time.monotonic())):
        for write in (
            lambda: Model.objects.create(name="late"),
            lambda: Model.objects.update(name="late"),
            lambda: Model.objects.all().delete(),
        ):
            with pytest.raises(LeaseEnded, match="number 4 has ended"):
                write()
        assert {one.name for one in Model.objects.all()} == {"kept", "in_time"}
    Model.objects.create(name="outside")
    assert Model.objects.count() == 3
