"""A release goes to staging, is approved by a second person and promoted; a server is killed in the middle; it goes back."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser.conftest import PASSWORD, new_context, sign_in
from tests.e2e.browser.house import House
from tests.e2e.browser.test_browser_rollouts import CONFIG
from tests.support.serving_process import ServerProcess
from tests.support.up_process import Up

pytestmark = [pytest.mark.browser, pytest.mark.long]
KEY = "of-the-fleet"
FLAGS = (
    "--model-control-mode=explicit",
    f"--http-restricted-api=model-repository:slipway-control-key={KEY}",
)
MODEL = """import pathlib
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        gate = pathlib.Path({gate!r})
        with (gate / "loads").open("a") as loads:
            loads.write("{version}")
        while {version} == 2 and not (gate / "open").exists():
            time.sleep(0.01)

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", request.inputs()[0].as_numpy() * {version})])
            for request in requests
        ]
"""


@pytest.fixture
def fleet(slipway: Up) -> Iterator[dict[str, ServerProcess]]:
    """Three servers beside the bundled one, of the same repository."""
    with ExitStack() as stack:
        made = {
            name: ServerProcess(slipway.data / "models", *FLAGS, wait="live") for name in ("staging-1", "eu-1", "eu-2")
        }
        for server in made.values():
            stack.callback(server.close)
            server.start()
        yield made


@pytest.fixture
def house(slipway: Up, page: Page) -> Iterator[House]:
    made = House(slipway, page)
    yield made
    for name in ("eu", "staging"):
        made.person.call("DELETE", f"environments/{name}")
    made.person.http.close()


def test_a_release_is_promoted_and_goes_back_when_a_server_is_killed(
    house: House, chromium: Browser, fleet: dict[str, ServerProcess], tmp_path: Path
) -> None:
    page, gate = house.page, tmp_path / "open"
    gate.touch()
    for version in (1, 2):
        house.publish("sailed", MODEL.format(version=version, gate=str(tmp_path)), CONFIG, "model.py", load=False)
    house.person.call("POST", "accounts", json={"username": "mary", "password": PASSWORD, "permissions": ["operate"]})

    # Two environments with their servers, each wanting a release.
    for name, number in (("staging", 2), ("eu", 1)):
        page.goto("/environments/")
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("Control key", exact=True).fill(KEY)
        page.get_by_role("button", name="Add environment").click()
        for server, process in fleet.items():
            if server.startswith(name):
                page.locator("#add-name").fill(server)
                page.locator("#add-address").fill(f"http://{process.http}")
                page.locator("#add-grpc").fill(process.grpc)
                page.locator("#add-metrics").fill(f"http://{process.metrics}")
                page.get_by_role("button", name="Add server").click()
                expect(page.get_by_text(f"Server {server} is added.")).to_be_visible()
        page.get_by_label("Model", exact=True).fill("sailed")
        page.get_by_label("Release", exact=True).fill(str(number))
        page.get_by_role("button", name="Want it here").click()
        expect(page.get_by_text(f"{name} wants sailed.")).to_be_visible()
    expect(page.get_by_text("1 of 1 wanted")).to_have_count(2)
    page.get_by_role("link", name="Policy").click()
    page.get_by_label("A release serves first in").select_option("staging")
    page.get_by_label(re.compile("A second person has approved")).check()
    page.get_by_role("button", name="Save policy").click()

    # One click promotes, once it serves there and somebody else has approved it.
    page.watch.allowed = ("409 (Conflict)",)  # type: ignore[attr-defined]  # what is missing is listed
    page.goto("/environments/staging/")
    expect(page.get_by_text("1 of 1 wanted")).to_be_visible()
    page.get_by_role("button", name="Promote sailed to eu").click()
    asked = page.locator("section", has=page.get_by_role("heading", name="What eu asks"))
    expect(asked.locator("li", has_text="It serves on every server of staging.")).to_contain_text("met")
    expect(asked.locator("li", has_text="Somebody must approve it")).to_contain_text("missing")
    context = new_context(chromium, house.up)
    mary = context.new_page()
    sign_in(mary, "mary")
    mary.goto("/environments/eu/deployments/new?model=sailed&release=2")
    mary.get_by_label("Comment").fill("tried on staging")
    mary.get_by_role("button", name="Approve").click()
    expect(mary.locator("p", has_text="mary approved it")).to_contain_text("tried on staging")
    context.close()
    gate.unlink()
    loads = tmp_path / "loads"
    before = loads.read_text()
    page.goto("/environments/staging/")
    page.get_by_role("button", name="Promote sailed to eu").click()

    # While the first server loads it, the watcher is killed: the next one goes on, and no server loads it twice.
    first, second = (page.locator("tr", has=page.get_by_role("rowheader", name=name)) for name in ("eu-1", "eu-2"))
    expect(first).to_contain_text("Changing")
    house.kill("manage.py", "watch")
    fleet["eu-2"].kill()
    gate.touch()
    expect(first).to_contain_text("Changed")
    expect(first).to_contain_text("release 2")
    assert loads.read_text() == f"{before}2"
    # The server that was killed stops it, and one button goes back.
    expect(page.get_by_role("alert").first).to_contain_text("Server eu-2 does not answer.")
    expect(second).to_contain_text("Waiting")
    page.get_by_role("button", name="Go back to release 1").click()
    expect(first).to_contain_text("Gone back")
    expect(first).to_contain_text("release 1")
