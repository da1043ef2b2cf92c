"""Uploading in the browser: in chunks, over a lost connection, paused, left and found again, and refused in words."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.dashboard.conftest import relu_bytes
from tests.e2e.browser.conftest import PASSWORD, new_context, sign_in
from tests.support.model_factory import helper, onnx_bytes
from tests.support.up_process import Up

pytestmark = pytest.mark.browser
CHUNK_BYTES = 4 << 20
LIMIT_BYTES = 8_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX model of some 14 MB, so of four chunks."""
    weight = np.random.default_rng(0).normal(size=(1024, 3500)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    tensors = [("x", "FP32", ["batch", 1024])], [("y", "FP32", ["batch", 3500])]
    content = onnx_bytes([node], *tensors, weights={"w": weight})
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    path.write_bytes(content)
    return path


def upload_row(slipway: Up, name: str) -> tuple[str, int, int]:
    """(state, received, size) of the newest upload of a model."""
    rows = slipway.query(
        "SELECT u.state, SUM(f.received), SUM(f.size) FROM dashboard_upload u JOIN dashboard_uploadfile f"
        " ON f.upload_id = u.id WHERE u.model_name = ? GROUP BY u.id ORDER BY u.created_at DESC",
        name,
    )
    return rows[0]  # type: ignore[return-value]


def name_it(page: Page, name: str) -> None:
    page.goto("/models/new")
    page.get_by_label("Model name").fill(name)


def test_a_cut_connection_loses_nothing(page: Page, slipway: Up, large: Path) -> None:
    page.watch.allowed = ("Failed to load resource",)  # type: ignore[attr-defined]
    sizes: list[int] = []
    cut = {"left": 3}

    def chunk(route: Route) -> None:
        sizes.append(int(route.request.headers.get("content-length", 0)))
        if len(sizes) >= 2 and cut["left"]:
            cut["left"] -= 1
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route(re.compile(r"/files/0\?offset="), chunk)
    name_it(page, "resumed")
    page.locator("#file-input").set_input_files(large)
    expect(page.locator("#transfer-title")).to_have_text("Connection lost")
    expect(page.locator("#transfer-note")).to_contain_text("The server keeps what it has")
    expect(page.get_by_role("heading", name="What it is")).to_be_visible()
    assert upload_row(slipway, "resumed")[1:] == (large.stat().st_size,) * 2
    assert max(sizes) <= LIMIT_BYTES
    assert len(sizes) == -(-large.stat().st_size // CHUNK_BYTES) + 3


def test_an_answer_that_got_lost_is_not_sent_twice(page: Page, slipway: Up, large: Path) -> None:
    """The server has the chunk, the browser does not know: the server's 409 says where to go on."""
    page.watch.allowed = ("Failed to load resource", "409")  # type: ignore[attr-defined]
    seen = {"offsets": 0}

    def chunk(route: Route) -> None:
        seen["offsets"] += 1
        if seen["offsets"] == 2:
            route.fetch()
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route(re.compile(r"/files/0\?offset="), chunk)
    name_it(page, "answerless")
    page.locator("#file-input").set_input_files(large)
    expect(page.get_by_role("heading", name="What it is")).to_be_visible()
    assert upload_row(slipway, "answerless")[1:] == (large.stat().st_size,) * 2


def held_back(page: Page, count: int) -> Callable[[], None]:
    """Lets `count` chunks through and holds the next; the function it returns lets go."""
    waiting: list[Route] = []
    state = {"passed": 0, "open": False}

    def chunk(route: Route) -> None:
        state["passed"] += 1
        if state["open"] or state["passed"] <= count:
            route.continue_()
        else:
            waiting.append(route)

    page.route(re.compile(r"/files/0\?offset="), chunk)

    def let_go() -> None:
        state["open"] = True
        for route in waiting:
            route.continue_()

    return let_go


def test_an_upload_is_paused_and_resumed(page: Page, slipway: Up, large: Path) -> None:
    # The chunk on the way may arrive in spite of the pause: then a 409 says where to go on.
    page.watch.allowed = ("Failed to load resource", "409")  # type: ignore[attr-defined]
    let_go = held_back(page, 1)
    name_it(page, "paused")
    page.locator("#file-input").set_input_files(large)
    expect(page.locator("#transfer-done")).to_contain_text("4 MiB of")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#transfer-title")).to_have_text("Paused")
    assert upload_row(slipway, "paused")[1] < large.stat().st_size
    let_go()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("heading", name="What it is")).to_be_visible()


def test_an_upload_that_was_left_is_found_under_jobs_and_goes_on(page: Page, slipway: Up, large: Path) -> None:
    held_back(page, 2)
    name_it(page, "left_alone")
    page.locator("#file-input").set_input_files(large)
    expect(page.locator("#transfer-done")).to_contain_text("8 MiB of")
    page.on("dialog", lambda dialog: dialog.accept())  # "Leave site?"
    page.goto("/jobs/")
    page.unroute_all()
    page.get_by_role("link", name="left_alone").click()
    expect(page.locator("#transfer-done")).to_contain_text("8 MiB of")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if "/files/0?offset=" in request.url else None)
    page.locator("#file-input").set_input_files(large)
    expect(page.get_by_role("heading", name="What it is")).to_be_visible()
    assert sent[0].endswith(f"offset={2 * CHUNK_BYTES}")
    assert upload_row(slipway, "left_alone")[1:] == (large.stat().st_size,) * 2


def test_a_text_file_named_onnx_is_refused_in_words(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "poem.onnx"
    path.write_text("Not a model at all.\n" * 20)
    page.goto("/models/new")
    page.locator("#file-input").set_input_files(path)
    refusal = page.locator(".note.failed, .blank").filter(has_text=re.compile("ONNX", re.IGNORECASE))
    expect(refusal.first).to_be_visible()
    publish = page.get_by_role("button", name="Publish")
    assert publish.count() == 0 or publish.is_disabled()


def test_a_bad_name_is_refused_beside_its_field(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "fine.onnx"
    path.write_bytes(os.urandom(64))
    name_it(page, "../escape")
    page.watch.allowed = ("400 (Bad Request)",)  # type: ignore[attr-defined]
    page.locator("#file-input").set_input_files(path)
    expect(page.locator("#model-name-error")).to_contain_text("does not begin with '.' and has no '/'")
    expect(page.get_by_label("Model name")).to_be_focused()
    expect(page.get_by_label("Model name")).to_have_value("../escape")


def test_a_file_dropped_on_the_list_of_models_begins_an_upload(page: Page) -> None:
    page.goto("/models/")
    expect(page.locator("#freshness")).to_have_text("up to date")
    page.evaluate(
        """() => {
            const carried = new DataTransfer();
            carried.items.add(new File(["no model"], "dropped.onnx"));
            for (const kind of ["dragover", "drop"]) {
                window.dispatchEvent(new DragEvent(kind, {dataTransfer: carried, bubbles: true, cancelable: true}));
            }
        }"""
    )
    page.wait_for_url(re.compile("/uploads/"))
    expect(page.get_by_role("heading", name="dropped")).to_be_visible()
    expect(page.locator("#upload-files")).to_have_count(0)  # it is sent, and the page of the upload has come
    page.go_back()
    expect(page.get_by_role("heading", name="Models")).to_be_visible()
    expect(page.locator(".models-table")).to_be_visible()


def test_while_the_configuration_is_typed_the_page_says_which_permission_it_takes(
    page: Page, chromium: Browser, slipway: Up, tmp_path: Path
) -> None:
    """Somebody who may upload data and operate, but not upload code."""
    csrf = next(cookie["value"] for cookie in page.context.cookies() if cookie.get("name") == "slipway_csrf")
    account = {"username": "una", "password": PASSWORD, "permissions": ["upload_data", "operate"]}
    made = page.request.post("/api/v1/accounts", data=account, headers={"X-CSRFToken": csrf})
    assert made.ok, made.text()
    files = {"relu.onnx": relu_bytes(), "config.json": b"{}", "vocab.txt": b"[PAD]\nimport\n"}
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    context = new_context(chromium, slipway)
    hers = context.new_page()
    sign_in(hers, "una")
    name_it(hers, "hers")
    hers.locator("#file-input").set_input_files([tmp_path / file for file in files])
    publish, refusal = hers.locator("#publish"), hers.locator("#refusal")
    expect(publish).to_be_enabled()
    text = hers.locator("#config-text").input_value()
    hers.locator("#config-text").fill(text.replace("onnxruntime", "python"))
    expect(refusal).to_contain_text("needs the permission to upload formats that can run code: backend 'python' runs")
    expect(publish).to_be_disabled()
    hers.locator("#config-text").fill(text)
    expect(refusal).to_be_hidden()
    expect(publish).to_be_enabled()
    publish.click()
    expect(hers.get_by_role("heading", name="Version 1 is published")).to_be_visible()
    context.close()


def test_a_version_with_other_inputs_says_which_clients_break_and_nothing_stale_when_it_is_ready(
    page: Page, tmp_path: Path
) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(relu_bytes())
    page.goto("/models/new?model=digits")
    page.locator("#file-input").set_input_files(path)
    expect(page.get_by_role("heading", name=re.compile(r"Publish version \d"))).to_be_visible()
    live = page.locator("#once-live")
    expect(live).to_contain_text(
        re.compile(r"Clients break. What they send to version \d today is refused by version \d")
    )
    expect(live.get_by_role("columnheader", name=re.compile("which answers now"))).to_be_visible()
    expect(live.get_by_role("row", name=re.compile("in x"))).to_contain_text("FP32")
    badge = page.locator("h1 ~ [data-publishable]:visible")
    expect(badge).to_have_text("Cannot be published yet")
    stale = page.get_by_text("The model’s configuration does not fit this file.")
    expect(stale).to_be_visible()
    page.get_by_role("button", name="Use the proposed one").click()
    expect(badge).to_have_text("Ready to publish")
    expect(stale).to_be_hidden()
    expect(page.locator('[data-fits="no"]:visible')).to_have_count(0)
    expect(page.get_by_text("The configuration below fits the file")).to_be_visible()
    page.locator("#config-text").fill("backend: 3")
    expect(badge).to_have_text("Cannot be published yet")
    expect(stale).to_be_visible()


# -- what cannot be published, and names that are taken ----------------------------------------------------------------
def sent_to(page: Page) -> list[str]:
    """Every address that the page sends something to from now on."""
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method != "GET" else None)
    return sent


def test_weights_without_a_graph_are_told_how_to_export_before_anything_is_sent(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    sent = sent_to(page)
    page.goto("/models/new")
    page.locator("#file-input").set_input_files(path)
    said = page.locator("#judgement")
    expect(said).to_contain_text("model.safetensors cannot be published")
    expect(said.locator("pre")).to_contain_text("optimum-cli export onnx")
    assert sent == []
    expect(page.locator("#drop")).to_be_visible()


def split_model(folder: Path, weights: str) -> tuple[Path, Path]:
    """y = x + w, with w in a file of its own."""
    weight = helper.make_tensor("w", 1, [2], [1.0, 2.0])
    weight.ClearField("float_data")
    weight.data_location = 1
    weight.external_data.add(key="location", value=weights)
    tensors = [helper.make_tensor_value_info(name, 1, ["n", 2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "graph", tensors[:1], tensors[1:], [weight])
    opsets = [helper.make_opsetid("", 17)]
    (folder / "split.onnx").write_bytes(
        helper.make_model(graph, ir_version=9, opset_imports=opsets).SerializeToString()
    )
    (folder / weights).write_bytes(np.array([1, 2], np.float32).tobytes())
    return folder / "split.onnx", folder / weights


def test_missing_weights_are_asked_for_with_a_button(page: Page, slipway: Up, tmp_path: Path) -> None:
    model, weights = split_model(tmp_path, "split.onnx.data")
    sent = sent_to(page)
    name_it(page, "split")
    page.locator("#file-input").set_input_files(model)
    expect(page.locator("#judgement")).to_contain_text("split.onnx is not all of the model")
    assert sent == []
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add split.onnx.data").click()
    chooser.value.set_files(weights)
    expect(page.get_by_role("heading", name="What it is")).to_be_visible()
    expect(page.get_by_role("heading", name="Publish version 1")).to_be_visible()


def test_what_only_the_inspection_finds_missing_is_added_to_the_upload(page: Page, slipway: Up, tmp_path: Path) -> None:
    """As for a model that was announced over REST, or is too large for the browser to read."""
    model, weights = split_model(tmp_path, "weights.bin")
    page.route(
        "**/uploads/judgement.js",
        lambda route: route.fulfill(
            body="export async function judge() { return null; } export const mayBeConverted = () => false;",
            content_type="text/javascript",
        ),
    )
    name_it(page, "incomplete")
    page.locator("#file-input").set_input_files(model)
    expect(page.get_by_role("heading", name="This cannot be published")).to_be_visible()
    expect(page.locator(".state.ready, .step.done, #publish")).to_have_count(0)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add weights.bin").click()
    chooser.value.set_files(weights)
    expect(page.get_by_role("heading", name="Publish version 1")).to_be_visible()


def test_a_taken_name_asks_for_a_new_version_or_another_name(page: Page, slipway: Up, tmp_path: Path) -> None:
    path = tmp_path / "digits.onnx"
    path.write_bytes(relu_bytes())
    sent = sent_to(page)
    page.goto("/models/new")
    page.locator("#file-input").set_input_files(path)
    question = page.locator("#existing")
    expect(question).to_contain_text("There is a model digits already")
    expect(question).to_contain_text("digits_pipeline calls it")
    assert sent == []
    question.get_by_role("button", name="Take another name").click()
    expect(question).to_be_hidden()
    page.locator("#file-input").set_input_files(path)
    question.get_by_role("button", name="Call it digits_2").click()
    expect(page.get_by_role("heading", name="What it is")).to_be_visible()
    assert upload_row(slipway, "digits_2")[0] == "inspected"
