"""Rollouts in a browser, with everything running: started from the form, followed live, ended by guardrails and by buttons."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser.conftest import PASSWORD, Watch
from tests.e2e.browser.house import House, visited
from tests.e2e.browser.test_browser_accessibility import findings
from tests.support.clients import clients
from tests.support.serving_process import ServerProcess, wait_until
from tests.support.up_process import Up

pytestmark = [pytest.mark.browser, pytest.mark.long]

CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
MODEL = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        {first}
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor * {factor})]) for tensor in tensors]
"""


def model(factor: float, first: str = "pass") -> str:
    """x -> x * factor. first: a statement that runs before, with every batch."""
    return MODEL.format(factor=factor, first=first)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Another server, on which `shadowed` gives 2.5 x in place of 2 x."""
    folder = tmp_path_factory.mktemp("other") / "shadowed"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1" / "model.py").write_text(model(2.5))
    with ServerProcess(folder.parent) as server:
        yield server


@pytest.fixture(scope="module")
def up(other: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    listed = tmp_path_factory.mktemp("listed") / "remotes.json"
    listed.write_text(json.dumps({f"http://{other.http}": {}}))
    folder = tmp_path_factory.mktemp("rollouts") / "data"
    with Up(folder, SLIPWAY_ADMIN_PASSWORD=PASSWORD, SLIPWAY_TRAFFIC_REMOTES=str(listed)) as running:
        yield running.prepared().start()


@pytest.fixture(scope="module")
def visit(up: Up, chromium: Browser) -> Iterator[House]:
    with visited(up, chromium) as house:
        yield house


@pytest.fixture
def house(visit: House) -> Iterator[House]:
    """What a page must not do fails the test."""
    watch = Watch(visit.page, urlsplit(visit.up.dashboard_url).netloc)
    watch.allowed = ("400 (Bad Request)",)  # a form that is refused
    yield visit
    watch.check()


def publish(house: House, name: str, *contents: str) -> None:
    """Publish versions, of which the first is live."""
    for number, content in enumerate(contents, start=1):
        first = number == 1
        house.publish(name, content, CONFIG if first else None, path="model.py", make_live=first, load=first)
        listed = f"models/{name}/versions"
        wait_until(lambda: house.person.call("GET", listed)["count"] == number, what="it is published")  # noqa: B023
    wait_until(lambda: house.model(name)["live_versions"] == [1], what="version 1 is live")


def begin(page: Page, name: str, *, samples: int = 20) -> None:
    """Open the form from the row of version 2, of a canary that gives it a fifth of the requests at first."""
    page.goto(f"/models/{name}/versions")
    page.locator("#version-2").get_by_role("link", name="Roll out…").click()
    expect(page.get_by_label("Candidate", exact=True)).to_have_value("2")
    page.get_by_label("Share of requests, %").first.fill("20")
    page.get_by_text("When they are judged").click()
    page.get_by_label("Samples of each").fill(str(samples))
    page.get_by_label("Window, seconds").fill("30")


@contextmanager
def requests(house: House, name: str) -> Iterator[Counter[str]]:
    """Send requests until the block ends; counted by status and version."""
    answers: Counter[str] = Counter()

    def send(http: httpx.Client) -> None:
        body: Any = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
        answer = http.post(f"{house.up.http_url}/v2/models/{name}/infer", json=body)
        answers[f"{answer.status_code} {answer.json().get('model_version', '')}".strip()] += 1

    with clients(send, count=2, pause=lambda: 0.03):
        yield answers


def shows_the_rollback(house: House, name: str, why: re.Pattern[str]) -> None:
    """The page of releases, which was open meanwhile, says what happened; so does the overview, and version 1 answers all."""
    page = house.page
    rollout = page.locator("#rollout")
    expect(rollout.get_by_text("Rolled back", exact=True)).to_be_visible()
    expect(rollout.locator(".rollout-words")).to_contain_text(why)
    expect(rollout).to_contain_text("Version 1 answers everything.")
    expect(rollout.locator(".guardrails").get_by_text("Breached")).to_be_visible()
    expect(page.locator(".last-change")).to_contain_text("Rolled back to version 1")
    expect(page.locator(".last-change")).to_contain_text("It is undone already")
    wait_until(lambda: house.model(name)["live_versions"] == [1], what="version 2 has left")
    assert house.ask(name) == [1, 2, 3]
    page.goto("/")
    told = (
        page.get_by_role("listitem").filter(has_text=name).filter(has_text=re.compile("Rolled back"))
    )  # not the alert
    expect(told.first).to_contain_text(why)


def test_a_canary_whose_answers_fail_rolls_itself_back(house: House) -> None:
    page = house.page
    publish(house, "failing", model(1), model(1, 'raise RuntimeError("the planted error")'))
    begin(page, "failing")
    page.get_by_role("button", name="Start the canary").click()
    expect(page.locator("#rollout")).to_contain_text("20 % of requests go to version 2; step 1 of 4.")
    with requests(house, "failing") as answers:
        shows_the_rollback(house, "failing", re.compile(r"of \d+ requests failed"))
    assert answers["200 1"] > answers["500"] > 0


def test_a_canary_that_is_slow_rolls_itself_back(house: House) -> None:
    page = house.page
    publish(house, "slow", model(1, "time.sleep(0.01)"), model(1, "time.sleep(0.2)"))
    begin(page, "slow")
    page.get_by_role("button", name="Start the canary").click()
    expect(page.locator("#rollout")).to_contain_text("step 1 of 4.")
    with requests(house, "slow") as answers:
        shows_the_rollback(house, "slow", re.compile(r"p99 of \d+ requests was .* stable had", re.IGNORECASE))
    assert {status.split()[0] for status in answers} == {"200"}


def test_a_shadow_on_another_server_finds_the_planted_difference(house: House, other: ServerProcess) -> None:
    page = house.page
    publish(house, "shadowed", model(2))
    page.goto("/models/shadowed/releases/")
    page.get_by_role("link", name="Start a rollout").click()
    page.get_by_role("button", name=re.compile("^Shadow")).click()
    page.get_by_label("Candidate", exact=True).select_option("A model on another server")
    page.get_by_role("button", name="Start the shadow").click()
    expect(page.get_by_text("Write the address of the other server")).to_be_visible()
    page.get_by_label("Address").first.fill(f"http://{other.http}")
    page.get_by_label("Share of requests, %").and_(page.locator("#f-shadow_share")).fill("100")
    page.get_by_role("button", name="Start the shadow").click()
    shadow = page.locator(".rollout-shadow")
    with requests(house, "shadowed") as answers:
        expect(shadow).to_contain_text(re.compile(r"Beyond the tolerance\s*100 %"))
        expect(shadow).to_contain_text(re.compile(r"Largest difference\s*1.5"))
        expect(page.locator("#arms-charts .main-svg").first).to_be_visible()
        assert findings(page) == []
    assert set(answers) == {"200 1"}
    shadow.get_by_role("link", name="Answers that differ").click()
    row = page.get_by_role("row").filter(has_text="elements are beyond the tolerance").first
    row.get_by_role("link").click()
    largest = page.locator("tr.largest")
    expect(largest).to_contain_text(re.compile(r"\[0, 2\]\s*largest\s*6\s*7.5\s*1.5"))
    expect(page.get_by_text("1, 2, 3", exact=True)).to_be_visible()
    assert findings(page) == []
    page.get_by_role("link", name="All that differ").click()
    page.get_by_role("button", name="Forget them").click()
    page.locator("#confirm").get_by_role("button", name="Forget them").click()
    expect(page.get_by_text("The requests are forgotten")).to_be_visible()
    page.goto("/models/shadowed/releases/")
    page.get_by_role("button", name="Stop the shadow").click()
    page.locator("#confirm").get_by_role("button", name="Stop the shadow").click()
    expect(page.locator("#rollout").get_by_text("Done", exact=True)).to_be_visible()


def test_a_canary_is_promoted_at_its_end_and_the_old_version_leaves(house: House) -> None:
    page = house.page
    publish(house, "promoted", model(1), model(2))
    begin(page, "promoted", samples=1)
    for at, share in enumerate(("20", "60", "100", "")):
        page.get_by_label("Share of requests, %").nth(at).fill(share)
        page.get_by_label("For at least").nth(at).fill("1 s")
    for at in range(2):
        page.get_by_label("What is held").nth(at).select_option("Leave it out")
    assert findings(page) == []
    with requests(house, "promoted") as answers:
        page.get_by_role("button", name="Start the canary").click()
        expect(page.locator("#rollout").get_by_text("Promoted, old version held")).to_be_visible()
        wait_until(lambda: house.ask("promoted") == [2, 4, 6], what="version 2 answers")
    assert set(answers) == {"200 1", "200 2"}
    assert house.model("promoted")["live_versions"] == [1, 2]
    expect(page.locator("#rollout")).to_contain_text(
        re.compile(r"Version 1 stays loaded until .* its last request was at")
    )
    page.get_by_role("link", name="Plan and story").click()
    story = page.get_by_role("region", name="What was done")
    expect(story.get_by_role("listitem")).to_have_count(4)  # the start, two steps, the promotion
    page.get_by_role("button", name="Unload now").click()
    page.locator("#confirm").get_by_role("button", name="Unload now").click()
    expect(page.locator("#rollout").get_by_text("Done", exact=True)).to_be_visible()
    expect(story).to_contain_text("Unloaded version 1, which was held; its last request was at")
    wait_until(lambda: house.model("promoted")["live_versions"] == [2], what="version 1 is unloaded")
    assert house.ask("promoted") == [2, 4, 6]
