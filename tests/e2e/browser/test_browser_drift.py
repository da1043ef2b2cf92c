"""Data drift in a browser: a planted shift is found, and the page shows the column in which it is."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.conftest import relu_bytes
from tests.e2e.browser.conftest import PASSWORD, new_context, sign_in
from tests.e2e.browser.house import House
from tests.support.serving_process import PATIENCE_S, ROOT, START_TIMEOUT_S
from tests.support.up_process import Up

pytestmark = [pytest.mark.browser, pytest.mark.long]

# Two captures of generated traffic, in place of a week of it: the second one is shifted after 1,000 requests.
CAPTURES = """
import numpy as np
from dashboard.models import Model
from tests.dashboard.drift.captured import add_requests, make_capture, normal

model = Model.objects.get(name="relu")
add_requests(make_capture(model), 2000, normal(4), lambda place: {"y": np.array([[b"cat", b"dog"][place % 2:][:1]])}, at=1.7e9)
now = make_capture(model)
add_requests(now, 1000, normal(4, seed=1), lambda place: {"y": np.array([[b"cat", b"dog"][place % 2:][:1]])}, at=1.75e9)
add_requests(now, 1000, normal(4, 0.5, 2), lambda place: {"y": np.array([[b"cat", b"dog"][place % 3 > 0:][:1]])},
             at=1.75e9 + 1000, first=1001)
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[House]:
    with Up(tmp_path_factory.mktemp("drift") / "data", SLIPWAY_ADMIN_PASSWORD=PASSWORD) as up:
        up.start()
        context = new_context(chromium, up, viewport={"width": 1440, "height": 1000})
        page = context.new_page()
        sign_in(page)
        house = House(up, page)
        yield house
        house.person.http.close()
        context.close()


def test_drift_is_found_and_shown_with_the_worst_column_first(house: House) -> None:
    house.publish("relu", relu_bytes())
    house.serves("relu", 1)
    subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", CAPTURES],
        cwd=ROOT,
        env={**os.environ, **house.up.environment},
        timeout=PATIENCE_S,
        check=True,
    )
    page = house.page
    page.goto("/models/relu/")
    page.get_by_role("link", name="Data drift").click()
    expect(page.get_by_text("Nothing is compared yet")).to_be_visible()
    page.get_by_label("Reference").select_option(index=1)  # the newest is the first
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="Window 2: 2 of 5 columns drifted")).to_be_visible(
        timeout=START_TIMEOUT_S * 1000
    )
    expect(page.locator("#monitor-title + .state")).to_contain_text("Drifted")
    columns = page.locator(".drift-column")
    expect(columns).to_have_count(5)
    expect(columns.nth(0)).to_contain_text("in.x[0]")
    expect(columns.nth(0)).to_contain_text("Kolmogorov-Smirnov")
    expect(columns.nth(1)).to_contain_text("out.y")
    assert columns.nth(0).locator("rect.current").count() == 24
    columns.nth(1).get_by_text("Categories").click()
    expect(columns.nth(1).get_by_role("row", name="dog")).to_be_visible()

    page.get_by_role("link", name="Window 1", exact=True).click()
    expect(page.get_by_role("heading", name="Window 1: 0 of 5 columns drifted")).to_be_visible()
    found = house.person.call("GET", "drift")["results"]
    assert [(row["model_name"], row["columns"]) for row in found] == [("relu", ["in.x[0]", "out.y"])]

    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/models/relu/data-drift")
    expect(columns.nth(0).get_by_role("img", name="Distributions")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
