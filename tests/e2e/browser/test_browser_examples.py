"""Examples of requests: kept by name, put back into the inputs, made golden, run, renamed and deleted."""

import re
import uuid
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support import model_factory
from tests.support.clients import clients
from tests.support.up_process import Up

pytestmark = pytest.mark.browser


@pytest.fixture
def playground(page: Page, tmp_path: Path) -> Page:
    """Of a model that doubles four numbers; it is new in each test."""
    name = f"doubles_{uuid.uuid4().hex[:8]}"
    node = model_factory.helper.make_node("Add", ["x", "x"], ["y"])
    tensors = [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])]
    file = tmp_path / f"{name}.onnx"
    file.write_bytes(model_factory.onnx_bytes([node], *tensors))
    page.goto("/models/new")
    page.locator("#file-input").set_input_files(file)
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text(f"{name} is serving version 1")).to_be_visible()
    page.goto(f"/models/{name}/playground")
    return page


def keep(page: Page, name: str, *values: str) -> None:
    for column, value in enumerate(values):
        page.get_by_label(f"x {column}", exact=True).fill(value)
    page.get_by_role("button", name="Keep this request").click()
    page.locator("#example-dialog").get_by_label("Name").fill(name)
    page.locator("#example-dialog").get_by_role("button", name="Keep").click()
    expect(page.locator("#golden-summary")).to_have_text(f"Kept as “{name}”.")


def test_an_example_comes_back_into_the_inputs_under_the_name_that_it_has_now(playground: Page) -> None:
    page = playground
    keep(page, "a few", "1", "2", "3", "4")
    page.get_by_role("button", name="Rename a few").click()
    dialog = page.locator("#example-dialog")
    dialog.get_by_label("Name").fill("a/b")
    page.watch.allowed = ("400",)  # type: ignore[attr-defined]
    dialog.get_by_role("button", name="Rename").click()
    expect(dialog.locator("#example-error")).to_contain_text("Expected a name of 1 to 100 characters without a slash")
    dialog.get_by_label("Name").fill("counting")
    dialog.get_by_role("button", name="Rename").click()
    expect(page.locator("#golden-summary")).to_have_text("“a few” is “counting” now.")
    expect(page.get_by_role("button", name="Rename counting")).to_be_focused()
    page.reload()
    expect(page.get_by_label("x 0", exact=True)).to_have_value("0")
    page.get_by_role("button", name="counting", exact=True).click()
    expect(page.get_by_label("x 3", exact=True)).to_have_value("4")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-output="y"] td').last).to_have_text("8")
    page.get_by_role("button", name="Delete counting").click()
    page.locator("#confirm").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No examples yet")).to_be_visible()
    expect(page.get_by_role("button", name="Keep this request")).to_be_focused()


def test_golden_requests_are_recorded_typed_in_and_run(playground: Page) -> None:
    page = playground
    keep(page, "ones", "1", "1", "1", "1")
    keep(page, "wrong", "2", "2", "2", "2")
    dialog, summary = page.locator("#golden-dialog"), page.locator("#golden-summary")
    row = page.locator('tr[data-example="ones"]')
    row.get_by_role("button", name="Make golden").click()
    expect(dialog.locator("#golden-recorded")).to_have_text("The answer of version 1, just now.")
    assert '"data": [2, 2, 2, 2]' in dialog.get_by_label("Expected outputs").input_value()
    dialog.get_by_label("Relative tolerance").fill("some")
    dialog.get_by_role("button", name="Save as golden").click()
    expect(dialog.locator('[data-error="relative"]')).to_have_text("“some” is not a number from 0, such as 0.001.")
    dialog.get_by_label("Relative tolerance").fill("0")
    dialog.get_by_role("button", name="Save as golden").click()
    expect(summary).to_have_text("“ones” is golden: releases are checked by it.")

    page.locator('tr[data-example="wrong"]').get_by_role("button", name="Make golden").click()
    expect(dialog.locator("#golden-recorded")).to_have_text("The answer of version 1, just now.")
    typed = dialog.get_by_label("Expected outputs").input_value().replace("[4, 4, 4, 4]", "[4, 4, 4.5, 4]")
    page.watch.allowed = ("400",)  # type: ignore[attr-defined]
    dialog.get_by_label("Expected outputs").fill(typed.replace('"y"', '"z"'))
    dialog.get_by_role("button", name="Save as golden").click()
    expect(dialog.locator('[data-error="expected"]')).to_contain_text("has no output 'z'; it has 'y'")
    dialog.get_by_label("Expected outputs").fill(typed)
    dialog.get_by_role("button", name="Save as golden").click()
    expect(summary).to_have_text("“wrong” is golden: releases are checked by it.")

    page.get_by_role("button", name="Run golden requests").click()
    expect(summary).to_have_text("Version 1 failed 1 of 2 golden requests.")
    expect(row.locator("[data-result]")).to_contain_text("Passed")
    result = page.locator('tr[data-example="wrong"] [data-result]')
    expect(result).to_contain_text("the largest difference is 0.5")
    expect(result).to_contain_text("Output 'y' is 4 at [0, 2], expected 4.5")
    expect(result).to_contain_text("1 of 4 elements differ by more than is allowed.")
    page.reload()  # the result is kept
    expect(result).to_contain_text("Run while release 1 served, version 1")
    page.get_by_role("button", name="Run golden requests").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Run golden requests")).to_be_focused()


def test_live_traffic_is_kept_only_after_it_was_confirmed_twice(playground: Page, slipway: Up) -> None:
    page = playground
    model = page.url.split("/")[-2]
    page.get_by_role("button", name="Sample traffic").click()
    dialog = page.locator("#traffic-dialog")
    dialog.get_by_label("Requests, at most").fill("2")
    dialog.get_by_role("button", name="Start sampling").click()
    expect(dialog.locator('[data-error="consent"]')).to_have_text("Confirm this first.")
    dialog.get_by_label("I may see what these clients send").check()
    with traffic(f"{slipway.http_url}/v2/models/{model}/infer"):
        dialog.get_by_role("button", name="Start sampling").click()
        expect(dialog.locator("[data-note]")).to_contain_text(
            re.compile(r"2 requests in \d+ s\. Nothing is kept yet\.")
        )
    dialog.locator("summary").first.click()
    expect(dialog.locator("pre").first).to_contain_text('"data": [2, 4, 6, 8]')
    dialog.get_by_label("Keep request 2").uncheck()
    dialog.get_by_label("Name of request 1").fill("from a client")
    assert page.locator("tr[data-example]").count() == 0
    dialog.get_by_role("button", name="Keep 1 example").click()
    expect(page.locator("#golden-summary")).to_have_text("Kept 1 example of traffic.")
    row = page.locator('tr[data-example="from a client"]')
    expect(row).to_contain_text("golden")
    expect(row).to_contain_text("Live traffic")
    page.get_by_role("button", name="Run golden requests").click()
    expect(page.locator("#golden-summary")).to_have_text("Version 1 passed the golden request.")


def traffic(address: str) -> AbstractContextManager[None]:
    """Requests of one client, one after another, until the block ends."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    return clients(lambda http: http.post(address, json=body))
