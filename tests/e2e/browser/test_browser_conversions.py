"""Converting in the browser: files of another tool become a model that answers, or are refused for their difference."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from dashboard.conversions.conversion import LOCKS
from dashboard.environments.locks import read_lock
from dashboard.environments.making import environment
from tests.dashboard.conversions.artefacts import ENVIRONMENTS, dense_bytes
from tests.e2e.browser.conftest import PASSWORD, new_context, sign_in
from tests.support.exported_models import FOLDER as EXPORTED
from tests.support.serving_process import PATIENCE_S
from tests.support.up_process import Up

pytestmark = [pytest.mark.browser, pytest.mark.long]


def ask(up: Up, name: str, body: dict[str, object]) -> dict[str, list[float]]:
    """Return the outputs of a model by name, over HTTP."""
    answer = httpx.post(f"{up.http_url}/v2/models/{name}/infer", json=body, timeout=PATIENCE_S, trust_env=False)
    answer.raise_for_status()
    return {one["name"]: one["data"] for one in answer.json()["outputs"]}


def metadata(up: Up, name: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{up.http_url}/v2/models/{name}", timeout=PATIENCE_S, trust_env=False).json()
    return found


def predict(path: Path, rows: list[list[float]]) -> list[float]:
    """Return the prediction of scikit-learn itself."""
    code = f"import json, pickle; print(json.dumps(pickle.load(open({str(path)!r}, 'rb')).predict({rows}).ravel().tolist()))"
    with environment(read_lock(LOCKS / "tabular.txt"), ENVIRONMENTS, lambda percent, step: None) as made:
        done = subprocess.run([made.python, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def drop(page: Page, name: str, *paths: Path) -> None:
    page.goto("/models/new")
    page.get_by_label("Model name").fill(name)
    page.locator("#file-input").set_input_files(list(paths))


def choose_fp16(page: Page) -> None:
    page.locator("#conversion > summary").click()
    page.locator(".recipe > summary", has_text="ONNX in FP16").click()


def convert_to_fp16(page: Page) -> None:
    choose_fp16(page)
    page.locator("details.recipe[open]").get_by_role("button", name="Convert").click()


def publish_live(page: Page, name: str) -> None:
    page.get_by_label("Make it live").check()
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text(f"{name} is serving version 1.")).to_be_visible()


def test_an_onnx_model_is_converted_to_fp16_and_answers(page: Page, slipway: Up, tmp_path: Path) -> None:
    (tmp_path / "dense.onnx").write_bytes(dense_bytes())
    drop(page, "halved", tmp_path / "dense.onnx")
    convert_to_fp16(page)
    expect(page.get_by_role("heading", name="Where it comes from")).to_be_visible()
    expect(
        page.get_by_text(re.compile(r"Its answers differ from the source’s by [\d.e-]+ at most and [\d.e-]+"))
    ).to_be_visible()
    publish_live(page, "halved")
    page.goto("/models/halved/versions")
    expect(page.get_by_text("By the recipe onnx_fp16 from dense.onnx")).to_be_visible()
    found = ask(
        slipway, "halved", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 0, 0, 0]}]}
    )
    assert found["y"][:2] == pytest.approx([-1, -1 + 2 / 31], abs=1e-3)


def test_a_conversion_that_answers_otherwise_is_refused_with_both_numbers(page: Page, tmp_path: Path) -> None:
    page.watch.allowed = ("status of 400",)  # type: ignore[attr-defined]
    (tmp_path / "large.onnx").write_bytes(dense_bytes(1e6))
    drop(page, "large", tmp_path / "large.onnx")
    choose_fp16(page)
    page.locator("#onnx_fp16-inputs").fill("{x")
    page.locator("details.recipe[open]").get_by_role("button", name="Convert").click()
    expect(page.get_by_role("alert")).to_contain_text("The conversion did not begin: 'inputs' must be JSON")
    page.locator("#onnx_fp16-inputs").fill("")
    page.locator("details.recipe[open]").get_by_role("button", name="Convert").click()
    refusal = page.get_by_role("alert").filter(has_text="Nothing was converted")
    expect(refusal).to_contain_text(
        re.compile(r"differs from the source's by [\d.e+]+ at most and [\d.e+]+ on average")
    )
    expect(refusal).to_contain_text("choose another opset or datatype, or keep the source")
    expect(page.get_by_role("button", name="Publish")).to_be_enabled()


# -- with the packages of other tools ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def with_tabular(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A Slipway whose environment for scikit-learn is there already: the first run makes it, in half a minute."""
    data = tmp_path_factory.mktemp("tabular") / "data"
    (data / "environments").mkdir(parents=True)
    with environment(read_lock(LOCKS / "tabular.txt"), ENVIRONMENTS, lambda percent, step: None) as made:
        (data / "environments" / made.folder.name).symlink_to(made.folder.resolve())
        with Up(data, SLIPWAY_ADMIN_PASSWORD=PASSWORD) as up:
            yield up.prepared(wanted=()).start()


def test_a_scikit_learn_pickle_ends_in_a_right_answer(with_tabular: Up, chromium: Browser) -> None:
    context = new_context(chromium, with_tabular, viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    sign_in(page)
    path = EXPORTED / "sklearn_pickle" / "files" / "model.pkl"
    drop(page, "pickled", path)
    expect(page.get_by_role("heading", name="Convert it here")).to_be_visible()
    expect(page.get_by_text("Needs a conversion")).to_be_visible()
    expect(page.get_by_text("Nothing that the pickle imports is known to do harm.")).to_be_visible()
    page.get_by_label("Run the code of these files").check()
    page.get_by_role("button", name="Convert").click()
    expect(page.get_by_role("heading", name="Where it comes from")).to_be_visible()
    publish_live(page, "pickled")
    context.close()
    [wanted] = metadata(with_tabular, "pickled")["inputs"]
    row = np.random.default_rng(7).normal(size=(1, wanted["shape"][-1])).astype(np.float32)
    tensor = {"name": wanted["name"], "datatype": "FP32", "shape": list(row.shape), "data": row.ravel().tolist()}
    [served] = ask(with_tabular, "pickled", {"inputs": [tensor]}).values()
    assert served == pytest.approx(predict(path, row.tolist()), rel=1e-4)
