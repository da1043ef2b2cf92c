"""Takes the pictures of docs/guide.md: a journey through Slipway under traffic, from `make run` to a rollback.

    python -m tools.screenshots --guide               into docs/images/guide, after a minute of traffic

The program follows the guide in a browser, and takes each picture at its place in the guide. The models are real, and other
models serve at the same time.
"""

import json
import random
import re
import shutil
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.clients import clients
from tests.support.up_process import Up

ROOT = Path(__file__).resolve().parent.parent
NAME = "postcodes"  # the model that the guide publishes
DIGITS = ROOT / "examples" / "models" / "digits"
HOLDOUT = ROOT / "examples" / "holdout" / "digits.npz"
SIZE = {"width": 1280, "height": 860}
MOST_BYTES = 200_000
SERVED_S = 40  # the seconds of requests to a published model before a picture of its charts
BREACH_MS = 300_000  # the longest wait for a breach; guardrails need some requests first
TOO_MUCH_INK = 370.0  # the sum over an image; one in twenty of the held-out digits has more


def save(path: Path) -> None:
    """Compress a picture, so that it is small enough for a repository."""
    Image.open(path).convert("RGB").quantize(192, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < MOST_BYTES, f"{path.name} is {path.stat().st_size} bytes"


class Journey:
    """A browser page of a person who is signed in, and the pictures of that page."""

    def __init__(self, page: Page, folder: Path, wait_until_drawn: Any) -> None:
        self.page = page
        self._folder = folder
        self._wait_until_drawn = wait_until_drawn

    def show(self, address: str) -> None:
        self.page.goto(address)
        self._wait_until_drawn(self.page)

    def picture(self, name: str, top: Locator | None = None) -> None:
        """Take a picture of the visible part of the page; with `top`, scroll to that element first."""
        if top is None:
            self.page.evaluate("scrollTo(0, 0)")
        else:
            top.evaluate("element => scrollTo(0, element.getBoundingClientRect().top + scrollY - 16)")
        path = self._folder / f"{name}.png"
        self.page.mouse.move(0, 0)
        self.page.screenshot(path=path)
        save(path)
        print(path)

    def show_lately(self, address: str, seconds: float) -> None:
        """Show a model's page with the charts of the last seconds."""
        now = time.time()
        self.show(f"{address}{'&' if '?' in address else '?'}from={now - seconds:.0f}&to={now:.0f}")

    def draw_seven(self) -> None:
        """Draw a seven on the pad of the first input."""
        pad = self.page.locator("#play-inputs canvas").first
        box = pad.bounding_box()
        assert box is not None
        mouse = self.page.mouse
        for turn, (x, y) in enumerate(((0.28, 0.2), (0.72, 0.2), (0.45, 0.82))):
            mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=12)
            if not turn:
                mouse.down()
        mouse.up()

    def upload(self, file: Path) -> None:
        """Choose a file, and wait for the result of its inspection."""
        self.page.locator("#file-input").set_input_files(file)
        expect(self.page.get_by_role("heading", name="What it is")).to_be_visible(timeout=60_000)

    def keep_as_golden(self, name: str, output: str, tolerance: float) -> None:
        """Keep the current request as a golden request, with one output of its current answer as the expected output."""
        self.page.get_by_role("button", name="Keep this request").click()
        self.page.get_by_label("Name", exact=True).fill(name)
        self.page.get_by_role("button", name="Keep", exact=True).click()
        self.page.get_by_role("button", name="Make golden").click()
        dialog = self.page.get_by_role("dialog")
        text = dialog.get_by_label("Expected outputs, as JSON")
        expect(text).to_have_value(re.compile(output))
        expected = json.loads(text.input_value())
        expected["outputs"] = [one for one in expected["outputs"] if one["name"] == output]
        text.fill(json.dumps(expected))
        text.evaluate("element => { element.scrollTop = 0; }")
        dialog.get_by_label("Absolute tolerance").fill(str(tolerance))
        self.picture("golden")
        dialog.get_by_role("button", name="Save as golden").click()
        expect(self.page.locator("#examples")).to_contain_text("golden")

    def publish(self, version: int, live: bool = True) -> None:
        """Publish the upload. live: whether the new version answers requests."""
        if not live:
            self.page.get_by_label("Only publish").check()
        self.page.get_by_role("button", name="Publish").click()
        heading = self.page.get_by_role("heading", name=f"Version {version} is published")
        expect(heading).to_be_visible(timeout=60_000)
        said = f"is serving version {version}" if live else "answers nobody yet"
        expect(self.page.locator("#published")).to_contain_text(said, timeout=60_000)

    def press(self, button: str) -> None:
        """Press a button, and confirm if the page asks."""
        self.page.get_by_role("button", name=button).first.click()
        dialog = self.page.locator("dialog[open]")
        if dialog.count():
            dialog.get_by_role("button").last.click()

    def wait_for_guardrails(self, word: str) -> None:
        """Wait until the guardrails of a rollout show this word."""
        expect(self.page.locator("#rollout .guardrails")).to_contain_text(word, timeout=BREACH_MS)
        expect(self.page.locator("#rollout .guardrails")).not_to_contain_text("Waits for samples", timeout=BREACH_MS)


def take_journey(browser: Browser, up: Up, folder: Path, sign_in: Any, wait_until_drawn: Any) -> None:
    """Follow the guide, and write its pictures to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = up.data.parent / "files"
    files.mkdir()
    first, second, weights = files / f"{NAME}.onnx", files / "postcodes-2.onnx", files / "weights.safetensors"
    faulty = files / "postcodes-3.onnx"
    shutil.copy(DIGITS / "1" / "model.onnx", first)
    shutil.copy(DIGITS / "2" / "model.onnx", second)
    onnx.save(failing(onnx.load(second)), faulty)
    weights.write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
    context = browser.new_context(base_url=up.dashboard_url, viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
    context.set_default_timeout(60_000)
    page = context.new_page()
    journey = Journey(page, folder, wait_until_drawn)
    page.goto("/sign-in")
    journey.picture("sign-in")
    sign_in(page)
    journey.show("/")
    journey.picture("overview")

    # For a file that cannot be served, the page gives a remedy. A file that can be served becomes version 1.
    journey.show("/models/new")
    page.locator("#file-input").set_input_files(weights)
    page.locator(".note.failed, .error-text:visible, .note.degraded").first.wait_for()
    journey.picture("refused")
    journey.show("/models/new")
    journey.upload(first)
    journey.picture("inspected")
    page.get_by_role("button", name="Publish").scroll_into_view_if_needed()
    journey.picture("review", page.locator("#config-text"))
    journey.publish(1)
    journey.picture("published")

    # The playground tries the model, and clients send requests to it.
    journey.show(f"/models/{NAME}/playground")
    journey.draw_seven()
    page.get_by_role("button", name="Send request").click()
    page.locator("[data-output]").first.wait_for()
    journey.picture("playground")
    journey.keep_as_golden("a seven", output="probabilities", tolerance=0.05)
    with asking(up.http_url, NAME):
        time.sleep(SERVED_S)
        journey.show_lately(f"/models/{NAME}/", SERVED_S)
        journey.picture("model")

        # A second version is published next to the first version, and gets a small share of the requests.
        page.get_by_role("link", name="Upload version").click()
        journey.upload(second)
        journey.publish(2, live=False)
        journey.picture("second-version")

        # First the second version is only compared, and its answers go to no client. Then it gets more and more requests.
        page.get_by_role("link", name="Roll out").click()
        page.locator(".kind", has_text="Shadow").click()
        page.locator("[name=shadow_share]").fill("100")
        page.get_by_role("button", name="Start the shadow").click()
        expect(page.locator("#rollout .rollout-shadow")).to_be_visible(timeout=60_000)
        time.sleep(SERVED_S / 2)
        journey.show(f"/models/{NAME}/releases/")
        journey.picture("shadow")
        page.get_by_role("link", name="Answers that differ").click()
        page.locator("tr.linked a").first.click()
        page.get_by_role("heading", name="Request").first.wait_for()
        journey.picture("mismatch")
        journey.show(f"/models/{NAME}/releases/")
        journey.press("Stop the shadow")
        expect(page.locator("#rollout")).to_contain_text("Stopped by", timeout=60_000)
        journey.show(f"/models/{NAME}/rollouts/new?candidate=2")
        journey.picture("new-canary")
        page.get_by_role("button", name="Start the canary").click()
        journey.press("Go on to 25 %")
        journey.wait_for_guardrails("Holds")
        journey.show(f"/models/{NAME}/releases/")
        journey.picture("canary")
        journey.show_lately(f"/models/{NAME}/?version=each", 3 * SERVED_S)
        journey.picture("canary-charts", page.locator("#charts"))

        # The second version is promoted. The first version stays loaded for a while, and is then unloaded.
        journey.show(f"/models/{NAME}/releases/")
        journey.press("Promote now")
        expect(page.locator("#rollout")).to_contain_text("stays loaded until", timeout=60_000)
        time.sleep(SERVED_S / 4)
        journey.show(f"/models/{NAME}/releases/")
        journey.picture("promoted")
        journey.press("Unload now")
        expect(page.locator("#rollout")).to_contain_text("was unloaded", timeout=60_000)

        # A third version fails for some images: a guardrail takes it out.
        page.get_by_role("link", name="Upload version").click()
        journey.upload(faulty)
        journey.publish(3, live=False)
        page.get_by_role("link", name="Roll out").click()
        page.get_by_label("Share of requests, %").first.fill("20")
        page.get_by_role("button", name="Start the canary").click()
        expect(page.locator("#rollout")).to_contain_text("Rolled back", timeout=BREACH_MS)
        journey.show(f"/models/{NAME}/releases/")
        journey.picture("rolled-back")
        journey.picture("releases", page.locator("#timeline-title"))

        # The journey goes back to an earlier release, whose page shows in advance what will change.
        journey.show(f"/models/{NAME}/releases/1/")
        journey.picture("going-back")
        page.locator("#back").get_by_role("button", name="Go back to release 1").click()
        expect(page.locator("#model-head")).to_contain_text("Version 1 live", timeout=60_000)
        time.sleep(SERVED_S / 4)
        journey.show_lately(f"/models/{NAME}/?version=each", 3 * SERVED_S)
        journey.picture("taken-back")
    journey.show(f"/models/{NAME}/activity")
    journey.picture("activity")
    journey.show(f"/models/{NAME}/log")
    page.locator("#log .log-line").first.wait_for()
    journey.picture("log")
    context.close()


def asking(address: str, model: str) -> AbstractContextManager[None]:
    """Run clients that send real digits to a model, until the block ends."""
    images = np.load(HOLDOUT)["images"]

    def send(http: httpx.Client) -> None:
        rows = images[random.randrange(len(images)) :][: random.choice((1, 1, 2, 4))].reshape(-1, 1, 8, 8)
        data = rows.astype(float).ravel().tolist()
        tensor = {"name": "image", "datatype": "FP32", "shape": list(rows.shape), "data": data}
        http.post(f"{address}/v2/models/{model}/infer", json={"inputs": [tensor]})

    return clients(send, count=3, pause=lambda: random.random() * 0.1)


def failing(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a network that fails for images with much ink, because a Reshape then needs more numbers than it has."""
    for node in model.graph.node:
        node.output[:] = ["read" if name == "probabilities" else name for name in node.output]
    floats, whole = TensorProto.FLOAT, TensorProto.INT64
    model.graph.initializer.extend(
        [
            helper.make_tensor("ink", floats, [], [TOO_MUCH_INK]),
            helper.make_tensor("number", floats, [1], [0.0]),
            helper.make_tensor("one", whole, [1], [1]),
            helper.make_tensor("image_axes", whole, [3], [1, 2, 3]),
        ]
    )
    model.graph.node.extend(
        [
            helper.make_node("ReduceSum", ["image", "image_axes"], ["inked"], keepdims=0),
            helper.make_node("ReduceMax", ["inked"], ["most"], keepdims=0),
            helper.make_node("Div", ["most", "ink"], ["how_much"]),
            helper.make_node("Cast", ["how_much"], ["rows"], to=whole),
            helper.make_node("Add", ["rows", "one"], ["size"]),
            helper.make_node("Reshape", ["number", "size"], ["nothing"]),
            helper.make_node("Add", ["read", "nothing"], ["probabilities"]),
        ]
    )
    onnx.checker.check_model(model)
    return model
