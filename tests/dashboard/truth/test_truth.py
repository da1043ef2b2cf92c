"""Labels find the captured answers of their requests, early, late or repeated, and become the metric of each version."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.configuration.class_names import class_names_set
from dashboard.jobs.runner import job_run
from dashboard.models import Capture, Job, Model, TruthLabel, TruthMetric, Version
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid
from dashboard.truth import services
from dashboard.truth.scoring import Scorer
from dashboard.truth.selectors import compared, label_counts, metric_of, versions_of
from dashboard.truth.services import csv_labels, labels_add, labels_forget, labels_match, metric_set
from tests.dashboard.conftest import text_of
from tests.dashboard.drift.captured import Tensors, add_requests, make_capture

pytestmark = pytest.mark.django_db


def scores(wrong: int) -> Callable[[int], Tensors]:
    """Return answers y[1, 4] whose highest element is request % 4, but for the first `wrong` ones."""

    def answer(place: int) -> Tensors:
        row = np.zeros((1, 4), np.float32)
        row[0, (place + (place < wrong)) % 4] = 1
        return {"y": row}

    return answer


def empty(place: int) -> Tensors:
    return {}


@pytest.fixture
def capture(relu: Version) -> Capture:
    return make_capture(relu.model)


def joined(model: Model) -> None:
    """Run the newest look for answers."""
    job = Job.objects.filter(kind="truth", model=model, state="queued").get()
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert job.state == "succeeded", job.error


def labels(count: int, first: int = 1) -> list[tuple[str, str]]:
    return [(f"r{first + place}", str(place % 4)) for place in range(count)]


def now_s() -> float:
    return time.time() - 10_000


def test_accuracy_of_each_version_with_its_interval(capture: Capture, actor: Actor) -> None:
    add_requests(capture, 200, empty, scores(20), at=now_s(), ids=lambda n: f"r{n}")
    add_requests(capture, 100, empty, scores(50), at=now_s(), ids=lambda n: f"r{n}", version=2, first=201)
    metric = metric_set(model=capture.model, actor=actor, kind="accuracy", output="y")
    joined(capture.model)
    assert labels_add(model=capture.model, actor=actor, labels=labels(200) + labels(100, 201)).labels == 300
    joined(capture.model)
    second, first = versions_of(metric)
    assert (first.version, first.labels, first.value) == (1, 200, 0.9)
    assert (second.version, second.labels, second.value) == (2, 100, 0.5)
    assert first.estimate is not None
    assert 0.84 < first.estimate.low < 0.86 < 0.92 < first.estimate.high < 0.95  # Wilson


def test_labels_may_come_before_the_answer_after_it_and_again(capture: Capture, actor: Actor) -> None:
    metric = metric_set(model=capture.model, actor=actor, kind="accuracy", output="y")
    joined(capture.model)
    labels_add(model=capture.model, actor=actor, labels=[("r1", "3"), ("r1", "0")])
    joined(capture.model)
    assert versions_of(metric) == []
    assert labels_match() == 0  # nothing was captured
    add_requests(capture, 2, empty, scores(0), at=now_s(), ids=lambda n: f"r{n}")
    assert labels_match() == 1
    assert labels_match() == 0  # it is queued
    joined(capture.model)
    assert [(one.labels, one.value) for one in versions_of(metric)] == [(1, 1.0)]
    labels_add(model=capture.model, actor=actor, labels=[("r1", "2"), ("r2", "1")])
    joined(capture.model)
    assert [(one.labels, one.value) for one in versions_of(metric)] == [(2, 0.5)]


def test_errors_and_an_own_metric(capture: Capture, actor: Actor) -> None:
    answers = [1.0, 2.0, 3.0, 4.0]
    add_requests(
        capture,
        4,
        empty,
        lambda place: {"y": np.array([[answers[place]]], np.float32)},
        at=now_s(),
        ids=lambda n: f"r{n}",
    )
    labels_add(model=capture.model, actor=actor, labels=[("r1", "1"), ("r2", "4"), ("r3", "3"), ("r4", "no number")])
    for kind, expression, value in (
        ("mae", "", 2 / 3),
        ("rmse", "", (4 / 3) ** 0.5),
        ("own", "1 if abs(label - prediction) < 0.5 else 0", 2 / 3),
    ):
        metric = metric_set(model=capture.model, actor=actor, kind=kind, output="y", expression=expression)
        joined(capture.model)
        (found,) = versions_of(metric)
        assert found.value == pytest.approx(value)
        assert (found.labels, found.unfit, found.estimate) == (4, 1, None)


def test_a_request_that_failed_or_whose_output_was_not_captured_has_no_score(capture: Capture, actor: Actor) -> None:
    add_requests(capture, 1, empty, empty, at=now_s(), ids=lambda n: "r1")
    add_requests(capture, 1, empty, empty, at=now_s(), ids=lambda n: "r2", first=2, error="it failed")
    labels_add(model=capture.model, actor=actor, labels=[("r1", "1"), ("r2", "1")])
    metric = metric_set(model=capture.model, actor=actor, kind="accuracy", output="y")
    joined(capture.model)
    (found,) = versions_of(metric)
    assert (found.labels, found.unfit, found.value) == (1, 1, None)
    assert TruthLabel.objects.filter(version=None).count() == 1


def test_a_label_that_comes_over_30_days_after_the_answer_is_not_counted_and_told(
    capture: Capture, actor: Actor
) -> None:
    month = 30 * 86_400
    add_requests(capture, 2, empty, scores(0), at=time.time() - month - 60, ids=lambda n: f"late{n}")
    add_requests(capture, 2, empty, scores(0), at=time.time() - month + 60, ids=lambda n: f"r{n}", first=3)
    metric = metric_set(model=capture.model, actor=actor, kind="accuracy", output="y")
    joined(capture.model)
    labels_add(model=capture.model, actor=actor, labels=[("late1", "0"), ("r3", "0"), ("unknown", "0")])
    joined(capture.model)
    assert [(one.labels, one.value) for one in versions_of(metric)] == [(1, 1.0)]
    counts = label_counts(capture.model)
    assert (counts.total, counts.waiting, counts.late, counts.waits) == (3, 1, 1, "unknown")


def test_a_label_is_the_name_of_a_class_or_its_index(capture: Capture, actor: Actor) -> None:
    class_names_set(model=capture.model, actor=actor, output="y", names=["cat", "dog", "3", "bird"])
    add_requests(capture, 8, empty, scores(0), at=now_s(), ids=lambda n: f"r{n}")
    metric = metric_set(model=capture.model, actor=actor, kind="accuracy", output="y")
    named = ["cat", "1", "3", "bird", "dog", "no class"]  # "3" is the name of the class with index 2
    labels_add(model=capture.model, actor=actor, labels=[(f"r{at}", name) for at, name in enumerate(named, 1)])
    joined(capture.model)
    (found,) = versions_of(metric)
    assert (found.labels, found.unfit, found.example, found.value) == (6, 1, "no class", 0.8)
    assert compared(metric) == (
        "The class of 'y' is compared with the label by its name ('cat', 'dog', '3' and 1 more); a label that is no name, by "
        "its index."
    )
    class_names_set(model=capture.model, actor=actor, output="y", names=["cat", "dog", "3", "bird", "no class"])
    metric_set(model=capture.model, actor=actor, kind="accuracy", output="y")  # it compares again
    joined(capture.model)
    assert [(one.unfit, one.value) for one in versions_of(metric)] == [(0, pytest.approx(4 / 6))]


@pytest.mark.parametrize(
    ("answer", "label", "score"),
    [
        (np.array([["dog"]], object), "dog", 1.0),
        (np.array([["dog"]], object), "Dog", 0.0),
        (np.array([["dog", "cat"]], object), "dog", None),
        (np.array([[1]], np.int64), "dog", 1.0),
        (np.array([[1]], np.int64), "1", 1.0),
        (np.array([[0.7]], np.float32), "dog", 1.0),
        (np.array([[0.7]], np.float32), "0", 0.0),
        (np.array([[0.1, 0.7], [0.1, 0.7]], np.float32), "dog", None),
    ],
)
def test_texts_classes_and_probabilities_are_compared_as_what_they_are(
    answer: Any, label: str, score: float | None
) -> None:
    found = np.array([[text.encode() for text in row] for row in answer], object) if answer.dtype == object else answer
    scorer = Scorer(TruthMetric(kind="accuracy"), batched=True, names=["cat", "dog"])
    assert scorer.score(label, found) == score


def test_old_labels_are_forgotten(relu: Version, actor: Actor) -> None:
    labels_add(model=relu.model, actor=actor, labels=labels(3))
    TruthLabel.objects.filter(request_id="r1").update(received_at=timezone.now() - timedelta(days=31))
    assert labels_forget() == 1
    assert TruthLabel.objects.count() == 2


def test_labels_are_bounded_and_refused_in_a_sentence(
    relu: Version, actor: Actor, person: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows, message in (
        ([], "one label or more"),
        ([("", "1")], "the id of row 1 is empty, so none of these labels is stored"),
        ([("r", "1"), ("s", "1" * 201)], "the label of row 2 has more than 200 characters"),
    ):
        with pytest.raises(Invalid, match=message):
            labels_add(model=relu.model, actor=actor, labels=rows)
    assert not TruthLabel.objects.exists()
    monkeypatch.setattr(services, "MOST_AT_ONCE", 2)
    with pytest.raises(Invalid, match="at most 2 labels at once"):
        labels_add(model=relu.model, actor=actor, labels=labels(3))
    monkeypatch.setattr(services, "MOST_LABELS", 2)
    labels_add(model=relu.model, actor=actor, labels=labels(2))
    labels_add(model=relu.model, actor=actor, labels=labels(2))
    with pytest.raises(Conflict, match="may have no more"):
        labels_add(model=relu.model, actor=actor, labels=[("other", "1")])
    with pytest.raises(Forbidden):
        labels_add(model=relu.model, actor=Actor(user=person()), labels=labels(1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id;label\n1;2\n", "no column 'id'"),
        (b"id\n1\n", "no column 'label'"),
        (b"\xff\xfe", "not UTF-8"),
        (b'id,label\n"1,2\n', "row 1 of the file cannot be read, so none of these labels is stored"),
        (b"id,label\n1,2\n3,4,5\n", "row 2 has another number of values than the first line"),
        (b"label,id\n1,2\n3\n", "row 2 has another number of values than the first line"),
    ],
)
def test_a_file_that_is_no_csv_of_labels_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        list(csv_labels(content))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "label.real",
        "(lambda: 1)()",
        "label ** 9 ** 9",
        "[label][0]",
        "other",
        "abs(label, 1)",
        "abs(*label)",
        "max(label, key=prediction)",
        "1 < label < 2",
        "'text'",
        "label if",
        "",
        "-" * 300,
    ],
)
def test_an_expression_that_is_not_on_the_list_is_refused(relu: Version, actor: Actor, text: str) -> None:
    with pytest.raises(Invalid):
        metric_set(model=relu.model, actor=actor, kind="own", output="y", expression=text)
    assert metric_of(relu.model) is None


def test_truth_over_rest(capture: Capture, api: APIClient) -> None:
    add_requests(capture, 40, empty, scores(4), at=now_s(), ids=lambda n: f"r{n}")
    assert api.get("/api/v1/models/relu/truth").data == {
        "metric": None,
        "labels": 0,
        "waiting": 0,
        "late": 0,
        "compared": "",
        "versions": [],
    }
    assert api.put("/api/v1/models/relu/truth", {"kind": "accuracy"}, format="json").data["metric"]["output"] == "y"
    rows = [{"id": key, "label": int(value)} for key, value in labels(20)]
    assert api.post("/api/v1/models/relu/labels", {"labels": rows}, format="json").data == {
        "labels": 20,
        "replaced": 0,
        "repeated": 0,
    }
    text = "id,label\nr1,3\n" + "".join(f"{key},{value}\n" for key, value in labels(40)[19:] + labels(1))
    answer = api.post("/api/v1/models/relu/labels/csv", text.encode(), content_type="text/csv")
    assert answer.data == {"labels": 22, "replaced": 2, "repeated": 1}
    joined(capture.model)
    found = api.get("/api/v1/models/relu/truth").data
    assert (found["labels"], found["waiting"]) == (40, 0)
    assert (found["versions"][0]["value"], found["versions"][0]["labels"]) == (0.9, 40)
    assert found["versions"][0]["interval"]["low"] < 0.9 < found["versions"][0]["interval"]["high"]
    for body in ({"labels": [{"id": "1", "label": [1]}]}, {"labels": []}, {}):
        assert api.post("/api/v1/models/relu/labels", body, format="json").status_code == 400
    assert api.put("/api/v1/models/relu/truth", {"kind": "own"}, format="json").status_code == 400


def test_the_page_shows_each_version_and_takes_a_file(capture: Capture, as_person: Any) -> None:
    add_requests(capture, 40, empty, scores(4), at=now_s(), ids=lambda n: f"r{n}")
    operator: Client = as_person("operate")
    assert "No metric yet" in text_of(operator, "/models/relu/truth")
    assert operator.post("/models/relu/truth", {"kind": "own", "expression": "os", "limit": ""}).status_code == 400
    assert operator.post("/models/relu/truth", {"kind": "accuracy", "bound": "inf"}).status_code == 400
    assert operator.post("/models/relu/truth", {"kind": "accuracy", "limit": "0.02", "bound": "0.9"}).status_code == 302
    text = "id,label\n" + "".join(f"{key},{value}\n" for key, value in labels(41))
    file = SimpleUploadedFile("labels.csv", text.encode())
    assert operator.post("/models/relu/labels", {"file": file}).status_code == 302
    joined(capture.model)
    page = text_of(operator, "/models/relu/truth")
    assert "90 % (76.9 % to 96 %)" in page
    assert "1 label waits for an answer: no capture has an answer to the request ‘r41’." in page
    assert "Alert: the version that serves is worse than 0.9, or it is worse than the version before it" in page
    assert "Guardrail: a rollout’s candidate that is worse by more than 0.02" in page
    assert as_person().post("/models/relu/truth", {"kind": "accuracy"}).status_code == 403
