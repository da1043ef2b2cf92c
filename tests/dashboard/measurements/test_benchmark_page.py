"""The page *Benchmark*: empty, under way, full, failed, compared; its form keeps the typed text, and viewers may only look."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from dashboard.measurements.plan import plan_of
from dashboard.models import Job, Measurement, Version
from tests.dashboard.conftest import text_of
from tests.dashboard.measurements.conftest import load_row

pytestmark = pytest.mark.django_db
PAGE = "/models/relu/versions/1/benchmark"
Keep = Callable[..., Measurement]
FORM = {"where": "own", "loop": "closed", "loads": "1, 4", "encoding": "binary", "inputs": "signature", "rows": "1"}


def test_a_version_that_was_not_measured_says_so(relu: Version, as_person: Any) -> None:
    page = text_of(as_person("operate"), PAGE)
    assert "Not measured yet" in page
    assert "Measure version 1" in page
    assert f'href="{PAGE}"' in text_of(as_person(), "/models/relu/versions")


def test_a_viewer_sees_the_figures_and_no_form(relu: Version, as_person: Any, measured: Keep) -> None:
    measured(relu, [load_row(4, 250, 5.0)])
    viewer = as_person()
    page = text_of(viewer, PAGE)
    assert "5 ms ± 50 µs" in page
    assert "<form" not in page.partition("Measurement ")[2].partition("Compared")[0]
    assert "Measure version 1" not in page
    assert viewer.post(PAGE, FORM).status_code == 403


def test_the_form_starts_a_measurement(relu: Version, as_person: Any, unqueued: list[int]) -> None:
    client = as_person("operate")
    assert client.post(PAGE, FORM).status_code == 302
    found = Measurement.objects.get()
    assert (found.plan["loads"], found.state) == ([1.0, 4.0], "waiting")
    page = text_of(client, PAGE)
    assert "Waiting for a worker" in page
    assert f'action="/jobs/{found.job_id}/cancel"' in page


def test_a_form_that_is_refused_keeps_the_typed_text(relu: Version, as_person: Any) -> None:
    client = as_person("operate")
    answer = client.post(PAGE, {**FORM, "loads": "4, many"})
    page = answer.content.decode()
    assert answer.status_code == 400
    assert "&#x27;many&#x27; is not a number" in page
    assert 'value="4, many"' in page
    assert not Measurement.objects.exists()


def test_the_bounds_are_typed_in_per_cent(relu: Version, as_person: Any, unqueued: list[int]) -> None:
    as_person("operate").post(PAGE, {**FORM, "most_cpu": "25", "most_p99_growth": "10"})
    plan = Measurement.objects.get().plan
    assert (plan["most_cpu"], plan["most_p99_growth"]) == (0.25, 0.1)


@pytest.mark.parametrize("typed", ["500", "0", "-1", "nan", "1e400"])
def test_a_bound_that_is_not_allowed_is_told_in_per_cent(relu: Version, as_person: Any, typed: str) -> None:
    answer = as_person("operate").post(PAGE, {**FORM, "most_cpu": typed})
    assert answer.status_code == 400
    assert "Expected 1 to 100 %." in answer.content.decode()


def test_a_full_page_has_the_table_the_charts_and_the_bars(relu: Version, as_person: Any, measured: Keep) -> None:
    plan = plan_of({"loop": "open", "loads": [100, 200]})
    measured(relu, [load_row(100, 99, 5.0), load_row(200, 180, 50.0, failures=3, reasons={"full": 3})], plan=plan)
    page = text_of(as_person("operate"), PAGE)
    for words in (
        "100/s",
        "200/s",
        "3 failed: full",
        "Where the time goes",
        "part-queue",
        "part-wire",
        "By batch size",
        "Mean time of one",
    ):
        assert words in page, words
    assert page.count('class="part-compute"') == 4  # a bar for each load, and one for its batch size
    assert page.count("<circle") == 8
    assert "There is no other measurement" in page


def test_the_page_tells_the_warm_up_and_the_energy_of_a_request(relu: Version, as_person: Any, measured: Keep) -> None:
    energy = {"value": 0.25, "spread": 0.01}
    measured(relu, [load_row(4, 250, 5.0, energy_j=energy, warmup={"per_second": 120.0, "p99_ms": 41.0})])
    page = text_of(as_person(), PAGE)
    assert "120/s, p99 41 ms" in page
    assert "0.25 J ± 0.01 J" in page
    assert "Energy" not in text_of(
        as_person(name="another"), f"{PAGE}?run={measured(relu, [load_row(4, 250, 5.0)]).pk}"
    )


def test_two_measurements_are_compared_with_their_spread(relu: Version, as_person: Any, measured: Keep) -> None:
    first = measured(relu, [load_row(4, 250, 10.0)])
    second = measured(relu, [load_row(4, 250, 5.0)], plan=plan_of({"encoding": "grpc"}))
    page = text_of(as_person(), f"{PAGE}?run={second.pk}&with={first.pk}")
    assert "faster by 50 % ± 0.707 %" in page
    assert "no difference beyond the spread" in page
    assert "The encodings differ" in page
    assert as_person(name="another").get(f"{PAGE}?run=999").status_code == 404


def test_measurements_of_several_models_are_shown_side_by_side(
    relu: Version, published: Callable[..., Version], as_person: Any, measured: Keep
) -> None:
    viewer = as_person()
    assert "Nothing was measured yet" in text_of(viewer, "/benchmarks")
    other = published(model_name="scripted")
    first = measured(relu, [load_row(4, 250, 10.0), load_row(8, 300, 20.0)])
    second = measured(other, [load_row(4, 500, 5.0)], plan=plan_of({"encoding": "grpc"}))
    measured(relu, [load_row(4, 250, 10.0)], state="failed")
    page = text_of(viewer, "/benchmarks")
    assert page.count('name="run"') == 2
    page = text_of(viewer, f"/benchmarks?run={first.pk}&run={second.pk}")
    assert "4 clients" in page
    assert "8 clients" in page
    assert "onnx, binary" in page
    assert "onnx, gRPC" in page
    assert "p99: faster by 50 % ± 0.707 %" in page
    assert f"Measurements {first.pk} and {second.pk}: the encodings differ" in page
    assert viewer.get("/benchmarks?run=999999").status_code == 404
    assert viewer.get("/benchmarks?run=one").status_code == 400
    assert viewer.get("/benchmarks?" + "&".join(f"run={n}" for n in range(1, 14))).status_code == 400


def test_a_measurement_that_was_stopped_says_why(relu: Version, as_person: Any, measured: Keep) -> None:
    measured(relu, [], state="stopped", note="the measurement was stopped, because the p99 of clients grew to 9 ms")
    assert "The measurement was stopped, because the p99 of clients grew to 9 ms." in text_of(as_person(), PAGE)


def test_a_measurement_whose_job_was_forgotten_is_shown(relu: Version, as_person: Any, measured: Keep) -> None:
    measured(relu, [load_row(4, 250, 5.0)])
    Job.objects.all().delete()
    assert "5 ms ± 50 µs" in text_of(as_person("operate"), PAGE)


def test_a_measurement_is_deleted(relu: Version, as_person: Any, measured: Keep) -> None:
    found = measured(relu, [load_row(4, 250, 5.0)])
    assert as_person("operate").post(f"{PAGE}/{found.pk}/delete").status_code == 302
    assert not Measurement.objects.exists()


def test_the_budget_is_set_on_the_page_and_judged(relu: Version, as_person: Any, measured: Keep) -> None:
    client: Client = as_person("operate")
    measured(relu, [load_row(4, 250, 5.0)])
    client.post("/models/relu/budget", {"p99_ms": "20", "per_second": "200", "next": PAGE})
    assert "Version 1 keeps the budget of p99 under 20 ms at 200/s" in text_of(client, PAGE)
    assert 'name="p99_ms" value="20"' in text_of(client, PAGE), "as it was typed"
    client.post("/models/relu/budget", {"p99_ms": "2", "per_second": "200"})
    assert "Its newest measurement has a p99 of 5 ms ± 50 µs at 200/s." in text_of(client, PAGE)
    client.post("/models/relu/budget", {"p99_ms": "", "per_second": ""})
    relu.model.refresh_from_db()
    assert relu.model.budget == {}


def test_the_page_of_making_live_asks_for_a_reason(
    relu: Version, published: Callable[..., Version], as_person: Any
) -> None:
    published()
    client = as_person("operate")
    client.post("/models/relu/budget", {"p99_ms": "20", "per_second": "200"})
    page = text_of(client, "/models/relu/versions/2/live")
    assert (
        "Version 2 was not measured. The budget is p99 under 20 ms at 200/s: measure it, or give a reason below."
        in page
    )
    assert 'name="override"' in page
    assert "The budget" not in text_of(client, "/models/relu/versions/1/live")


def test_the_page_of_versions_shows_what_a_version_measured(relu: Version, as_person: Any, measured: Keep) -> None:
    measured(relu, [load_row(1, 100, 5.0), load_row(4, 250, 8.0)])
    page = text_of(as_person(), "/models/relu/versions")
    assert "250 ± 2.5 requests/s" in page
    assert "p99 8 ms ± 80 µs, with 4 clients" in page
