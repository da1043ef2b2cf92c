"""A replay sends captured requests to a real server, and counts what differs, what fails and how long it takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.captures.services import capture_delete, capture_readers_set
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import job_cancel
from dashboard.models import AuditEntry, Capture, Job, Replay, Version
from dashboard.replays import counting, running
from dashboard.replays.selectors import worst_requests
from dashboard.replays.services import replay_start
from dashboard.shared.exceptions import Conflict, Forbidden
from tests.dashboard.drift.captured import add_requests, make_capture, normal
from tests.dashboard.replays.conftest import relu_capture

pytestmark = pytest.mark.django_db


@pytest.fixture
def start(actor: Actor, unqueued: list[int]) -> Callable[..., Replay]:
    def start(capture: Capture, version: Version, **given: Any) -> Replay:
        return replay_start(capture=capture, version=version, actor=actor, **given)

    return start


def run(replay: Replay) -> Replay:
    assert replay.job_id is not None
    job_run(job_id=replay.job_id)
    return Replay.objects.get(pk=replay.pk)


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "WINDOW", 200)


@pytest.mark.usefixtures("short_windows")
def test_every_request_is_counted_once_and_the_worst_are_kept(
    relu: Version, api: APIClient, actor: Actor, start: Callable[..., Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "KEPT", 10)
    capture = relu_capture(relu.model, 900, wrong=lambda place: place % 9 == 0)
    wide = lambda place: {"x": np.zeros((1, 3), np.float32)}  # noqa: E731
    add_requests(capture, 5, wide, lambda place: {"y": np.zeros((1, 3), np.float32)}, first=901)
    add_requests(capture, 4, wide, first=906, error="it was refused")
    add_requests(capture, 3, normal(4), first=910, error="the queue was full")
    found = run(start(capture, relu))
    assert (found.state, found.note, found.done, found.requests) == ("done", "", 912, 912)
    figures = found.figures
    assert (figures["compared"], figures["differ"], figures["failed"]) == (900, 100, 5)
    assert (figures["failed_before"], figures["mended"]) == (7, 3)
    [(reason, failed)] = figures["reasons"].items()
    assert reason.startswith("400 Bad Request: ")
    assert failed == {"requests": 5, "first": 901}
    [(name, output)] = figures["outputs"].items()
    assert (name, output["compared"], output["differ"]) == ("y", 900, 100)
    assert output["bins"][0] + output["bins"][1] == 800
    assert output["max_absolute"] == pytest.approx(5, abs=1e-5)
    assert sum(figures["captured"].values()) == 900
    assert sum(figures["replayed"].values()) == 903
    worst = worst_requests(found, actor)
    assert len(worst) == 10
    assert all(one.difference.number % 9 == 1 for one in worst)
    assert len(worst[0].compared[0].pairs) == 4
    assert worst[0].inputs["x"].startswith("FP32 [1, 4]: ")
    answer = api.get(f"/api/v1/models/relu/captures/{capture.pk}/replays/{found.pk}/worst").data
    assert [one["number"] for one in answer["worst"]] == [one.difference.number for one in worst]
    assert answer["failures"][0]["requests"] == 5
    assert AuditEntry.objects.filter(action="capture.read").count() == 2
    row = api.get(f"/api/v1/models/relu/captures/{capture.pk}/replays").data["results"][0]
    assert row["latency"]["p99"]["replayed"] > 0
    assert (row["version"], row["differ"]) == (1, 100)


@pytest.mark.usefixtures("short_windows")
def test_a_cancelled_replay_keeps_what_was_counted(
    relu: Version, actor: Actor, start: Callable[..., Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = start(relu_capture(relu.model, 1000), relu)
    keep = running._Run._keep

    def cancelled(self: Any, *given: Any) -> None:
        keep(self, *given)
        job_cancel(job=Job.objects.get(pk=replay.job_id), actor=actor)

    monkeypatch.setattr(running._Run, "_keep", cancelled)
    monkeypatch.setattr(running, "CANCEL_CHECK_S", 0)
    found = run(replay)
    assert (found.state, found.done, found.figures["compared"]) == ("cancelled", 200, 200)
    assert list((Path(found.capture.folder).parents[1] / "data").rglob("server.args")) == []


@pytest.mark.usefixtures("short_windows")
def test_a_capture_that_is_deleted_ends_its_replay(
    relu: Version, actor: Actor, start: Callable[..., Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = relu_capture(relu.model, 1000, wrong=lambda place: True)
    replay, keep = start(capture, relu), running._Run._keep

    def deleted(self: Any, *given: Any) -> None:
        keep(self, *given)
        capture_delete(capture=Capture.objects.get(pk=capture.pk), actor=actor)

    monkeypatch.setattr(running._Run, "_keep", deleted)
    assert replay.job_id is not None
    job_run(job_id=replay.job_id)
    job = Job.objects.get(pk=replay.job_id)
    assert (job.state, job.error) == ("failed", "the capture was deleted meanwhile")
    assert not Replay.objects.exists()


def test_a_version_that_does_not_load_in_time_ends_the_replay(
    relu: Version, start: Callable[..., Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOAD_S", 0.0)
    found = run(start(relu_capture(relu.model, 1), relu))
    assert found.state == "failed"
    assert found.note.startswith("version 1 was not loaded within 0 ms")


def test_masked_outputs_are_not_compared(relu: Version, start: Callable[..., Replay]) -> None:
    mask = {"outputs": {"y": {"rule": "round", "step": 1.0}}, "inputs": {"x": {"rule": "round", "step": 0.5}}}
    found = run(start(relu_capture(relu.model, 3, wrong=lambda place: True, **mask), relu))
    assert (found.state, found.unlike, found.figures["compared"], found.differ_share) == ("done", ["y"], 0, None)


@pytest.mark.parametrize(
    ("wanted", "inputs", "outputs", "words"),
    [
        ({"inputs": {"x": {"rule": "drop"}}}, "x", "y", r"its mask dropped the input 'x' \(rule 'drop'\)"),
        ({"inputs": {"x": {"rule": "hash"}}}, "x", "y", r"its mask hashed the input 'x' \(rule 'hash'\)"),
        ({}, "z", "y", "version 1 has no input 'z', which the captured requests have; its inputs are x"),
        ({}, "x", "z", "version 1 has no output 'z', which the captured requests have; its outputs are y"),
        ({}, "", "y", "version 1 needs the input 'x', which the captured requests lack"),
        ({}, None, None, "the capture has no requests: there is nothing to replay"),
    ],
)
def test_a_capture_that_cannot_be_replayed_is_refused_with_a_sentence(
    relu: Version, start: Callable[..., Replay], wanted: Any, inputs: str | None, outputs: str | None, words: str
) -> None:
    capture, tensor = make_capture(relu.model, **wanted), np.zeros((1, 4), np.float32)
    if inputs is not None and outputs is not None:
        add_requests(capture, 1, lambda place: {inputs: tensor} if inputs else {}, lambda place: {outputs: tensor})
    with pytest.raises(Conflict, match=words):
        start(capture, relu)
    assert not Job.objects.filter(kind="replay").exists()


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (np.zeros((1, 4)), "version 1 takes the input 'x' as FP32, but it was captured as FP64"),
        (np.zeros((1, 5), np.float32), r"takes the input 'x' of shape \[.*4\], but it was captured with \[1, 5\]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_with_a_sentence(
    relu: Version, start: Callable[..., Replay], tensor: Any, words: str
) -> None:
    capture = make_capture(relu.model)
    add_requests(capture, 1, lambda place: {"x": tensor})
    with pytest.raises(Conflict, match=words):
        start(capture, relu)


def test_a_replay_needs_the_right_to_read_the_capture(
    relu: Version, actor: Actor, start: Callable[..., Replay], person: Callable[..., Any], api: APIClient
) -> None:
    capture, other = relu_capture(relu.model, 1), person("operate")
    capture_readers_set(model=relu.model, actor=Actor(user=None, system=True), readers=[other.get_username()])
    with pytest.raises(Forbidden, match="only the people whom an administrator named"):
        start(capture, relu)
    start_again = replay_start(capture=capture, version=relu, actor=Actor(user=other))
    with pytest.raises(Conflict, match="is being replayed against version 1"):
        replay_start(capture=capture, version=relu, actor=Actor(user=other))
    assert api.delete(f"/api/v1/models/relu/captures/{capture.pk}/replays/{start_again.pk}").status_code == 409
