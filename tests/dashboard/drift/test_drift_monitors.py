"""Monitors: which requests they compare, what they refuse, what a deleted capture takes with it, and the checks of `watch`."""

import importlib.util
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.drift.selectors import drift_found
from dashboard.drift.services import monitor_check, monitor_create, monitor_delete, monitors_check
from dashboard.jobs.runner import job_run
from dashboard.models import Capture, DriftMonitor, DriftPicture, Job, Version
from dashboard.shared.exceptions import Conflict, Invalid
from tests.dashboard.conftest import text_of
from tests.dashboard.drift.captured import add_requests, make_capture, normal

pytestmark = pytest.mark.django_db


@pytest.fixture
def reference(relu: Version) -> Capture:
    capture = make_capture(relu.model)
    add_requests(capture, 600, normal(2), at=1e9)
    return capture


def watching(reference: Capture, actor: Actor, **more: Any) -> DriftMonitor:
    return monitor_create(model=reference.model, actor=actor, **{"capture": str(reference.pk), "window": 300, **more})


def checked(monitor: DriftMonitor, state: str = "succeeded") -> DriftMonitor:
    monitor = DriftMonitor.objects.get(pk=monitor.pk)
    assert monitor.job_id is not None
    job_run(job_id=monitor.job_id)
    assert Job.objects.get(pk=monitor.job_id).state == state, Job.objects.get(pk=monitor.job_id).error
    return DriftMonitor.objects.get(pk=monitor.pk)


def test_only_answered_requests_of_the_version_after_the_reference_are_compared(
    reference: Capture, actor: Actor
) -> None:
    now = make_capture(reference.model)
    add_requests(now, 300, normal(2, shift=5), at=0)  # before the reference
    add_requests(now, 300, normal(2, shift=5), at=2e9, first=1001, error="it failed")
    add_requests(now, 300, normal(2, shift=5), at=2e9, first=2001, version=2)
    add_requests(now, 299, normal(2, seed=1), at=2e9, first=3001)
    monitor = checked(watching(reference, actor, version=1))
    assert (monitor.windows, monitor.state) == (0, "waiting")
    add_requests(now, 1, normal(2, seed=2), at=2e9 + 400, first=4001)
    monitor = checked(monitor_check(monitor=monitor, actor=actor))
    assert (monitor.windows, monitor.state) == (1, "clean")
    checked(monitor_check(monitor=monitor, actor=actor))
    assert monitor.compared_windows.count() == 1


def test_the_first_days_of_a_version_are_a_reference_and_later_days_are_compared(relu: Version, actor: Actor) -> None:
    capture = make_capture(relu.model)
    begin = (timezone.now() - timedelta(days=3)).timestamp()
    add_requests(capture, 400, normal(2), at=begin, version=3)
    add_requests(capture, 300, normal(2, shift=1, seed=1), at=begin + 86_400, version=3, first=1001)
    monitor = checked(monitor_create(model=relu.model, actor=actor, version=3, days=0.5, window=300))
    assert (monitor.windows, monitor.state) == (1, "drifted")
    window = monitor.compared_windows.get()
    assert (window.reference_requests, window.requests) == (400, 300)
    with pytest.raises(Conflict, match="are not over yet"):
        monitor_create(model=relu.model, actor=actor, version=3, days=4)
    with pytest.raises(Conflict, match="no capture has requests"):
        monitor_create(model=relu.model, actor=actor, version=9, days=1)


def test_a_tensor_that_a_mask_changed_in_one_capture_only_is_not_compared(relu: Version, actor: Actor) -> None:
    before = make_capture(relu.model, inputs={"text": {"rule": "hash"}, "x": {"rule": "round", "step": 0.1}})
    now = make_capture(relu.model, inputs={"text": {"rule": "hash"}, "x": {"rule": "round", "step": 0.1}})

    def tensors(word: bytes) -> Any:
        values = np.random.default_rng(3).normal(size=(300, 1, 2)).astype(np.float32)
        return lambda place: {"text": np.array([[word]], object), "x": values[place]}

    add_requests(before, 300, tensors(b"one"), at=1e9)
    add_requests(now, 300, tensors(b"two"), at=2e9)
    monitor = checked(watching(before, actor))
    columns = monitor.compared_windows.get().columns
    assert sorted(column["name"] for column in columns) == ["in.x[0]", "in.x[1]"]
    assert monitor.state == "clean"


def test_what_cannot_be_compared_is_refused_in_a_sentence(
    reference: Capture, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Conflict, match="no such capture"):
        watching(reference, actor, capture="none")
    Capture.objects.filter(pk=reference.pk).update(ends_at=timezone.now() + timedelta(days=1))
    with pytest.raises(Conflict, match="has ended"):
        watching(reference, actor)
    with pytest.raises(Invalid, match="'window' from 200"):
        watching(reference, actor, window=10)
    with pytest.raises(Invalid, match="first days"):
        watching(reference, actor, capture="")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Invalid, match=r"pip install -r requirements/drift\.txt"):
        watching(reference, actor)


def test_a_reference_of_too_few_requests_fails_the_check_and_is_noted(relu: Version, actor: Actor) -> None:
    capture = make_capture(relu.model)
    add_requests(capture, 150, normal(2), at=1e9)
    monitor = checked(watching(capture, actor), "failed")
    assert monitor.note == "the reference has 150 answered requests, and a comparison needs 200 or more"


def test_a_damaged_file_fails_the_check_with_a_sentence(reference: Capture, actor: Actor) -> None:
    next(reference.folder.glob("*.parquet")).write_bytes(b"PAR1 nothing")
    monitor = checked(watching(reference, actor), "failed")
    assert monitor.note


def test_a_deleted_capture_takes_its_pictures_with_it_and_the_windows_stay(reference: Capture, actor: Actor) -> None:
    now = make_capture(reference.model)
    add_requests(now, 300, normal(2, shift=1), at=2e9)
    monitor = checked(watching(reference, actor))
    assert DriftPicture.objects.count() == 1
    now.delete()
    assert DriftPicture.objects.count() == 0
    assert monitor.compared_windows.get().columns[0]["drifted"]
    reference.delete()
    monitor.refresh_from_db()
    assert monitor.state == "rests"
    with pytest.raises(Conflict, match="was deleted"):
        monitor_check(monitor=monitor, actor=actor)
    assert monitors_check() == 0


def test_watch_checks_a_monitor_when_a_further_window_may_be_there(reference: Capture, actor: Actor) -> None:
    monitor = checked(watching(reference, actor))
    early = timezone.now() - timedelta(hours=2)
    DriftMonitor.objects.update(checked_at=early)
    assert monitors_check() == 0
    now = make_capture(reference.model)
    add_requests(now, 300, normal(2, shift=1, seed=1), at=2e9)
    assert monitors_check() == 1
    assert monitors_check() == 0  # it is queued
    monitor = checked(monitor)
    assert monitor.state == "drifted"
    assert [one.model_name for one in drift_found("relu")] == ["relu"]
    add_requests(now, 300, normal(2, seed=2), at=2e9 + 300, first=301)
    DriftMonitor.objects.update(checked_at=early)
    assert monitors_check() == 1
    assert checked(monitor).state == "clean"
    assert drift_found() == []


def test_a_check_that_was_done_by_another_worker_stores_no_window_twice(reference: Capture, actor: Actor) -> None:
    now = make_capture(reference.model)
    add_requests(now, 600, normal(2, seed=1), at=2e9)
    monitor = watching(reference, actor)
    checked(monitor)
    Job.objects.filter(pk=monitor.job_id).update(state="queued", attempt=1)
    checked(monitor)
    assert sorted(monitor.compared_windows.values_list("number", flat=True)) == [1, 2]


def test_monitors_over_rest(reference: Capture, api: APIClient) -> None:
    now = make_capture(reference.model)
    add_requests(now, 300, normal(2, shift=1), at=2e9)
    address = "/api/v1/models/relu/drift-monitors"
    made = api.post(address, {"capture": str(reference.pk), "window": 300}, format="json")
    assert made.status_code == 202, made.data
    monitor = checked(DriftMonitor.objects.get(pk=made.data["id"]))
    one = api.get(f"{address}/{monitor.pk}").data
    assert (one["state"], one["windows"], one["reference"]) == ("drifted", 1, str(reference.pk))
    (window,) = api.get(f"{address}/{monitor.pk}/windows").data["results"]
    assert (window["drifted"], window["share"], window["columns"][0]["name"]) == (1, 0.5, "in.x[0]")
    detail = api.get(f"{address}/{monitor.pk}/windows/1").data
    assert len(detail["distributions"]) == 2
    assert sum(detail["distributions"][0]["current"]) == pytest.approx(1)
    assert [row["model_name"] for row in api.get("/api/v1/drift").data["results"]] == ["relu"]
    assert api.post(f"{address}/{monitor.pk}/check").status_code == 202
    assert api.get(f"{address}/{monitor.pk}/windows/7").status_code == 404
    assert api.delete(f"{address}/{monitor.pk}").status_code == 204
    assert api.get("/api/v1/drift").data["results"] == []


def test_the_page_shows_the_worst_column_first_and_hides_values_from_viewers(
    reference: Capture, actor: Actor, as_person: Any
) -> None:
    now = make_capture(reference.model)
    add_requests(now, 300, normal(2, shift=1), at=2e9)
    checked(watching(reference, actor))
    operator: Client = as_person("operate")
    page = text_of(operator, "/models/relu/data-drift")
    assert "Window 1: 1 of 2 columns drifted" in page
    assert page.index("in.x[0]") < page.index("in.x[1]")
    assert page.count('<rect class="current"') > 20
    viewer = text_of(as_person(), "/models/relu/data-drift")
    assert "Window 1: 1 of 2 columns drifted" in viewer
    assert '<rect class="current"' not in viewer
    assert "They are shown to people who may operate the model" in viewer


def test_the_form_makes_a_monitor_and_keeps_what_was_typed_after_an_error(reference: Capture, as_person: Any) -> None:
    operator: Client = as_person("operate")
    typed = {"capture": str(reference.pk), "version": "", "days": "", "window": "abc", "alpha": "1", "threshold": "0.1"}
    answer = operator.post("/models/relu/data-drift", typed)
    assert answer.status_code == 400
    assert "&#x27;abc&#x27; is not a number" in answer.content.decode()
    assert operator.post("/models/relu/data-drift", {**typed, "window": "300"}).status_code == 302
    monitor = DriftMonitor.objects.get()
    assert (monitor.window, monitor.alpha, monitor.threshold, monitor.version) == (300, 0.01, 0.1, 0)
    assert as_person().post("/models/relu/data-drift", typed).status_code == 403


def test_a_deleted_monitor_stops_its_check(reference: Capture, actor: Actor) -> None:
    monitor = watching(reference, actor)
    job = monitor.job_id
    monitor_delete(monitor=monitor, actor=actor)
    assert job is not None
    job_run(job_id=job)
    assert Job.objects.get(pk=job).error == "the monitor was deleted meanwhile"
