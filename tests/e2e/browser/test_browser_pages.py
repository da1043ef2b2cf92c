"""Every page in a real Chromium: quiet, light, reachable by keyboard, readable on a phone and without JavaScript."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser.conftest import new_context, text_before
from tests.support.serving_process import wait_until
from tests.support.up_process import Up

pytestmark = pytest.mark.browser
PAGES = (
    "/",
    "/models/",
    "/models/new",
    "/models/digits/",
    "/models/digits/versions",
    "/models/digits/releases/",
    "/models/digits/rollouts/new",
    "/models/digits/configuration",
    "/models/digits/playground",
    "/models/digits_pipeline/playground",
    "/models/digits/activity",
    "/jobs/",
    "/jobs/1/",
    "/servers/",
    "/servers/local/",
    "/servers/local/memory",
    "/activity/",
    "/settings/",
    "/api/v1/docs",
)
NARROW = (360, 390, 768)
WIDE = "document.documentElement.scrollWidth"
MAX_BYTES = 200_000
# The page and all that it loads before plotly.js, compressed as it came.
TRANSFERRED = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .filter(({name}) => !name.includes("plotly.min.js"))
  .reduce((sum, entry) => sum + entry.encodedBodySize, 0)"""


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_a_title_one_heading_no_complaint_and_few_bytes(page: Page, path: str) -> None:
    response = page.goto(path)
    assert response is not None
    assert response.ok
    assert page.title().endswith("Slipway")
    expect(page.locator("h1")).to_have_count(1)
    if page.locator("[data-chart]:visible").count():
        expect(page.locator(".js-plotly-plot").first).to_be_visible()
    if page.locator("#freshness").count():
        expect(page.locator("#freshness")).to_have_text("up to date")
    assert page.evaluate(TRANSFERRED) < MAX_BYTES


def test_nothing_scrolls_sideways_on_a_narrow_screen(chromium: Browser, slipway: Up, signed_in: Path) -> None:
    """Each page is loaded once, on the narrowest screen, which then grows."""
    context = new_context(
        chromium,
        slipway,
        storage_state=signed_in,
        viewport={"width": NARROW[0], "height": 780},
        is_mobile=True,
        has_touch=True,
    )
    page = context.new_page()
    for path in PAGES:
        page.set_viewport_size({"width": NARROW[0], "height": 780})
        page.goto(path)
        for width in NARROW:
            page.set_viewport_size({"width": width, "height": 780})
            wide = page.evaluate(f"new Promise((done) => requestAnimationFrame(() => done({WIDE})))")
            assert wide <= width, f"{path} is {wide} px wide on a screen of {width} px"
    context.close()


def test_plotly_comes_compressed_once_and_only_where_charts_are(page: Page) -> None:
    page.goto("/models/")
    expect(page.locator("#freshness")).to_have_text("up to date")
    assert page.evaluate("typeof Plotly") == "undefined"
    fetched = []
    for path in ("/models/digits/", "/", "/servers/local/", "/models/digits/"):
        page.goto(path)
        expect(page.locator(".js-plotly-plot").first).to_be_visible()
        fetched += page.evaluate(
            "performance.getEntriesByType('resource').filter(({name}) => name.includes('plotly.min.js'))"
            ".map(({transferSize}) => transferSize)"
        )
    assert len(fetched) == 4
    assert 1_000_000 < fetched[0] < 1_600_000
    assert not any(fetched[1:]), "the browser keeps it"


def test_keys_go_places_open_help_and_close_it(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#freshness")).to_have_text("up to date")
    page.keyboard.type("gm")
    page.wait_for_url("**/models/")
    expect(page.locator("#freshness")).to_have_text("up to date")
    page.keyboard.press("/")
    expect(page.locator("[data-filter]")).to_be_focused()
    page.keyboard.type("torch")
    expect(page.get_by_role("link", name="digits_torch")).to_be_visible()
    expect(page.get_by_role("link", name="digits_pipeline")).to_be_hidden()
    expect(page).to_have_url(re.compile(r"[?&]q=torch"))
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="digits_pipeline")).to_be_visible()
    page.keyboard.press("?")
    help_dialog = page.get_by_role("dialog", name="Keyboard")
    expect(help_dialog).to_be_visible()
    for _ in range(6):  # the focus stays inside
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    page.keyboard.press("Escape")
    expect(help_dialog).to_be_hidden()


def test_the_palette_finds_a_model(page: Page) -> None:
    page.goto("/servers/")
    expect(page.locator("#freshness")).to_have_text("up to date")
    page.keyboard.press("/")
    page.keyboard.type("pipel")
    page.keyboard.press("Enter")
    page.wait_for_url("**/models/digits_pipeline/")


def test_the_first_tab_stop_skips_to_the_content(page: Page) -> None:
    page.goto("/models/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_a_chosen_theme_stays(page: Page) -> None:
    page.emulate_media(color_scheme="light")
    page.goto("/settings/")
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_label("Dark").check()
    page.wait_for_function("(light) => getComputedStyle(document.documentElement).backgroundColor !== light", arg=light)
    page.goto("/models/")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.goto("/settings/")
    expect(page.get_by_label("Dark")).to_be_checked()
    page.get_by_label("As the system").check()
    page.wait_for_function("(light) => getComputedStyle(document.documentElement).backgroundColor === light", arg=light)


def test_sorting_and_filtering_stay_in_the_address(page: Page) -> None:
    page.goto("/models/?sort=-name&q=digits")
    names = page.locator(".models-table tbody th a")
    expect(names.first).to_have_text("digits_torch")
    page.get_by_role("link", name="Model", exact=True).click()
    expect(names.first).to_have_text("digits")
    expect(page).to_have_url(re.compile(r"q=digits"))
    page.go_back()
    expect(names.first).to_have_text("digits_torch")


def test_a_filter_that_nothing_matches_says_so(page: Page) -> None:
    page.goto("/models/?q=no-such-model")
    expect(page.get_by_text("No model matches")).to_be_visible()
    page.get_by_label("Filter models").press("Escape")
    expect(page.get_by_role("link", name="digits", exact=True)).to_be_visible()


def test_pages_can_be_read_without_javascript(slipway: Up, chromium: Browser, signed_in: Path) -> None:
    context = new_context(chromium, slipway, storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto("/models/")
    expect(page.get_by_role("link", name="digits_torch")).to_be_visible()
    page.get_by_role("link", name="digits", exact=True).click()
    expect(page.get_by_role("heading", name="digits")).to_be_visible()
    expect(page.get_by_text("[-1, 1, 8, 8]")).to_be_visible()
    page.goto("/models/digits/configuration")
    expect(page.locator("#config-text")).to_contain_text("max_batch_size: 64")
    context.close()


def test_deleting_asks_for_the_name(page: Page) -> None:
    page.goto("/models/digits_torch/activity")
    expect(page.get_by_role("button", name="Delete digits_torch")).to_be_disabled()
    page.get_by_role("button", name="Unload").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("will be refused until it is loaded again")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator("#model-head").locator('[data-state="ready"]')).to_be_visible()


def test_a_page_that_does_not_exist_says_so(page: Page) -> None:
    page.watch.allowed = ("404",)  # type: ignore[attr-defined]
    for path in ("/models/nowhere/", "/nothing"):
        response = page.goto(path)
        assert response is not None
        assert response.status == 404
        expect(page.get_by_role("link", name="Go to the overview")).to_be_visible()


def test_a_message_covers_nothing(page: Page) -> None:
    page.goto("/models/digits/activity")
    page.get_by_role("button", name="Save").click()
    message = page.locator(".toasts .note")
    expect(message).to_contain_text("The description is saved")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 800})
        said, content = message.bounding_box(), page.locator("#main").bounding_box()
        assert said is not None
        assert content is not None
        assert said["y"] >= 0
        assert said["y"] + said["height"] <= content["y"]


def test_on_a_phone_each_number_stands_beside_its_name(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/models/")
    row = page.locator('tr[data-model="digits"]')
    for value, name in (("rps", "Requests"), ("errors", "Errors")):
        cell = row.locator(f'[data-value="{value}"]')
        wait_until(lambda cell=cell, name=name: name in text_before(cell))
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
    expect(page.get_by_role("table").get_by_role("rowheader", name="digits", exact=False).first).to_be_visible()
