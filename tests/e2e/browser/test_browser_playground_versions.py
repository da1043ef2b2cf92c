"""The playground asks the version or alias that was chosen, two of them side by side, and waits for a model that is loading."""

import uuid
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support import model_factory
from tests.support.up_process import Up

pytestmark = pytest.mark.browser
SLOW = """import pathlib
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        while not pathlib.Path({gate!r}).exists():
            time.sleep(0.05)

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x + 1)]))
        return answers
"""
SLOW_CONFIG = """backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def factor_model(factor: float) -> bytes:
    """x[-1, 3] times a factor, which makes another element the highest where it is negative."""
    node = model_factory.helper.make_node("Mul", ["x", "factor"], ["y"])
    tensors = [("x", "FP32", ["n", 3])], [("y", "FP32", ["n", 3])]
    return model_factory.onnx_bytes([node], *tensors, {"factor": model_factory.np.array(factor, "float32")})


def publish(page: Page, name: str, file: Path) -> None:
    page.goto(f"/models/new?model={name}")
    page.locator("#file-input").set_input_files(file)
    page.get_by_role("button", name="Publish").click()


@pytest.fixture
def two_versions(page: Page, tmp_path: Path) -> str:
    """A model whose versions 1 and 2 both serve; `champion` is the first."""
    name = f"factor_{uuid.uuid4().hex[:8]}"
    for number, factor, served in ((1, 2.0, "1"), (2, -2.0, "1, 2")):
        file = tmp_path / str(number) / f"{name}.onnx"
        file.parent.mkdir()
        file.write_bytes(factor_model(factor))
        publish(page, name if number > 1 else "", file)
        expect(page.get_by_text(f"{name} is serving version {served}")).to_be_visible()
        if number == 1:
            asked = page.request.put(
                f"/api/v1/models/{name}/aliases",
                data={"aliases": {"champion": 1}},
                headers={"X-CSRFToken": page.locator("body").get_attribute("data-csrf") or ""},
            )
            assert asked.ok, asked.text()
    return name


def test_the_same_input_is_sent_to_two_versions_and_their_difference_is_shown(page: Page, two_versions: str) -> None:
    page.goto(f"/models/{two_versions}/playground?versions=champion,2")
    for column, value in enumerate("123"):
        page.get_by_label(f"x {column}", exact=True).fill(value)
    page.get_by_role("button", name="Send request").click()
    row = page.locator('[data-difference="y"]')
    expect(row).to_contain_text("3 of 3")
    expect(row.locator("td").nth(1)).to_have_text("12")
    expect(row.locator(".differs")).to_have_text("another")
    sides = page.locator(".play-side")
    expect(sides.nth(0)).to_contain_text("champion (version 1)")
    expect(sides.nth(0).locator("td").last).to_have_text("6")
    expect(sides.nth(1).locator("td").last).to_have_text("-6")

    page.get_by_label("Compare with").select_option("nothing")
    expect(page).to_have_url(f"/models/{two_versions}/playground?version=champion")
    expect(page.get_by_label("x 2", exact=True)).to_have_value("3")
    expect(page.locator("#snippet")).to_contain_text(f"/v2/models/{two_versions}/versions/champion/infer")
    page.locator("#play-version").select_option("")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-output="y"] td').last).to_have_text("-6")
    expect(page).to_have_url(f"/models/{two_versions}/playground")


def test_a_request_waits_until_the_model_is_ready(page: Page, slipway: Up, tmp_path: Path) -> None:
    name, gate = f"slow_{uuid.uuid4().hex[:8]}", tmp_path / "gate"
    folder = tmp_path / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(SLOW.format(gate=str(gate)))
    (folder / "config.pbtxt").write_text(SLOW_CONFIG)
    page.goto("/models/new")
    page.locator("#folder-input").set_input_files(folder)
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("link", name=name).first).to_be_visible()
    page.goto(f"/models/{name}/playground")
    note = page.get_by_text(f"{name} is being loaded. Fill the inputs")
    expect(note).to_be_visible()
    page.get_by_label("x 0", exact=True).fill("41")
    send = page.get_by_role("button", name="Send request")
    send.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#play-status")).to_have_text(f"waiting until {name} is ready; the request is sent then")
    gate.touch()
    expect(page.locator('[data-output="y"] td')).to_have_text("42")
    expect(note).to_be_hidden()
    expect(send).to_be_focused()
