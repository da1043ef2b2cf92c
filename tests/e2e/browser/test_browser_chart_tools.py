"""The tools of the charts: any span, keys, an earlier span, a heat map, a link to a moment."""

import re
import time

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browser.test_browser_charts import BODY, infer
from tests.support.up_process import Up

pytestmark = pytest.mark.browser


@pytest.fixture
def charts(page: Page, slipway: Up) -> Page:
    infer(page, slipway)
    page.goto("/models/digits/?version=")  # all versions together, as the heat map needs
    expect(page.locator('[data-chart="latency"] .main-svg').first).to_be_visible()
    return page


def span(page: Page) -> tuple[int, int]:
    """Return the span in the address."""
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    found = re.search(r"from=(\d+)&to=(\d+)", page.url)
    assert found is not None
    return int(found[1]), int(found[2])


def test_buttons_zoom_and_move_without_a_mouse_that_drags(charts: Page) -> None:
    charts.get_by_role("button", name="Zoom in", exact=True).press("Enter")
    start, end = span(charts)
    assert 440 <= end - start <= 460
    charts.get_by_role("button", name="Earlier").click()
    expect(charts).not_to_have_url(re.compile(f"from={start}&"))
    earlier, _ = span(charts)
    assert 210 <= start - earlier <= 240
    charts.go_back()
    assert span(charts) == (start, end)
    charts.get_by_role("button", name="Zoom out").click()
    expect(charts).not_to_have_url(re.compile("from="))


def test_keys_read_the_values_of_every_chart_and_zoom(charts: Page) -> None:
    plot = charts.get_by_role("application", name="Requests a second")
    plot.focus()
    plot.press("ArrowLeft")
    for name in ("latency", "throughput"):
        expect(charts.locator(f'[data-chart="{name}"] [data-legend]')).to_contain_text(re.compile(r"\d\d:\d\d:\d\d"))
    plot.press("+")
    start, end = span(charts)
    assert end - start <= 460
    plot.press("Escape")
    expect(charts).not_to_have_url(re.compile("from="))


def test_any_span_can_be_typed_and_an_impossible_one_is_explained(charts: Page) -> None:
    charts.get_by_text("From, to", exact=True).click()
    form = charts.locator("#range-form")
    form.get_by_label("From").fill("2025-01-02T10:00:00")
    form.get_by_label("To").fill("2025-01-02T09:00:00")
    form.get_by_role("button", name="Show").click()
    assert form.get_by_label("To").evaluate("field => field.validationMessage") == "The end must be after the start."
    form.get_by_label("To").fill("2025-01-02T11:30:00")
    form.get_by_role("button", name="Show").click()
    start, end = span(charts)
    assert end - start == 5400
    expect(charts.locator('[data-chart="latency"]')).to_contain_text("No requests in this range")


def test_charts_are_compared_with_the_day_before(charts: Page) -> None:
    charts.get_by_label("Compare with").select_option("a day before")
    expect(charts).to_have_url(re.compile("compare=day"))
    legend = charts.locator('[data-chart="throughput"] [data-legend]')
    expect(legend).to_contain_text("requests a day before")
    charts.reload()
    expect(charts.get_by_label("Compare with")).to_have_value("day")
    expect(legend).to_contain_text("requests a day before")


def test_a_heat_map_can_be_shown_for_any_range(charts: Page) -> None:
    plot = charts.locator('[data-chart="latency"]')
    charts.get_by_label("Heat map").check()
    expect(charts).to_have_url(re.compile("heat=yes"))
    expect(plot.locator(".hm").first).to_be_attached()
    charts.get_by_label("Heat map").uncheck()
    expect(plot.locator(".hm")).to_have_count(0)


def test_a_link_to_a_moment_shows_the_minutes_around_it(charts: Page) -> None:
    charts.goto(f"/models/digits/?version=&at={int(time.time()) - 60}")
    expect(charts.get_by_role("button", name="Zoom out")).to_be_visible()
    expect(charts.locator('#ranges [aria-current="true"]')).to_have_count(0)


def test_the_charts_lead_to_the_slow_and_failed_requests_of_their_span(charts: Page, slipway: Up) -> None:
    wrong = {"inputs": [{**BODY["inputs"][0], "datatype": "INT32", "data": [0] * 64}]}
    assert (
        charts.request.post(f"{slipway.http_url}/v2/models/digits/infer", data={**wrong, "id": "wrong-one"}).status
        == 400
    )
    charts.get_by_role("link", name="Slow and failed requests").click()
    expect(charts).to_have_url(re.compile(r"/models/digits/requests\?from=\d+&to=\d+"))
    charts.goto("/models/digits/requests?range=15m")
    expect(charts.get_by_role("table", name="Slowest requests")).to_be_visible()
    expect(charts.get_by_role("table", name="Failed requests")).to_contain_text("wrong-one")
    expect(charts.get_by_role("region", name="Failures by cause")).to_contain_text("INVALID_ARG")
