"""axe-core finds nothing on any page that the pictures show, in both themes, on a wide screen and on a narrow one; nothing on
them jumps while they load."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.browser.conftest import PASSWORD, new_context, sign_in
from tests.support.exported_models import exported_models
from tests.support.up_process import Up
from tools.screenshots import EMPTY, FULL, ROOT, SOURCES, WIDTHS, Person, empty, prepare, wait_until_drawn

pytestmark = [pytest.mark.browser, pytest.mark.long]

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
THEMES = ("light", "dark")
COLOURS = ["color-contrast", "link-in-text-block"]  # the rules that a theme can break
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# The same template draws all these elements, so two of each group say for the rest: axe would need half a minute for the page.
ALIKE = "document.querySelectorAll('.api-operation:nth-of-type(n + 3)').forEach((one) => one.remove())"
FINDINGS = """async (rules) => {
  // What lies behind a modal dialog is another test's page.
  const found = await axe.run(document.querySelector("dialog:modal") ?? document, {
    resultTypes: ["violations"],
    ...(rules ? { runOnly: rules } : { rules: { "target-size": { enabled: true } } }), // which axe leaves out by itself
  });
  return found.violations.flatMap(({ id, help, nodes }) => nodes.map(({ html, any, all, none }) => {
    const why = [...any, ...all, ...none].map(({ message }) => message);
    return `${id}: ${help}: ${why[0]} ${html.slice(0, 200)}`;
  }));
}"""


# What the Layout Instability API counts: https://web.dev/articles/cls. Ours are pages that nobody touches meanwhile.
SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const { value, sources, hadRecentInput } of list.getEntries()) {
    if (hadRecentInput) continue;
    const moved = sources.map(({ node, previousRect: a, currentRect: b }) => {
      const what = node instanceof Element ? `${node.tagName}#${node.id}.${node.className}` : node?.textContent;
      return `${what} ${[a.x, a.y, a.width, a.height].map(Math.round)} -> ${[b.x, b.y, b.width, b.height].map(Math.round)}`;
    });
    window.shifts.push([value, moved]);
  }
}).observe({ type: "layout-shift", buffered: true });
"""
MOST_SHIFT = 0.02


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """`manage.py up` with a model that failed, one that is degraded, and one that is asleep."""
    with Up(tmp_path_factory.mktemp("slipway") / "data", SLIPWAY_ADMIN_PASSWORD=PASSWORD, **SOURCES) as up:
        up.prepared().start()
        with Person(up.dashboard_url) as person:
            prepare(person)
        yield up


@pytest.fixture(scope="module")
def view(house: Up, chromium: Browser) -> Iterator[Page]:
    context = new_context(chromium, house)
    page = context.new_page()
    sign_in(page)
    yield page
    context.close()


@pytest.fixture(scope="module")
def shifting(house: Up, chromium: Browser) -> Iterator[Page]:
    """A page that counts its layout shifts."""
    context = new_context(chromium, house)
    context.add_init_script(SHIFTS)
    page = context.new_page()
    sign_in(page)
    yield page
    context.close()


@pytest.fixture(scope="module")
def emptied(house: Up) -> None:
    with Person(house.dashboard_url) as person:
        empty(person)


def findings(page: Page) -> list[str]:
    """What axe-core finds, in each theme and width. Only the first theme is asked about more than colours."""
    found = []
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate(DRAWN)  # what answers to the new size has done so
        found += findings_at(page, width)
    page.set_viewport_size({"width": 1440, "height": 900})
    return found


def findings_at(page: Page, width: int) -> list[str]:
    """What axe-core finds in each theme, at the width that the page has."""
    page.evaluate(AXE.read_text())
    found = []
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        rules: Any = None if theme == THEMES[0] else COLOURS
        found += [f"{width} px, {theme}: {one}" for one in page.evaluate(FINDINGS, rules)]
    page.emulate_media(color_scheme=THEMES[0])
    return found


def test_axe_finds_what_is_wrong(view: Page) -> None:
    view.goto("/settings/")
    view.evaluate("document.querySelector('#main h1').outerHTML = '<h4>Settings<img src=x></h4>'")
    found = findings(view)
    assert any("image-alt" in one for one in found)
    assert any("heading" in one for one in found)


class Loaded(NamedTuple):
    """What was seen of a page that was loaded at each width."""

    shifts: dict[int, list[tuple[float, list[str]]]]
    findings: list[str]


@pytest.fixture(scope="module", params=FULL.values(), ids=FULL)
def loaded(shifting: Page, request: pytest.FixtureRequest) -> Loaded:
    """Load a page once at each width, for both of the next tests: drawing its charts costs most of their time."""
    shifts, found = {}, []
    for width, height in WIDTHS.items():
        shifting.set_viewport_size({"width": width, "height": height})
        shifting.goto(request.param)
        wait_until_drawn(shifting)
        shifting.evaluate(DRAWN)
        shifts[width] = shifting.evaluate("window.shifts")
        shifting.evaluate(ALIKE)
        found += findings_at(shifting, width)
    return Loaded(shifts, found)


def test_a_page_is_accessible(loaded: Loaded) -> None:
    assert loaded.findings == []


def test_nothing_on_a_page_jumps_while_it_loads(loaded: Loaded) -> None:
    for width, shifts in loaded.shifts.items():
        assert sum(value for value, _ in shifts) < MOST_SHIFT, f"{width} px: {shifts}"


def test_dialogs_are_accessible(view: Page) -> None:
    view.goto("/models/digits/")
    wait_until_drawn(view)
    for key, name in (("?", "Keyboard"), ("/", "Search")):
        view.keyboard.press(key)
        view.get_by_role("dialog", name=name).wait_for()
        assert findings(view) == [], name
        view.keyboard.press("Escape")
    view.get_by_role("button", name="Unload").click()
    view.get_by_role("dialog", name=re.compile("Unload")).wait_for()
    assert findings(view) == []


def test_what_an_upload_asks_and_refuses_is_accessible(view: Page) -> None:
    def choose(name: str, path: Path) -> None:
        view.goto("/models/new")
        view.get_by_label("Model name").fill(name)
        view.locator("#file-input").set_input_files(path)

    files = {one.name: one.files for one in exported_models()}
    choose("weights", files["safetensors"]["model.safetensors"])
    view.locator("#judgement pre").wait_for()
    assert findings(view) == [], "refused before it is sent"
    choose("split", files["torch_dynamo_data_missing"]["digits.onnx"])
    view.locator("#judgement button").wait_for()
    assert findings(view) == [], "incomplete"
    choose("digits", files["sklearn_forest"]["model.onnx"])
    view.locator("#existing button").first.wait_for()
    assert findings(view) == [], "a name that is taken"
    choose("one_row", files["torch_dynamo_fixed_batch"]["model.onnx"])
    view.get_by_role("link", name="Let it batch").wait_for()
    wait_until_drawn(view)
    assert findings(view) == [], "findings"
    choose("two_targets", files["sklearn_two_targets"]["model.onnx"])
    view.get_by_role("heading", name="This cannot be published").wait_for()
    assert findings(view) == [], "refused by the inspection"
    choose("pickled", files["sklearn_pickle"]["model.pkl"])
    view.get_by_role("heading", name="Convert it here").wait_for()
    wait_until_drawn(view)
    assert findings(view) == [], "offered a recipe"


def test_the_sign_in_is_accessible_when_it_refuses_too(house: Up, chromium: Browser) -> None:
    context = new_context(chromium, house)
    page = context.new_page()
    page.goto("/sign-in")
    assert findings(page) == []
    page.get_by_label("Name").fill("nobody")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("alert").wait_for()
    assert findings(page) == []
    context.close()


@pytest.mark.usefixtures("emptied")
@pytest.mark.parametrize("path", EMPTY.values(), ids=EMPTY)
def test_an_empty_page_is_accessible(view: Page, path: str) -> None:
    view.goto(path)
    wait_until_drawn(view)
    assert findings(view) == []
