"""The playground: a drawn digit is recognised, mistakes are explained, and the snippets run as pasted."""

import json
import os
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.processes import Up
from tests.serving_process import PATIENCE_S

pytestmark = pytest.mark.browser
# Strokes on a pad of 1 x 1, as a person draws them.
DIGITS = {
    "1": [[(0.42, 0.3), (0.52, 0.2), (0.52, 0.8)]],
    "4": [[(0.6, 0.8), (0.6, 0.15), (0.3, 0.6), (0.78, 0.6)]],
    "7": [[(0.28, 0.2), (0.72, 0.2), (0.45, 0.82)]],
}
ZERO = [
    [
        (0.5, 0.15),
        (0.33, 0.25),
        (0.28, 0.5),
        (0.33, 0.75),
        (0.5, 0.85),
        (0.67, 0.75),
        (0.72, 0.5),
        (0.67, 0.25),
        (0.5, 0.15),
    ]
]


def draw(page: Page, strokes: list[list[tuple[float, float]]]) -> None:
    box = page.locator(".pad-draw").bounding_box()
    assert box is not None
    for first, *rest in strokes:
        page.mouse.move(box["x"] + first[0] * box["width"], box["y"] + first[1] * box["height"])
        page.mouse.down()
        for x, y in rest:
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=8)
        page.mouse.up()


@pytest.mark.parametrize(("digit", "strokes"), [*DIGITS.items(), ("0", ZERO)])
def test_a_drawn_digit_is_recognised(page: Page, digit: str, strokes: list[list[tuple[float, float]]]) -> None:
    page.goto("/models/digits/playground")
    draw(page, strokes)
    page.get_by_role("button", name="Send request").click()
    best = page.locator('[data-output="probabilities"] .top-k')
    expect(best).to_have_attribute("data-top", digit)


def test_a_drawing_travels_as_a_picture_through_the_pipeline(page: Page) -> None:
    page.goto("/models/digits_pipeline/playground")
    draw(page, DIGITS["7"])
    page.get_by_role("button", name="Send request").click()
    best = page.locator('[data-output="probabilities"] .top-k')
    expect(best).to_have_attribute("data-top", "7")
    expect(page.locator("#sent")).to_contain_text("of binary data")


def test_what_the_server_refuses_is_said_in_its_words(page: Page) -> None:
    page.watch.allowed = ("400",)  # type: ignore[attr-defined]
    page.goto("/models/digits/playground")
    page.get_by_role("button", name="JSON").click()
    page.get_by_label("image as JSON").fill("[[[[1, 2]]]]")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator("#answer [role=alert]")).to_contain_text("image")
    page.get_by_label("image as JSON").fill("[1, 2")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-input="image"] .error-text')).to_contain_text("This is not JSON")


@pytest.mark.parametrize("model", ["digits", "digits_pipeline"])
def test_the_snippets_run_as_pasted(page: Page, slipway: Up, model: str) -> None:
    page.goto(f"/models/{model}/playground")
    draw(page, DIGITS["7"])

    def copied(kind: str, word: str) -> str:
        page.get_by_role("button", name=kind, exact=True).click()
        expect(page.locator("#snippet")).to_contain_text(word)
        page.locator("#snippet").locator("xpath=..").get_by_role("button", name="Copy", exact=True).click()
        page.wait_for_function("async (word) => (await navigator.clipboard.readText()).includes(word)", arg=word)
        return str(page.evaluate("navigator.clipboard.readText()"))

    answer = json.loads(run(["bash", "-c", copied("curl", "curl")]))
    scores = next(output["data"] for output in answer["outputs"] if output["name"] == "probabilities")
    assert scores.index(max(scores)) == 7
    for kind, word in (("Python, HTTP", "tritonclient.http"), ("Python, gRPC", "tritonclient.grpc")):
        assert "probabilities" in run([sys.executable, "-c", copied(kind, word)])


def run(command: list[str]) -> str:
    environment = {"PATH": os.environ["PATH"], "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
