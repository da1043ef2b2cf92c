"""A planted shift is found within 5,000 requests, and clean traffic raises no false alarm, over a hundred windows."""

from typing import Any

import pytest

from dashboard.access.authorisation import Actor
from dashboard.drift.selectors import drift_found
from dashboard.drift.services import monitor_create
from dashboard.jobs.runner import job_run
from dashboard.models import Capture, DriftMonitor, Job, Version
from tests.dashboard.drift.captured import add_requests, make_capture, normal

pytestmark = [pytest.mark.django_db, pytest.mark.long]
COLUMNS = 4


@pytest.fixture
def reference(relu: Version) -> Capture:
    """5,000 requests."""
    capture = make_capture(relu.model)
    add_requests(capture, 5000, normal(COLUMNS), at=1e9)
    return capture


def watching(reference: Capture, actor: Actor, **more: Any) -> DriftMonitor:
    return monitor_create(model=reference.model, actor=actor, capture=str(reference.pk), **more)


def checked(monitor: DriftMonitor) -> DriftMonitor:
    """Run the check that is queued."""
    monitor.refresh_from_db()
    assert monitor.job_id is not None
    job_run(job_id=monitor.job_id)
    assert Job.objects.get(pk=monitor.job_id).state == "succeeded", Job.objects.get(pk=monitor.job_id).error
    monitor.refresh_from_db()
    return monitor


def test_a_shift_of_half_a_deviation_is_found_within_5000_requests(reference: Capture, actor: Actor) -> None:
    now = make_capture(reference.model)
    add_requests(now, 2000, normal(COLUMNS, seed=1), at=2e9)
    add_requests(now, 5000, normal(COLUMNS, shift=0.5, seed=2), at=2e9 + 2000, first=2001)
    monitor = checked(watching(reference, actor))
    assert monitor.windows == 7
    rows = list(monitor.compared_windows.order_by("number"))
    assert [row.drifted for row in rows] == [0, 0, 1, 1, 1, 1, 1]
    worst = rows[2].columns[0]
    assert (worst["name"], worst["kind"], worst["test"]) == ("in.x[0]", "numeric", "Kolmogorov-Smirnov")
    assert 0.4 < worst["score"] < 0.6
    (found,) = drift_found()
    assert (found.model_name, found.window, found.columns, found.share) == ("relu", 7, ["in.x[0]"], 0.25)
    assert found.since == rows[2].last_at


def test_a_hundred_clean_windows_raise_no_alarm(reference: Capture, actor: Actor) -> None:
    now = make_capture(reference.model)
    add_requests(now, 100_000, normal(COLUMNS, seed=3), at=2e9)
    monitor = checked(watching(reference, actor))
    assert monitor.windows == 100
    assert monitor.compared_windows.filter(drifted__gt=0).count() == 0
    assert drift_found() == []
    assert 0 < sum(monitor.compared_windows.values_list("level", flat=True)) < monitor.alpha
