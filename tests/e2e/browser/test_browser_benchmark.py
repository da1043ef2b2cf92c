"""A benchmark in a browser: a version is measured from its page, and the budget of the model refuses a slower one."""

import re

import pytest
from playwright.sync_api import expect

from tests.e2e.browser.house import House
from tests.support.serving_process import START_TIMEOUT_S

pytestmark = [pytest.mark.browser, pytest.mark.long]

CONFIG = """backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
MODEL = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep({seconds})
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor)]) for tensor in tensors]
"""


def test_a_slower_version_is_measured_and_refused_by_the_budget(house: House) -> None:
    page = house.page
    house.publish("timed", MODEL.format(seconds=0), CONFIG, "model.py")
    house.serves("timed", 1)
    house.publish("timed", MODEL.format(seconds=0.4), CONFIG, "model.py", make_live=False, load=False)

    page.goto("/models/timed/versions")
    page.locator("#version-2").get_by_role("link", name="Benchmark").click()
    expect(page.get_by_text("Not measured yet")).to_be_visible()
    page.get_by_label("p99 under, ms").fill("200")
    page.get_by_label("At requests a second").fill("0.5")
    page.get_by_role("button", name="Save the budget").click()
    expect(page.get_by_text("Version 2 was not measured.")).to_be_visible()

    page.get_by_label("Loads").fill("1")
    page.get_by_label("Window, s").fill("2")
    page.get_by_label("Windows, at most").fill("3")
    page.get_by_role("button", name="Measure", exact=True).click()
    figures = page.get_by_role("row", name=re.compile("^1 client"))
    expect(figures).to_be_visible(timeout=START_TIMEOUT_S * 1000)
    expect(page.locator("#run-title + .state")).to_contain_text("Done")
    expect(figures).to_contain_text("±")
    expect(page.get_by_role("heading", name="Where the time goes")).to_be_visible()

    page.reload()
    expect(page.get_by_text("its newest measurement has a p99 of", exact=False)).to_be_visible()
    page.goto("/models/timed/versions/2/live")
    page.get_by_role("button", name="Make version 2 live").click()
    expect(page.get_by_label("Reason to make it live nevertheless")).to_be_focused()
    assert page.url.endswith("/versions/2/live")
    with pytest.raises(AssertionError, match="may not go live"):
        house.person.call("POST", "models/timed/versions/2/make_live", json={})

    page.get_by_label("Reason to make it live nevertheless").fill("the old one is wrong")
    page.get_by_role("button", name="Make version 2 live").click()
    house.serves("timed", 3)
    page.goto("/models/timed/activity")
    expect(page.get_by_text("for version 2: the old one is wrong", exact=False).first).to_be_visible()


def test_the_page_fits_on_a_phone(house: House) -> None:
    page = house.page
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/models/timed/versions/2/benchmark")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
