"""From an empty hand to a live endpoint in the browser, and back by one click."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser.conftest import new_context, sign_in
from tests.support.model_factory import helper, onnx_bytes
from tests.support.serving_process import PATIENCE_S
from tests.support.up_process import Up

pytestmark = pytest.mark.browser
NAME = "shipped"


def scale_bytes(factor: float) -> bytes:
    """x[batch, 3] -> y = x * factor."""
    constant = helper.make_tensor("factor", 1, [1], [factor])
    nodes = [helper.make_node("Constant", [], ["f"], value=constant), helper.make_node("Mul", ["x", "f"], ["y"])]
    return onnx_bytes(nodes, [("x", "FP32", ["batch", 3])], [("y", "FP32", ["batch", 3])])


def upload(page: Page, path: Path) -> None:
    """Chooses a file and waits until what was found about it is shown."""
    page.locator("#file-input").set_input_files(path)
    expect(page.get_by_role("heading", name="What it is")).to_be_visible()


def publish(page: Page, version: int) -> None:
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("heading", name=f"Version {version} is published")).to_be_visible()
    expect(page.locator("#published")).to_contain_text(f"is serving version {version}")


def test_a_person_uploads_a_model_serves_it_tries_it_and_rolls_back(
    chromium: Browser, slipway: Up, tmp_path: Path
) -> None:
    context = new_context(chromium, slipway, viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    sign_in(page)

    # Upload, with the name taken from the file.
    first = tmp_path / f"{NAME}.onnx"
    first.write_bytes(scale_bytes(2.0))
    page.get_by_role("link", name="New model").click()
    upload(page, first)
    expect(page.get_by_role("heading", name=NAME)).to_be_visible()

    # Edit batching: the text follows the form.
    page.get_by_label("Batch requests together").check()
    page.get_by_label("Largest batch").fill("16")
    page.get_by_label("Preferred sizes").fill("4, 8")
    expect(page.locator("#config-text")).to_have_value(re.compile(r"preferred_batch_size: \[\s*4, 8\s*\]"))
    expect(page.locator("#config-text")).to_have_value(re.compile(r"max_batch_size: 16"))
    publish(page, 1)

    # A request from the playground.
    page.get_by_role("link", name="Try it").click()
    for index, value in enumerate(("1", "2.5", "-3")):
        page.get_by_label(f"x {index}").fill(value)
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-output="y"] td')).to_have_text(["2", "5", "-6"])
    expect(page.locator("#received")).to_contain_text('"data": [2, 5, -6]')
    expect(page.locator(".split")).to_contain_text("queue")

    # A second version, made live: the same request is answered by it.
    second = tmp_path / "better.onnx"
    second.write_bytes(scale_bytes(10.0))
    page.get_by_role("link", name="Upload version").click()
    upload(page, second)
    publish(page, 2)
    page.get_by_role("link", name="Try it").click()
    page.get_by_label("x 0").fill("1")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-output="y"] td').first).to_have_text("10")

    # The live chart moves: a request shows within seconds.
    page.get_by_role("link", name="Overview").last.click()
    expect(page.locator("#freshness")).to_have_text("up to date")
    newest = page.locator('[data-chart="throughput"] [data-legend]')
    expect(newest).to_be_visible()
    before = slipway_requests(page)
    with asking(f"{slipway.http_url}/v2/models/{NAME}/infer"):
        page.wait_for_function(
            "([seen]) => Number(document.querySelector('[data-now=rps]').textContent.split('/')[0]) > seen",
            arg=[before],
        )
    expect(page.locator('[data-chart="latency"] .main-svg').first).to_be_visible()

    # One click takes it back.
    page.get_by_role("link", name="Go back to release 1").click()
    page.get_by_role("button", name="Go back to release 1").click()
    expect(page.locator("#model-head")).to_contain_text("Version 1 live since")
    expect(page.locator("#model-head").locator('[data-state="ready"]')).to_be_visible()
    page.goto(f"/models/{NAME}/playground")
    page.get_by_label("x 0").fill("1")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-output="y"] td').first).to_have_text("2")

    # And who did what is on record.
    page.goto(f"/models/{NAME}/activity")
    expect(page.locator(".entries")).to_contain_text("admin")
    expect(page.locator(".entries")).to_contain_text("release.go_back")
    context.close()


@contextmanager
def asking(address: str) -> Iterator[None]:
    """Request after request, until the block ends."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    enough = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
            while not enough.wait(0.05):
                client.post(address, json=body).raise_for_status()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        try:
            yield
        finally:
            enough.set()
        asked.result()


def slipway_requests(page: Page) -> float:
    text = page.locator("[data-now=rps]").inner_text()
    return float(re.sub(r"[^\d.]", "", text.split("/")[0]) or 0)
