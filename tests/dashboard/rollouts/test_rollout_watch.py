"""`watch` looks at every rollout once a second, whatever becomes of another one."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DataError, OperationalError

from dashboard.access.authorisation import Actor
from dashboard.metrics.feed import FeedReader
from dashboard.models import Model, Rollout, Server
from dashboard.rollouts.plan import default_plan
from dashboard.rollouts.services import rollout_start
from dashboard.servers.client import AsyncServerClient
from dashboard.watch import rollout_watch
from tests.dashboard.rollouts.reports import rollout_report

pytestmark = pytest.mark.django_db


def test_a_rollout_that_cannot_be_advanced_holds_up_no_other_and_is_reported_once(
    model: Model, actor: Actor, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = Model.objects.create(name="other")
    Rollout.objects.create(model=other, name="r-other", kind="canary", stable=1, candidate=2, plan={})
    broken = rollout_start(model=model, actor=actor, candidate=2)  # the newest is looked at first
    seen: list[str] = []
    error: Exception = DataError("a database refuses what is to be kept")

    def look(*, rollout: Rollout, **given: Any) -> None:
        if rollout.name == broken.name:
            raise error
        seen.append(rollout.name)

    monkeypatch.setattr(rollout_watch, "rollout_look", look)

    @async_to_sync
    async def look_twice() -> None:
        async with AsyncServerClient(server) as client:
            watch = rollout_watch.RolloutWatch(client, FeedReader())
            await watch.look()
            await watch.look()

    look_twice()
    assert seen == ["r-other", "r-other"]
    assert [record.getMessage() for record in caplog.records] == [f"rollout {broken.name} of relu was not looked at"]
    error = OperationalError("it is away, for all of them")
    with pytest.raises(OperationalError):
        look_twice()


def test_many_that_are_quiet_take_turns_and_one_with_news_does_not_wait(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(3):
        model = Model.objects.create(name=f"model-{place}")
        Rollout.objects.create(
            model=model, name=f"r-{place}", kind="canary", stable=1, candidate=2, plan=default_plan("canary")
        )
    seen: list[str] = []
    monkeypatch.setattr(rollout_watch, "rollout_look", lambda *, rollout, **given: seen.append(rollout.name))
    monkeypatch.setattr(rollout_watch, "QUIET_LOOKED_AT", 1)
    reader, words = FeedReader(), [rollout_report(Rollout.objects.get(name="r-1")) for _ in range(3)]

    @async_to_sync
    async def look() -> None:
        async with AsyncServerClient(server) as client:
            watch = rollout_watch.RolloutWatch(client, reader)
            for _ in range(3):
                await watch.look()
            assert sorted(seen) == ["r-0", "r-1", "r-2"]
            for word in words:
                reader.traffic["r-1"] = word
                await watch.look()

    look()
    assert seen[3:].count("r-1") == 3
    assert len(seen) == 3 + 3 + 2
