"""The picture of a server's memory: two models in it with the kernel's own figures, and one that goes."""

import re

import pytest
from playwright.sync_api import Page, expect

from serving.resources.process_memory import own_bytes
from tests.e2e.browser.house import House
from tests.support import model_factory
from tests.support.serving_process import descendants, wait_until
from tests.support.up_process import Up

pytestmark = pytest.mark.browser
MB = 1 << 20
HOLDER = b"""import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept = b"x" * (96 << 20)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(one, "x")]) for one in requests]
"""
CONFIG = """name: "holder" backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 3 }"""


def test_the_picture_shows_two_models_with_real_numbers_and_one_goes(page: Page, slipway: Up, tmp_path) -> None:
    house = House(slipway, page)
    model_factory.onnx_mlp(tmp_path, "weights", (1024, 1800))
    house.publish("holder", HOLDER, CONFIG, path="model.py")
    house.serves("holder", 1)
    house.publish("weights", (tmp_path / "weights/1/model.onnx").read_bytes())
    house.serves("weights", 1)
    try:
        page.goto("/servers/local/")
        host = page.get_by_role("region", name="Memory: Host")
        row = host.get_by_role("row", name=re.compile("^holder "))
        expect(row).to_contain_text("measured")
        expect(host.get_by_role("row", name=re.compile("^weights "))).to_contain_text("estimated")
        [shown] = re.findall(r"([\d.]+) MiB", row.locator('[data-label="Holds"]').inner_text())
        [inference] = slipway.running("-m", "serving")
        kernel = [size for pid in descendants(inference) if (size := own_bytes(pid)) > 96 * MB]
        assert [float(shown)] == pytest.approx([size / MB for size in kernel], abs=2)
        found = house.person.call("GET", "servers/local/memory")["devices"][0]
        held = [(one["model"], one["bytes"]) for one in found["holders"]]
        assert dict(held)["weights"] >= 7 * MB
        assert sum(size for _, size in held) + found["itself"] == found["server"]
        bar = host.get_by_role("img", name=re.compile("What the versions on this server hold"))
        expect(bar.locator("title", has_text=re.compile("^holder version 1: "))).to_have_count(1)

        house.person.call("POST", "models/holder/unload")
        expect(row).to_have_count(0)  # the picture refreshes by itself
        expect(bar.locator("title", has_text=re.compile("^holder"))).to_have_count(0)
        fits = page.get_by_role("region", name="Would it fit?")
        expect(fits.get_by_role("row", name=re.compile("^holder 1 .* MiB from its last load Yes"))).to_be_visible()
    finally:
        for name in ("holder", "weights"):
            house.person.call("POST", f"models/{name}/unload")
            wait_until(lambda name=name: house.model(name)["state"] == "unloaded", what="the model is unloaded")
            house.person.call("DELETE", f"models/{name}?confirm={name}")
        house.person.http.close()
