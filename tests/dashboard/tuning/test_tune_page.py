"""The part *Tune* of the page *Benchmark*: empty, under way, done, failed, applied; its form keeps the typed text."""

from collections.abc import Callable
from typing import Any

import pytest

from dashboard.models import Job, Release, Tuning, Version
from dashboard.tuning import picture
from dashboard.tuning.plan import plan_of
from tests.dashboard.conftest import text_of
from tests.dashboard.measurements.conftest import load_row
from tests.dashboard.tuning.conftest import trial

pytestmark = pytest.mark.django_db
PAGE = "/models/relu/versions/1/tune"
FORM = {"goal": "throughput", "p99_ms": "50", "clients": "8", "encoding": "binary", "inputs": "signature"}
Keep = Callable[..., Tuning]
GAIN = {
    "before": {"value": 100.0, "spread": 2.0},
    "after": {"value": 210.0, "spread": 4.0},
    "change": 1.1,
    "spread": 0.05,
    "better": True,
}


def trials() -> list[Any]:
    return [
        trial({}, load_row(16, 100, 20.0)),
        trial({"relu:queue_delay": "0"}, load_row(16, 210, 9.0)),
        trial({"relu:instances": "4"}, load_row(16, 230, 30.0), state="ended"),
        trial({"relu:threads": "2"}, load_row(16, 220, 900.0), fits=False),
        trial({"relu:max_batch_size": "16"}, None, state="failed", note="the batch does not fit", fits=False),
        trial({"relu:queue_delay": "0"}, load_row(16, 210, 9.0), round=1),
    ]


def test_a_version_that_was_not_tuned_says_so(relu: Version, as_person: Any) -> None:
    page = text_of(as_person("operate"), PAGE)
    assert "Not tuned yet" in page
    assert 'name="most_minutes"' in page


def test_the_benchmark_page_has_the_part_tune(relu: Version, as_person: Any) -> None:
    client = as_person("operate")
    assert f'hx-get="{PAGE}?part=section"' in text_of(client, "/models/relu/versions/1/benchmark")
    part = client.get(f"{PAGE}?part=section", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in part
    assert "Not tuned yet" in part
    assert 'name="most_minutes"' in part


def test_the_form_starts_a_tuning(relu: Version, as_person: Any, unqueued: list[int]) -> None:
    client = as_person("operate")
    assert client.post(PAGE, FORM).status_code == 302
    found = Tuning.objects.get()
    assert (found.plan["p99_ms"], found.plan["clients"], found.state) == (50.0, 8, "waiting")
    page = text_of(client, PAGE)
    assert "Waiting for a worker" in page
    assert f'action="/jobs/{found.job_id}/cancel"' in page


def test_a_form_that_is_refused_keeps_the_typed_text(relu: Version, as_person: Any) -> None:
    client = as_person("operate")
    answer = client.post(PAGE, {**FORM, "clients": "8", "p99_ms": "soon"})
    page = answer.content.decode()
    assert answer.status_code == 400
    assert "&#x27;soon&#x27; is not a number" in page
    assert 'value="soon"' in page
    assert not Tuning.objects.exists()


def test_a_tuning_that_is_done_shows_gain_plot_table_and_difference(relu: Version, as_person: Any, tuned: Keep) -> None:
    tuned(relu, {"relu:queue_delay": "0"}, trials(), gain=GAIN)
    page = text_of(as_person("operate", "upload_data"), PAGE)
    for words in (
        "2.1 × ± 0.05 the requests a second",
        "100/s ± 2/s now, 210/s ± 4/s with the tuned configuration",
        "Batching: queue delay, µs: <span",
        "+dynamic_batching",
        "failed: the batch does not fit",
        "ended early, clearly worse",
        "over a limit",
        "Apply as a canary",
        "5 tried",
        "logarithmic",
    ):
        assert words in page, words
    assert page.count("<circle") == 4
    assert page.count('<td data-label="State">') == 6


def test_a_viewer_sees_the_result_and_no_button(relu: Version, as_person: Any, tuned: Keep) -> None:
    found = tuned(relu, {"relu:queue_delay": "0"}, trials(), gain=GAIN)
    viewer = as_person()
    page = text_of(viewer, PAGE)
    assert "+dynamic_batching" in page
    assert "Apply" not in page.partition("Tuning 1")[2].partition("Trials")[0]
    assert 'name="most_minutes"' not in page
    for act in ("apply", "canary", "delete"):
        assert viewer.post(f"{PAGE}/{found.pk}/{act}").status_code == 403


def test_each_goal_is_told_with_its_unit(relu: Version, as_person: Any, tuned: Keep) -> None:
    client = as_person()
    less = {**GAIN, "before": {"value": 20.0, "spread": 1.0}, "after": {"value": 10.0, "spread": 1.0}, "change": -0.5}
    tuned(relu, {"relu:queue_delay": "0"}, trials(), gain=less, plan=plan_of({"goal": "latency"}))
    assert "p99 50 % lower ± 5 %" in text_of(client, PAGE)
    much = {**less, "before": {"value": 3 << 20, "spread": None}, "after": {"value": 1 << 20, "spread": None}}
    tuned(relu, {"relu:queue_delay": "0"}, trials(), gain=much, plan=plan_of({"goal": "memory"}))
    assert "3 MiB now, 1 MiB with the tuned configuration" in text_of(client, PAGE)


@pytest.mark.parametrize(
    ("state", "note"),
    [
        ("failed", "the model broke"),
        ("done", "nothing was better"),
        ("cancelled", "it was cancelled before it had a result"),
    ],
)
def test_a_tuning_that_found_nothing_says_why(
    relu: Version, as_person: Any, tuned: Keep, state: str, note: str
) -> None:
    tuned(relu, {}, [], state=state, note="" if state == "cancelled" else note)
    page = text_of(as_person("operate", "upload_data"), PAGE)
    assert f"{note[:1].upper()}{note[1:]}." in page
    assert "Apply as a canary" not in page


def test_a_tuning_is_applied_and_deleted_on_the_page(relu: Version, as_person: Any, tuned: Keep) -> None:
    found = tuned(relu, {"relu:queue_delay": "0"}, trials(), gain=GAIN)
    client = as_person("operate", "upload_data")
    client.post(f"{PAGE}/{found.pk}/apply")
    release = Release.objects.first()
    assert release is not None
    assert release.document.message.HasField("dynamic_batching")
    page = text_of(client, PAGE)
    assert f"Applied, release {release.number}." in page
    assert "Apply as a canary" not in page
    client.post(f"{PAGE}/{found.pk}/delete")
    assert not Tuning.objects.exists()


def test_the_labels_of_two_close_points_are_apart(relu: Version, tuned: Keep) -> None:
    found = tuned(relu, {"relu:queue_delay": "0"}, [trial({}, load_row(16, 101, 4.4)), *trials()[1:2]])
    rows = picture.rows_of(found)
    plot = picture.plot_of(found, rows)
    assert plot is not None
    labels = {point.row.role: point for point in plot.points}
    assert labels["present"].text_y < labels["present"].y
    assert labels["chosen"].text_y > labels["chosen"].y


def test_a_configuration_that_is_not_better_is_not_offered(relu: Version, as_person: Any, tuned: Keep) -> None:
    note = "the final comparison shows no gain beyond the spread"
    tuned(relu, {"relu:queue_delay": "0"}, trials(), gain={**GAIN, "better": False}, note=note)
    page = text_of(as_person("operate", "upload_data"), PAGE)
    assert "shows no gain beyond the spread." in page
    assert "+dynamic_batching" in page
    assert "Apply" not in page.partition("Tuning 1")[2].partition("Trials")[0]


@pytest.mark.parametrize(
    ("job", "told", "offered"),
    [
        ({"state": "queued"}, "A canary is being prepared: it waits for a worker.", False),
        ({"state": "running", "step": "Inspecting the copy"}, "is being prepared: Inspecting the copy.", False),
        ({"state": "failed", "error": "the disk is full"}, "The canary was not begun: The disk is full.", True),
        ({"state": "cancelled"}, "The canary was cancelled before it began.", True),
    ],
)
def test_the_preparation_of_a_canary_is_told_with_its_end(
    relu: Version, as_person: Any, tuned: Keep, unqueued: list[int], job: dict[str, Any], told: str, offered: bool
) -> None:
    found = tuned(relu, {"relu:queue_delay": "0"}, trials(), gain=GAIN)
    client = as_person("operate", "upload_data")
    assert client.post(f"{PAGE}/{found.pk}/canary").status_code == 302
    Job.objects.filter(kind="tuned_canary").update(**job)
    page = text_of(client, PAGE)
    assert told in page
    assert f'href="/jobs/{Job.objects.get(kind="tuned_canary").pk}/"' in page
    assert ("Apply as a canary" in page) is offered
