"""A replay in a browser: what real clients asked is captured, and replayed against a worse version, which is refused."""

import re

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

from tests.e2e.browser.house import House
from tests.support.model_factory import helper, onnx_bytes
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.long]


def clipped(highest: float) -> bytes:
    """An ONNX model x[-1, 3] -> y, which is x but at most `highest`."""
    shape, top = ["batch", 3], {"top": np.array(highest, np.float32)}
    nodes = [helper.make_node("Min", ["x", "top"], ["y"])]
    return onnx_bytes(nodes, [("x", "FP32", shape)], [("y", "FP32", shape)], top)


def test_a_captured_day_refuses_a_worse_version_and_shows_what_differs(house: House) -> None:
    page = house.page
    house.publish("clipped", clipped(100.0))
    house.serves("clipped", 1)

    page.goto("/models/clipped/captures")
    page.get_by_label("Of the requests, %").fill("100")
    page.get_by_label("I may keep what clients send").check()
    page.get_by_role("button", name="Capture").click()
    expect(page.get_by_role("heading", name="Capture of 100 %")).to_be_visible()
    capture = page.url.rstrip("/").rpartition("/")[2]
    path = f"models/clipped/captures/{capture}"
    with httpx.Client(base_url=house.up.http_url, trust_env=False, timeout=PATIENCE_S) as client:

        def ask(value: float) -> None:
            body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [value, 1, 2]}]}
            client.post("/v2/models/clipped/infer", json=body).raise_for_status()

        def begun() -> bool:
            ask(0.0)
            counts = house.person.call("GET", path)["counts"]
            return counts is not None and counts["chosen"] > 0

        wait_until(begun, what="the capture")
        for value in range(40):
            ask(float(value))
    page.get_by_role("button", name="Stop").click()
    wait_until(lambda: house.person.call("GET", path)["counts"]["ended"] == "stopped", what="the end of the capture")
    kept = house.person.call("GET", path)["counts"]["written"]
    assert kept >= 40

    house.publish("clipped", clipped(30.0), make_live=False, load=False)  # the 9 requests over 30 differ
    page.reload()
    page.get_by_role("link", name="Replay it").click()
    expect(page.get_by_text("Not replayed yet")).to_be_visible()
    page.get_by_label("At most % that differ").fill("1")
    page.get_by_role("button", name="Make this capture the gate").click()
    expect(page.get_by_text("A version goes live only if a replay of this capture shows")).to_be_visible()
    page.goto("/models/clipped/versions/2/live")
    expect(page.get_by_text("The capture was not replayed against version 2")).to_be_visible()
    page.get_by_role("link", name="Replay it").click()
    expect(page.get_by_label("Against version")).to_have_value("2")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator("#replay-title + .state")).to_contain_text("Done", timeout=START_TIMEOUT_S * 1000)
    expect(page.get_by_text(f"9 of {kept} compared")).to_be_visible()
    expect(page.get_by_role("img", name="Distributions of the captured")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^p99 "))).to_be_visible()
    page.get_by_role("button", name="Show them").click()
    worst = page.get_by_role("row", name=re.compile(r"y \[0, 0\]"))
    expect(worst).to_have_count(9)
    expect(worst.first.get_by_role("cell")).to_contain_text([re.compile("39"), "y [0, 0]", "39", "30", "9"])

    page.goto("/models/clipped/versions/2/live")
    expect(
        page.get_by_text(re.compile(rf"% of the requests \(9 of {kept}\) differ in its newest replay"))
    ).to_be_visible()
    with pytest.raises(AssertionError, match="at most 1 % of the requests differ"):
        house.person.call("POST", "models/clipped/versions/2/make_live", json={})
    page.get_by_role("button", name="Make version 2 live").click()  # without a reason
    expect(page).to_have_url(re.compile("/versions/2/live$"))
    assert house.ask("clipped") == [1.0, 2.0, 3.0]

    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"/models/clipped/captures/{capture}/replays")
    page.get_by_role("link", name="Version 2").click()
    expect(page.get_by_role("img", name="Distributions of the captured")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
