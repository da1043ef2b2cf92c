"""A tuning in a browser: a badly configured model becomes twice as fast, and the configuration is applied as a canary."""

import re

import httpx
import pytest
from playwright.sync_api import expect

from tests.dashboard.tuning.conftest import FIXED_COST, FIXED_COST_CONFIG
from tests.e2e.browser.house import House
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_a_tuning_gains_a_factor_of_two_and_is_applied_as_a_canary(house: House) -> None:
    page = house.page
    house.publish("slow", FIXED_COST, FIXED_COST_CONFIG, "model.py")
    house.serves("slow", 1)
    page.goto("/models/slow/versions/1/benchmark")
    expect(page.get_by_text("Not tuned yet")).to_be_visible()
    page.get_by_label("Clients", exact=True).fill("8")
    page.get_by_label("Limit of the p99, ms").fill("60000")
    page.get_by_text("Bounds and trials").click()
    for label, value in (
        ("Instances, at most", "1"),
        ("Rows of a batch, at most", "1"),
        ("Trials, at most", "2"),
        ("Window of a trial, s", "0.3"),
        ("Windows of a trial, at most", "3"),
    ):
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="Tune", exact=True).click()
    gain = page.locator(".tune-gain b")
    expect(gain).to_be_visible(timeout=3 * START_TIMEOUT_S * 1000)
    factor = re.match(r"([\d.]+) ×", gain.inner_text())
    assert factor is not None, gain.inner_text()
    assert float(factor[1]) >= 2
    expect(page.get_by_label("The tuned configuration")).to_contain_text("dynamic_batching")
    assert page.locator(".tune-plot circle").count() == 2

    page.get_by_role("button", name="Apply as a canary").click()
    link = page.get_by_role("link", name=re.compile("^rollout r-"))
    expect(link).to_be_visible(timeout=START_TIMEOUT_S * 1000)
    link.click()
    expect(page.get_by_role("heading", level=2).first).to_be_visible()
    row = house.person.call("GET", "models/slow/rollouts")["results"][0]
    assert (row["kind"], row["candidate"]) == ("canary", 2)
    rollout = f"models/slow/rollouts/{row['name']}"
    wait_until(lambda: house.person.call("GET", rollout)["in_force"] == 5, START_TIMEOUT_S, "the server's share")

    configs = [
        httpx.get(f"{house.up.http_url}/v2/models/slow/versions/{number}/config", trust_env=False).json()
        for number in (1, 2)
    ]
    assert "dynamic_batching" not in configs[0]
    assert "dynamic_batching" in configs[1]
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    answer = httpx.post(
        f"{house.up.http_url}/v2/models/slow/versions/2/infer",
        json={"inputs": [x]},
        timeout=PATIENCE_S,
        trust_env=False,
    )
    assert answer.raise_for_status().json()["outputs"][0]["data"] == [1, 2, 3, 4]


def test_the_page_fits_on_a_phone(house: House) -> None:
    page = house.page
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/models/slow/versions/1/tune")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
