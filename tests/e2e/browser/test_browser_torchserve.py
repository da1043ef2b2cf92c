"""A TorchServe archive in the browser: dropped, looked into, made live, and asked."""

import json
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.support.torchserve_archives import archive
from tests.support.up_process import Up

pytestmark = pytest.mark.browser

MIRROR = """
import io, logging
from PIL import Image, ImageOps

def handle(data, context):
    return None if data is None else [one(index, row.get("body"), context) for index, row in enumerate(data)]

def one(index, body, context):
    if isinstance(body, dict):
        logging.info("asked about %s", sorted(body))
        if "refuse" in body:
            raise ValueError("cannot do " + body["refuse"])
        context.set_response_status(418, "short and stout", index)
        return {"words": len(body["text"].split())}
    picture = io.BytesIO()
    ImageOps.mirror(Image.open(io.BytesIO(body))).save(picture, "PNG")
    context.set_response_content_type(index, "image/png")
    return picture.getvalue()
"""


def test_a_dropped_archive_serves_and_is_asked_as_its_handler_wants_it(page: Page, slipway: Up, tmp_path: Path) -> None:
    page.watch.allowed = ("Failed to load resource",)  # type: ignore[attr-defined]
    packed = archive(
        tmp_path / "mirror.mar", handler=MIRROR, version="2.1-beta", config={"batchSize": 2, "maxBatchDelay": 1}
    )
    Image.new("RGB", (6, 4), (0, 0, 255)).save(tmp_path / "cat.png")
    page.goto("/models/new")
    page.locator("#file-input").set_input_files(packed)
    expect(page.get_by_role("heading", name="What it is")).to_be_visible()
    page.get_by_text("Inside the archive").click()
    expect(page.locator("#archive-source")).to_contain_text("ImageOps.mirror")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("mirror is serving version 1 (2.1-beta)")).to_be_visible()

    page.get_by_role("link", name="Try it").click()
    answer = page.locator("#answer")
    page.get_by_label("JSON for the handler").fill("{not json")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator("#play-inputs [role=alert]")).to_contain_text("This is not JSON")
    page.get_by_label("JSON for the handler").fill('{"text": "three small words"}')
    page.get_by_role("button", name="Send request").click()
    expect(answer.locator("[data-status='418']")).to_have_text("418 short and stout")
    assert json.loads(answer.locator("[data-kind=json] pre").inner_text()) == {"words": 3}
    expect(page.locator("#log")).to_contain_text("asked about ['text']")

    page.get_by_label("JSON for the handler").fill('{"refuse": "everything"}')
    page.get_by_role("button", name="Send request").click()
    expect(answer).to_contain_text("ValueError: cannot do everything")
    expect(answer.get_by_role("link", name="open the log")).to_have_attribute("href", "/models/mirror/log")
    expect(page.locator("#log")).to_contain_text("Traceback (most recent call last)")

    page.get_by_role("button", name="Image").click()
    page.get_by_label("Image for the handler").set_input_files(tmp_path / "cat.png")
    expect(page.get_by_label("Content type")).to_have_value("image/png")
    page.get_by_role("button", name="Send request").click()
    picture = answer.get_by_alt_text("The handler’s answer")
    expect(picture).to_have_js_property("naturalWidth", 6)
    expect(picture).to_have_js_property("naturalHeight", 4)
