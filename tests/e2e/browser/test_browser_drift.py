"""Quality in a browser, with requests that the real server captured: shifted traffic is found, shown and told once, and labels
take out a rollout's candidate that is often wrong."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.alerts.conftest import Receiver
from tests.e2e.browser.conftest import PASSWORD, new_context, sign_in
from tests.e2e.browser.house import House
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until
from tests.support.up_process import Up

pytestmark = [pytest.mark.browser, pytest.mark.long]

CONFIG = """backend: "python"
max_batch_size: 8
input [
  { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "image" data_type: TYPE_UINT8 dims: [ 8, 8 ] },
  { name: "embedding" data_type: TYPE_FP32 dims: [ 40 ] },
  { name: "kind" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "same" data_type: TYPE_FP32 dims: [ 1 ] }
]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
parameters { key: "slipway.class_names" value { string_value: "{\\"y\\": [\\"cat\\", \\"dog\\", \\"bird\\"]}" } }
"""
# The class is the kind; of the candidate it is always the first one. The file names each input, as the inspection reads it.
CLASSIFIER = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        pb_utils.get_input_tensor_by_name(request, "text")
        pb_utils.get_input_tensor_by_name(request, "image")
        pb_utils.get_input_tensor_by_name(request, "embedding")
        pb_utils.get_input_tensor_by_name(request, "same")
        kind = pb_utils.get_input_tensor_by_name(request, "kind").as_numpy()[:, 0]
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.eye(3, dtype=np.float32)[RIGHT * kind])])
"""
NAMES = ("cat", "dog", "bird")
Asked = dict[str, Any]


def requests(count: int, seed: int, *, shifted: bool = False, name: str = "r") -> list[Asked]:
    """Return requests of V2. Shifted ones have longer texts, brighter images, longer vectors, and more birds."""
    random = np.random.default_rng(seed)
    longer, brighter, scale = (6, 60, 1.5) if shifted else (0, 0, 1.0)
    found = []
    for number in range(count):
        tensors = (
            ("text", "BYTES", [1, 1], [random.bytes(20).hex()[: int(random.integers(4, 20)) + longer]]),
            ("image", "UINT8", [1, 8, 8], (random.integers(0, 150, 64) + brighter).tolist()),
            ("embedding", "FP32", [1, 40], (random.normal(size=40) * scale).tolist()),
            ("kind", "INT64", [1, 1], [int(random.choice(3, p=[0.1, 0.1, 0.8] if shifted else None))]),
            ("same", "FP32", [1, 1], [float(random.normal())]),
        )
        inputs = [dict(zip(("name", "datatype", "shape", "data"), tensor, strict=True)) for tensor in tensors]
        found.append({"id": f"{name}{seed}-{number}", "inputs": inputs})
    return found


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as found:
        yield found


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, chromium: Browser, receiver: Receiver) -> Iterator[House]:
    data = tmp_path_factory.mktemp("drift") / "data"
    with Up(data, SLIPWAY_ADMIN_PASSWORD=PASSWORD, SLIPWAY_ALERT_ADDRESSES=receiver.address) as up:
        up.prepared(wanted=()).start()
        context = new_context(chromium, up, viewport={"width": 1440, "height": 1000})
        page = context.new_page()
        sign_in(page)
        house = House(up, page)
        house.publish("seen", CLASSIFIER.replace("RIGHT", "1"), CONFIG, path="model.py")
        house.serves("seen", 1)
        yield house
        house.person.http.close()
        context.close()


def captured(house: House, *phases: Sequence[Asked]) -> str:
    """Capture requests, one phase after the other, and return the id of the capture, which has ended."""
    at = "models/seen/captures"
    pk: str = house.person.call("POST", at, json={"percent": 100, "consent": True})["id"]
    wait_until(lambda: house.person.call("GET", f"{at}/{pk}")["counts"], what="the server captures")
    url = f"{house.up.http_url}/v2/models/seen/infer"
    with ThreadPoolExecutor(4) as pool, httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
        for phase in phases:
            answers = pool.map(lambda one: http.post(url, json=one).status_code, phase)
            assert set(answers) == {200}
    house.person.call("POST", f"{at}/{pk}/stop")
    count = sum(map(len, phases))
    wait_until(lambda: house.person.call("GET", f"{at}/{pk}")["counts"]["written"] == count, what="all is captured")
    return pk


def test_shifted_requests_are_found_in_a_real_capture_shown_worst_first_and_told_once(
    house: House, receiver: Receiver
) -> None:
    channel = {"name": "hook", "kind": "webhook", "address": receiver.address}
    house.person.call("POST", "alerts/channels", json=channel)
    reference = captured(house, requests(300, 1))
    captured(house, requests(200, 2), requests(200, 3, shifted=True))
    page = house.page
    page.goto("/models/seen/")
    page.get_by_role("link", name="Quality").click()
    expect(page.get_by_text("Nothing is compared yet")).to_be_visible()
    page.get_by_label("Reference").select_option(reference)
    page.get_by_label("Requests of a window").fill("200")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="Window 2: 7 of 8 columns drifted")).to_be_visible(
        timeout=START_TIMEOUT_S * 1000
    )
    expect(page.locator("#monitor-title + .state")).to_contain_text("Drifted")
    columns = page.locator(".drift-column")
    drifted = {"in.text length", "in.image brightness", "in.embedding norm", "in.kind"}
    names = columns.locator(".drift-name").first.evaluate(
        "() => [...document.querySelectorAll('figcaption .drift-name')].map((one) => one.textContent)"
    )
    assert set(names[:7]) == drifted | {f"out.y[{place}]" for place in range(3)}
    assert names[7:] == ["in.same"]
    assert columns.nth(0).locator("rect.current").count() == 24
    kind = columns.filter(has=page.get_by_text("in.kind", exact=True))
    expect(kind).to_contain_text("chi-square")
    kind.get_by_text("Categories").click()
    expect(kind.get_by_role("rowheader", name="2", exact=True)).to_be_visible()
    kind.get_by_text("Categories").click()  # the page does not refresh what a person has open

    captured(house, requests(200, 4, shifted=True))
    monitor = "models/seen/drift-monitors/1"

    def compared() -> bool:
        return bool(house.person.call("POST", f"{monitor}/check")["windows"] == 3)

    wait_until(compared, START_TIMEOUT_S, "the third window is compared")
    expect(page.get_by_role("heading", name="Window 3: 7 of 8 columns drifted")).to_be_visible()
    page.get_by_role("link", name="Window 1", exact=True).click()
    expect(page.get_by_role("heading", name="Window 1: 0 of 8 columns drifted")).to_be_visible()
    wait_until(lambda: receiver.got, what="people are told")
    page.goto("/alerts/")
    alert = page.get_by_role("link", name="7 columns of seen drifted")
    expect(alert).to_have_count(1)
    alert.click()
    expect(page.get_by_role("cell", name="Fired", exact=True)).to_have_count(1)
    page.get_by_role("link", name="See the columns").click()
    expect(page.get_by_role("heading", name="Window 3: 7 of 8 columns drifted")).to_be_visible()
    assert [(one["event"], one["kind"]) for one in receiver.bodies] == [("fired", "data_drift")]

    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/models/seen/data-drift")
    expect(columns.nth(0).get_by_role("img", name="Distributions")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_labels_take_out_the_candidate_of_a_real_rollout_that_is_often_wrong(house: House) -> None:
    house.publish("seen", CLASSIFIER.replace("RIGHT", "0"), CONFIG, path="model.py", make_live=False, load=False)
    plan = {"steps": [{"weight": 50, "bake_s": 3600}], "guardrails": [], "promote": "hand"}
    wait_until(lambda: len(house.person.call("GET", "models/seen/versions")["results"]) == 2, what="two versions")
    house.person.call("POST", "models/seen/rollouts", json={"candidate": 2, "plan": plan})
    house.serves("seen", house.person.call("GET", "models/seen")["wanted_release"])
    page = house.page
    page.set_viewport_size({"width": 1440, "height": 1000})
    page.goto("/models/seen/truth")
    page.get_by_label("Metric").select_option("accuracy")
    page.get_by_label("Guardrail").fill("0.05")
    page.get_by_role("button", name="Save the metric").click()
    expect(page.get_by_text("by its name ('cat', 'dog', 'bird')")).to_be_visible()
    asked = requests(240, 5)
    captured(house, asked)
    rows = [f"{one['id']},{NAMES[one['inputs'][3]['data'][0]]}" for one in asked]
    page.get_by_label("CSV file").set_input_files(
        {"name": "labels.csv", "mimeType": "text/csv", "buffer": "\n".join(["id,label", *rows, "lost,cat"]).encode()}
    )
    page.get_by_role("button", name="Send the labels").click()
    expect(page.get_by_text("241 labels are stored.")).to_be_visible()
    expect(page.get_by_text("1 label waits for an answer")).to_be_visible(timeout=START_TIMEOUT_S * 1000)
    expect(page.get_by_role("row", name="1 100 %")).to_be_visible()

    def rolled_back() -> bool:
        (rollout,) = house.person.call("GET", "models/seen/rollouts")["results"]
        return bool(rollout["state"] == "rolled_back" and "the accuracy of version 2 is" in rollout["reason"])

    wait_until(rolled_back, what="the candidate is taken out by its labels")
