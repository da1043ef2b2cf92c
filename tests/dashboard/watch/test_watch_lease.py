"""One of several watchers leads."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from django.db import connection
from django.db.backends.signals import connection_created
from django.db.models.functions import Now
from django.test import Client
from rest_framework.test import APIClient

from dashboard.models import Model, WatchLease
from dashboard.shared import fence, heartbeat
from dashboard.shared.changes import marks
from dashboard.shared.fence import Fence, LeaseEnded, fence_headers, fenced_by, refuse_late_writes
from dashboard.watch.lease import LEASE_S, Lease
from dashboard.watch.watcher import keep_lease, on_lease_thread
from tests.support.serving_process import PATIENCE_S

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


def test_tasks_that_hold_every_thread_do_not_cost_the_lease() -> None:
    lease, hang = Lease(), threading.Event()

    async def lead() -> None:
        assert await on_lease_thread(lease.take)
        fence = Fence(lease.number, first := time.monotonic() + LEASE_S)
        tasks = [asyncio.create_task(asyncio.to_thread(hang.wait)) for _ in range(100)]
        keeping = asyncio.create_task(keep_lease(lease, fence))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while fence.until == first:
                    assert not keeping.done()
                    await asyncio.sleep(0.05)
        finally:
            keeping.cancel()
            hang.set()
            await asyncio.gather(*tasks)
            await on_lease_thread(lambda: connection.close())

    asyncio.run(lead())


@pytest.fixture
def late_writes_refused() -> Iterator[None]:
    refuse_late_writes()
    yield
    connection_created.disconnect(dispatch_uid=fence._checked)
    connection.execute_wrappers.remove(fence._checked)


@pytest.mark.usefixtures("late_writes_refused")
def test_after_its_lease_a_leader_writes_nothing_and_its_calls_carry_its_number():
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


def test_the_servers_page_and_rest_tell_who_leads(api: APIClient, as_person: Callable[..., Client]) -> None:
    lease = Lease()
    assert lease.take()
    for name in ("watch", "worker"):
        heartbeat.beat(name)

    def told() -> list[tuple[str, bool | None, int | None]]:
        rows = api.get("/api/v1/processes").data["results"]
        return [(row["name"], row["leads"], row["lease_number"]) for row in rows]

    assert told() == [("watch", True, lease.number), ("worker", None, None)]
    assert f"leads with number {lease.number}, begun" in as_person().get("/servers/").content.decode()
    before = marks()
    assert lease.renew()
    assert marks() == before, "a page that shows who leads is not sent each second"
    lease.give_up()
    assert told() == [("watch", False, None), ("worker", None, None)]
    assert "follows" in as_person().get("/servers/").content.decode()
