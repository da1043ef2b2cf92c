"""The playground: a drawn digit is recognised, mistakes are explained, and the snippets run as pasted."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, wait_until
from tests.support.up_process import Up
from tools.screenshots import BROKEN, CONFIG, WORKING, Person

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
    expect(best.locator("[data-class='7']")).to_have_text("seven")
    expect(page.locator("#sent")).to_contain_text("of binary data")
    expect(page.locator(".steps-table tbody tr")).to_have_count(2)
    expect(page.locator(".steps-table tbody")).to_contain_text("digits_preprocess")


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


def run(command: list[str], folder: Path | None = None) -> str:
    # A snippet for curl calls python3, which is ours.
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_too_large_to_type_can_be_sent_as_it_stands(page: Page, tmp_path: Path) -> None:
    """A picture in halves: no JSON could carry it, and the browser holds none of it until it is sent."""
    node = model_factory.helper.make_node("ReduceMax", ["image"], ["most"], axes=[1, 2, 3], keepdims=0)
    model = [("image", "FP16", ["n", 3, 512, 512])], [("most", "FP16", ["n"])]
    (tmp_path / "brightest.onnx").write_bytes(model_factory.onnx_bytes([node], *model))
    upload(page, tmp_path / "brightest.onnx")
    page.goto("/models/brightest/playground")
    page.get_by_label("Picture for image").set_input_files(tmp_path / "brightest.onnx")
    page.get_by_role("button", name="Python, HTTP").click()
    expect(page.locator("#snippet")).to_contain_text("tritonclient.http")
    expect(page.locator('[data-input="image"] .error-text')).to_contain_text("not a picture")
    page.get_by_role("button", name="curl").click()
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-output="most"] td')).to_have_text("0.502")
    expect(page.locator("#answer-time")).to_contain_text("measured in the server")
    expect(page.locator("#snippet")).to_contain_text("Image.new")
    run(["bash", "-c", page.locator("#snippet").text_content() or ""], tmp_path)
    assert struct.unpack("<e", (tmp_path / "answer.bin").read_bytes()[-2:])[0] == pytest.approx(0.502, abs=1e-3)
    page.get_by_role("button", name="Python, gRPC", exact=True).click()
    expect(page.locator("#snippet")).to_contain_text("tritonclient.grpc")
    assert "0.502" in run([sys.executable, "-c", page.locator("#snippet").text_content() or ""])
    page.get_by_role("button", name="Generate").click()
    page.get_by_label("Values of image").select_option("ones")
    page.get_by_label("Dimension 0 of image").fill("2")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-output="most"] td')).to_have_text(["1", "1"])
    page.get_by_label("Dimension 0 of image").fill("1000")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-input="image"] .error-text')).to_contain_text("the browser sends at most 48 MiB")


def test_a_table_is_pasted_from_a_spreadsheet_and_rows_are_added(page: Page, tmp_path: Path) -> None:
    node = model_factory.helper.make_node("Softmax", ["x"], ["y"])
    tensors = [("x", "FP32", ["n", 3])], [("y", "FP32", ["n", 3])]
    (tmp_path / "softmax.onnx").write_bytes(model_factory.onnx_bytes([node], *tensors))
    upload(page, tmp_path / "softmax.onnx")
    page.goto("/models/softmax/playground")
    page.evaluate("navigator.clipboard.writeText('a\\tb\\tc\\n0\\t0\\t9\\n9\\t0\\t0\\n')")
    page.get_by_label("x 0").focus()
    page.keyboard.press("Control+V")
    expect(page.get_by_label("x row 2, 0")).to_have_value("9")
    expect(page.get_by_label("x 0")).to_be_focused()
    page.get_by_role("button", name="Add row").click()
    expect(page.get_by_label("x row 3, 0")).to_be_focused()
    page.keyboard.type("9,5")
    page.keyboard.press("Enter")
    best = page.locator('[data-output="y"] tbody tr')
    expect(best).to_have_count(3)
    wait_until(lambda: [row.get_attribute("data-top") for row in best.all()] == ["2", "0", "0"])
    expect(page.get_by_label("x row 3, 0")).to_be_focused()
    page.evaluate("navigator.clipboard.writeText('1,2,3\\n'.repeat(5))")
    page.keyboard.press("Control+V")
    refusal = "7 rows are more than one request may have: x takes at most 4."
    expect(page.locator('[data-input="x"] .error-text')).to_have_text(refusal)
    page.get_by_role("button", name="Python, HTTP").click()
    expect(page.locator("#snippet")).to_contain_text("tritonclient.http")
    expect(page.locator('[data-input="x"] .error-text')).to_have_text(refusal)  # though code was made of the other rows
    page.get_by_role("button", name="Name the classes").click()
    page.get_by_label("Names, one for each line").fill("cat\ndog")
    page.get_by_role("button", name="Keep for the model").click()
    expect(page.locator("#classes-dialog")).to_be_hidden()
    expect(page.locator('[data-output="y"]')).to_contain_text("dog")
    kept = page.request.get("/api/v1/models/softmax/config").json()["text"]
    assert "slipway.class_names" in kept
    page.get_by_label("x row 3, 0").fill("nine")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-input="x"] .error-text')).to_have_text("Row 3, column 0: “nine” is not a number.")
    expect(page.get_by_label("x row 3, 0")).to_be_focused()


def test_classes_that_a_person_names_stay_named(page: Page) -> None:
    page.goto("/models/digits/playground")
    draw(page, DIGITS["7"])
    page.get_by_role("button", name="Send request").click()
    page.locator('[data-output="probabilities"]').get_by_role("button", name="Class names").click()
    dialog = page.locator("#classes-dialog")
    dialog.get_by_label("Names, one for each line").fill("\n".join(f"digit {number}" for number in range(10)))
    dialog.get_by_role("button", name="Use here").click()
    expect(page.locator("[data-class='7']")).to_have_text("digit 7")
    page.reload()
    draw(page, DIGITS["7"])
    page.get_by_role("button", name="Send request").click()
    expect(page.locator("[data-class='7']")).to_have_text("digit 7")


def upload(page: Page, file: Path) -> None:
    page.goto("/models/new")
    page.locator("#file-input").set_input_files(file)
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text(f"{file.stem} is serving version 1")).to_be_visible()


COUNTING = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(pb_utils.get_input_tensor_by_name(request, "n").as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNTING_CONFIG = """backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "n" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
SUMMING = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.total = 0

    def execute(self, requests):
        answers = []
        for request in requests:
            x, start = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("x", "START"))
            self.total = x.copy() if start.any() else self.total + x
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", self.total)]))
        return answers
"""
SUMMING_CONFIG = """backend: "python"
max_batch_size: 1
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching {
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]
}
"""


def publish(page: Page, folder: Path, code: str, config: str) -> None:
    """On the upload page, until it is ready."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    (folder / "config.pbtxt").write_text(config)
    page.goto("/models/new")
    page.locator("#folder-input").set_input_files(folder)
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text(f"{folder.name} is serving version 1")).to_be_visible()


def test_a_decoupled_model_answers_part_by_part_and_is_shown_as_code_for_a_stream(page: Page, tmp_path: Path) -> None:
    publish(page, tmp_path / "counting", COUNTING, COUNTING_CONFIG)
    page.goto("/models/counting/playground")
    expect(page.get_by_text("counting is decoupled")).to_be_visible()
    page.get_by_label("n 0").fill("3")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator("#answer [data-end]")).to_contain_text("That was all: 3 responses")
    expect(page.locator("#answer .play-side")).to_have_count(3)
    expect(page.locator("#snippet")).to_contain_text("np.array([3]")
    said = run([sys.executable, "-c", page.locator("#snippet").text_content() or ""])
    assert said.splitlines() == ["y [0]", "y [1]", "y [2]"]


def test_the_requests_of_a_sequence_follow_one_another(page: Page, tmp_path: Path) -> None:
    publish(page, tmp_path / "summing", SUMMING, SUMMING_CONFIG)
    page.goto("/models/summing/playground")
    for value, total in (("2", "2"), ("3", "5")):
        page.get_by_label("x 0").fill(value)
        page.get_by_role("button", name="Send request").click()
        expect(page.locator('[data-output="y"] td')).to_have_text(total)
        expect(page.get_by_label("Begins it")).not_to_be_checked()
    page.get_by_label("Begins it").check()
    page.get_by_role("button", name="Python, gRPC", exact=True).click()
    expect(page.locator("#snippet")).to_contain_text("sequence_start=True")
    assert run([sys.executable, "-c", page.locator("#snippet").text_content() or ""]) == "y [[3.]]\n"


def test_a_model_that_failed_to_load_is_told_as_that_until_it_serves(page: Page, slipway: Up) -> None:
    note = page.locator('[data-state-note="failed"]')
    with Person(slipway.dashboard_url) as person:
        person.publish("stubborn", "model.py", BROKEN, CONFIG)
        person.wait_for_state("stubborn", "failed")
        page.goto("/models/stubborn/playground")
        expect(note).to_have_text(
            "stubborn failed to load, so the server refuses requests. Its log says why; fix that, or upload another version."
        )
        expect(note.get_by_role("link", name="Its log")).to_have_attribute("href", "/models/stubborn/log")
        expect(page.locator("[data-state-note]:visible")).to_have_count(1)
        person.publish("stubborn", "model.py", WORKING, CONFIG)
        person.wait_for_state("stubborn", "ready")
        expect(page.locator("[data-state-note]:visible")).to_have_count(0)
        person.call("POST", "models/stubborn/unload")
        expect(page.locator('[data-state-note="other"]')).to_contain_text("stubborn is not loaded")
