"""An operator sets the replicas of servers in Kubernetes by keyboard; each refusal is one sentence, and nothing is lost."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.fleet.stand_in import NONE, PATHS, answers, recorded, settings_for
from tests.dashboard.uploads.file_server import FileServer, WebFile, file_server
from tests.e2e.browser.test_browser_accessibility import findings
from tests.support.certificates import Authority
from tests.support.up_process import Up
from tools.screenshots import Person

pytestmark = [pytest.mark.browser, pytest.mark.long]
ADDRESS = "/environments/eu/replicas/"


@pytest.fixture
def cluster(slipway: Up, tmp_path: Path) -> Iterator[FileServer]:
    """The API of a cluster in which environment eu has 8 replicas, 2 of them ready, and an autoscaler."""
    authority = Authority(tmp_path / "authority")
    with file_server(authority.sign("kubernetes")) as server, Person(slipway.dashboard_url) as person:
        answers(server, **recorded(timedelta(minutes=5)))
        person.call("POST", "environments", json=settings_for(server, authority))
        yield server
        person.call("DELETE", "environments/eu")


def set_to(page: Page, replicas: int) -> None:
    page.get_by_label("Replicas of Deployment triton").fill(str(replicas))
    page.keyboard.press("Enter")


def test_replicas_are_set_and_each_refusal_is_a_sentence(page: Page, cluster: FileServer) -> None:
    page.watch.allowed = ("the server responded with a status of",)  # type: ignore[attr-defined]
    field, alert = page.get_by_label("Replicas of Deployment triton"), page.locator("main [role=alert]")
    page.goto(ADDRESS)
    expect(page.locator("main")).to_contain_text("2 of 8 wanted replicas are ready")
    expect(page.locator("main")).to_contain_text(
        "sets the replicas of Deployment triton, from 2 to 8, and would undo this"
    )
    expect(field).to_have_count(0)
    assert findings(page) == []

    answers(cluster, hpas=NONE)
    expect(field).to_have_value("8")
    set_to(page, 10)  # the browser keeps it back
    assert field.evaluate("element => element.validity.rangeOverflow")
    field.evaluate("element => (element.max = '99')")
    set_to(page, 10)
    expect(alert).to_have_text("Eu has from 1 to 9 replicas, so it cannot have 10.")
    expect(field).to_have_value("10")
    expect(field).to_be_focused()
    assert findings(page) == []

    answers(cluster, hpas=recorded()["hpas"])  # since the last look
    set_to(page, 4)
    expect(alert).to_contain_text("sets the replicas of Deployment triton, from 2 to 8, and would undo this")
    answers(cluster, hpas=NONE)
    page.goto(ADDRESS)
    expect(field).to_have_value("8")

    there, cluster.files = cluster.files, dict.fromkeys(PATHS.values(), WebFile(b"<html>", status=502))
    set_to(page, 4)
    expect(alert).to_contain_text("answered with status 502")
    expect(field).to_have_value("4")
    page.get_by_role("heading", level=1).click()  # a part that somebody types into is not refreshed
    expect(page.locator("main .note.failed:not([role=alert])")).to_contain_text(
        "status 502; the servers that it led to stay"
    )
    expect(page.locator("main")).to_contain_text("2 of 8 wanted replicas are ready")
    assert findings(page) == []
    assert not cluster.puts

    cluster.files = there
    expect(page.locator("main .note.failed:not([role=alert])")).to_have_count(0)
    set_to(page, 3)
    expect(page.get_by_text("eu is scaled to 3")).to_be_visible()
    assert json.loads(cluster.puts[-1][1])["spec"] == {"replicas": 3}
    expect(page.locator("main")).to_contain_text("was set from 8 to 3 replicas by admin")


# The names in the tables of an environment that are on more than one line.
BROKEN = """cells => cells.flatMap((cell) => {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), broken = [];
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(text);
    const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top)));
    if (text.data.trim() && lines.size > 1) broken.push(text.data);
  }
  return broken;
})"""


def test_names_of_pods_and_nodes_are_whole_on_a_wide_page_and_fit_a_narrow_one(page: Page, cluster: FileServer) -> None:
    page.goto("/environments/eu/")
    expect(page.get_by_role("cell", name="node-b")).to_be_visible()
    names = page.locator("[aria-labelledby=pods-title] tbody th, td[data-label=Node]")
    for width in (768, 1024, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        assert names.evaluate_all(BROKEN) == [], width
    for width in (360, 390, 767):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
