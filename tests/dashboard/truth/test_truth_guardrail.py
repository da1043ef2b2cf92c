"""A rollout's candidate whose answers are further from the labels than its guardrail allows is taken out, and an alert tells of
a version that serves such answers."""

import time
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.alerts import finders
from dashboard.alerts.facts import Facts
from dashboard.models import AuditEntry, Model, ReleaseSpan, Rollout, Server, TruthMetric
from dashboard.rollouts.services import rollout_start
from dashboard.shared.choices import RolloutState
from dashboard.truth.guardrail import rollouts_check
from dashboard.truth.services import labels_add, metric_set
from dashboard.truth.trouble import truths_check
from dashboard.versions.services import release_promote
from tests.dashboard.drift.captured import add_requests, make_capture
from tests.dashboard.rollouts.conftest import model, served  # noqa: F401 - one is a fixture
from tests.dashboard.truth.test_truth import empty, joined, labels, scores

pytestmark = pytest.mark.django_db


@pytest.fixture
def rollout(model: Model, actor: Actor) -> Rollout:  # noqa: F811
    return rollout_start(model=model, actor=actor, candidate=2, plan={"steps": [{"weight": 50}], "promote": "hand"})


def answered(rollout: Rollout, actor: Actor, *, wrong: int, before: float = 0.0, **metric: Any) -> None:
    """500 labelled requests of each version; stable is wrong in 25 of them, the candidate in `wrong`."""
    capture = make_capture(rollout.model)
    at = time.time() + 1 - before
    add_requests(capture, 500, empty, scores(25), at=at, ids=lambda n: f"r{n}")
    add_requests(capture, 500, empty, scores(wrong), at=at, ids=lambda n: f"r{n}", version=2, first=501)
    metric_set(model=rollout.model, actor=actor, kind="accuracy", output="y", **{"limit": 0.02, **metric})
    labels_add(model=rollout.model, actor=actor, labels=labels(500) + labels(500, 501))
    joined(rollout.model)


def test_a_candidate_that_is_clearly_worse_is_taken_out_and_the_reason_is_kept(rollout: Rollout, actor: Actor) -> None:
    answered(rollout, actor, wrong=125)
    assert rollouts_check() == 1
    rollout.refresh_from_db()
    assert rollout.state == RolloutState.ROLLED_BACK
    assert rollout.reason == (
        "By 500 labels, the accuracy of version 2 is 0.75, and that of version 1 is 0.95; at most 0.02 worse is allowed."
    )
    assert AuditEntry.objects.filter(action="rollout.roll_back").exists()
    assert rollouts_check() == 0


def test_a_candidate_that_is_no_worse_or_not_clearly_worse_stays(rollout: Rollout, actor: Actor) -> None:
    answered(rollout, actor, wrong=40)
    assert rollouts_check() == 0
    rollout.refresh_from_db()
    assert rollout.state == RolloutState.RUNNING
    assert TruthMetric.objects.get().looked == {rollout.name: 500}


def test_without_a_limit_nothing_is_taken_out(rollout: Rollout, actor: Actor) -> None:
    answered(rollout, actor, wrong=400, limit=None)
    assert rollouts_check() == 0


def test_requests_from_before_the_rollout_do_not_count(rollout: Rollout, actor: Actor) -> None:
    answered(rollout, actor, wrong=400, before=10_000)
    assert rollouts_check() == 0


def test_an_alert_tells_that_the_version_that_serves_is_worse_than_the_bound_or_than_the_one_before(
    model: Model,  # noqa: F811
    actor: Actor,
    server: Server,
) -> None:
    capture = make_capture(model)
    add_requests(capture, 500, empty, scores(25), at=time.time() - 9000, ids=lambda n: f"r{n}")
    add_requests(capture, 500, empty, scores(125), at=time.time() - 9000, ids=lambda n: f"r{n}", version=2, first=501)
    labels_add(model=model, actor=actor, labels=labels(500) + labels(500, 501))

    def told(**metric: Any) -> str:
        metric_set(model=model, actor=actor, kind="accuracy", output="y", **metric)
        joined(model)
        truths_check()
        return next((one.detail for one in finders.truth(Facts(timezone.now()))), "")

    assert told(bound=0.9) == ""  # 0.95 by version 1, which serves
    assert told(bound=0.99) == (
        "By 500 labels, the accuracy of version 1, which serves, is 0.95: worse than the bound of 0.99."
    )
    release_promote(version=model.versions.get(number=2), actor=actor)
    served(model, server)
    assert told() == "By 500 labels, the accuracy of version 2, which serves, is 0.75, and that of version 1 was 0.95."
    assert told(limit=0.3) == ""
    ReleaseSpan.objects.update(ended_at=timezone.now())
    assert told() == ""  # nothing serves


def test_errors_are_worse_when_they_are_higher(model: Model, actor: Actor) -> None:  # noqa: F811
    capture = make_capture(model)
    add_requests(capture, 100, empty, lambda place: {"y": np.full((1, 1), place % 3, np.float32)}, at=time.time() - 900)
    labels_add(model=model, actor=actor, labels=[(str(number), "0") for number in range(1, 101)])
    for bound, count in ((0.2, 1), (0.98, 0)):
        metric_set(model=model, actor=actor, kind="mae", output="y", bound=bound)
        joined(model)
        truths_check()
        assert len(list(finders.truth(Facts(timezone.now())))) == count
