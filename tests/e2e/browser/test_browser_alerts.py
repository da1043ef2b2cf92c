"""A planted fault is told once, on every page, and leads to its cause; it resolves by itself."""

import os
import re
import signal

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browser.house import House
from tests.support.serving_process import START_TIMEOUT_S
from tests.support.up_process import Up

pytestmark = pytest.mark.browser

GOOD, BAD = 5, 30
CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
STARTS_FAILING = f"""import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    asked = 0

    def execute(self, requests):
        self.asked += len(requests)
        if self.asked > {GOOD}:
            raise ValueError(f"the table of prices has no row {{self.asked}}")
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor)]) for tensor in tensors]
"""


def test_a_planted_fault_is_told_once_and_leads_to_its_cause(page: Page, slipway: Up) -> None:
    page.goto("/alerts/")
    expect(page.get_by_role("heading", name="Alerts", exact=True)).to_be_visible()
    [watch] = slipway.running("manage.py", "watch")
    os.kill(watch, signal.SIGSTOP)
    try:
        alert = page.get_by_role("link", name="The watcher does not answer")
        expect(alert).to_be_visible()
        expect(page.locator("#rail-alerts")).to_contain_text("1")
        expect(page).to_have_title(re.compile(r"^\(\d+ failed\) Alerts"))
        expect(alert).to_have_count(1)
        alert.click()
        expect(page.get_by_role("heading", name="The watcher does not answer")).to_be_visible()
        expect(page.get_by_role("cell", name="Fired", exact=True)).to_have_count(1)
        page.get_by_role("button", name="Acknowledge").click()
        expect(page.get_by_text("acknowledged by admin")).to_be_visible()
        page.get_by_role("link", name="See the processes").click()
        page.wait_for_url("**/servers/")
    finally:
        os.kill(watch, signal.SIGCONT)
    page.goto("/alerts/")
    ended = page.get_by_role("region", name="History").get_by_role("link", name="The watcher does not answer")
    expect(ended).to_have_count(1)
    expect(page.get_by_text("Nothing fires")).to_be_visible()


def test_a_model_that_starts_failing_is_told_once_and_one_click_leads_to_the_cause(page: Page, slipway: Up) -> None:
    house = House(slipway, page)
    house.publish("prices", STARTS_FAILING, CONFIG, path="model.py")
    house.serves("prices", 1)
    house.person.call("PUT", "models/prices/objective", json={"percent": 99, "latency_ms": None})
    for _ in range(GOOD):
        house.ask("prices")
    for _ in range(BAD):
        with pytest.raises(httpx.HTTPStatusError):
            house.ask("prices")
    page.goto("/alerts/")
    told = page.get_by_role("listitem").filter(has_text="prices spends its error budget")
    expect(told).to_be_visible(timeout=START_TIMEOUT_S * 1000)
    told.get_by_role("link", name="See the failed requests").click()
    page.wait_for_url("**/models/prices/requests?from=*#failed")
    cause = page.get_by_role("row", name=re.compile("the table of prices has no row #"))
    expect(cause.get_by_role("cell").first).to_have_text(f"{BAD} requests of this cause")
    cause.get_by_role("link").click()
    kept = page.get_by_role("table", name="Failed requests").get_by_role("row")
    expect(kept.last).to_contain_text(f"the table of prices has no row {GOOD + 1}")
    page.get_by_role("link", name="Only one cause").click()
    expect(page.get_by_role("heading", name="Failed requests", exact=True)).to_be_visible()
    page.goto("/alerts/")
    expect(told).to_have_count(1)
    told.get_by_role("link", name=re.compile("prices spends")).click()
    expect(page.get_by_role("cell", name="Fired", exact=True)).to_have_count(1)
    # The next tests begin without an alert and without this model.
    house.person.call("PUT", "models/prices/objective", json={"percent": None})
    slipway.query("UPDATE dashboard_alert SET state = 'resolved', resolved_at = fired_at WHERE subject = 'prices'")
    house.person.call("POST", "models/prices/unload")
    house.person.http.close()


def test_an_objective_is_set_on_the_page_of_its_model(page: Page) -> None:
    page.goto("/models/digits/")
    page.get_by_label("Good requests, %").fill("99.9")
    page.get_by_label("Answered under, ms").fill("50")
    page.get_by_role("button", name="Save the objective").click()
    expect(page.get_by_text("The objective of digits is saved.")).to_be_visible()
    expect(page.get_by_text("99.9 % of requests answered, under 50 ms")).to_be_visible()
    page.goto("/")
    expect(page.get_by_role("heading", name="Error budgets")).to_be_visible()


def test_an_alert_that_helps_nobody_is_switched_off(page: Page) -> None:
    page.goto("/alerts/")
    page.get_by_label("Switch off for one model").select_option("Queue grows")
    page.get_by_label("Of", exact=True).last.select_option("digits")
    page.get_by_role("button", name="Switch off", exact=True).click()
    expect(page.get_by_text("'Queue grows' is switched off for digits.")).to_be_visible()
    page.get_by_role("button", name="Switch Queue grows on for digits").click()
    expect(page.get_by_text("'Queue grows' is switched on for digits.")).to_be_visible()
    page.get_by_role("button", name="Switch off Data drift").click()
    page.get_by_role("dialog", name="Switch off Data drift?").get_by_role("button", name="Switch off").click()
    row = page.get_by_role("row", name=re.compile("^Data drift"))
    expect(row).to_contain_text("by admin")
    page.get_by_role("button", name="Switch on Data drift").click()
    expect(row).to_contain_text("On")
