"""One of several watchers leads."""

import pytest
from django.db.models.functions import Now

from dashboard.models import WatchLease
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
