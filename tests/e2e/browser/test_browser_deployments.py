"""A release goes to staging, is approved by a second person, promoted, reaches one server after another, and goes back."""

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.conftest import CONFIG, relu_bytes
from tests.e2e.browser.conftest import PASSWORD, new_context, sign_in
from tests.e2e.browser.house import House
from tests.support.serving_process import ServerProcess
from tests.support.up_process import Up

pytestmark = [pytest.mark.browser, pytest.mark.long]
KEY = "of-the-fleet"
FLAGS = (
    "--model-control-mode=explicit",
    f"--http-restricted-api=model-repository:slipway-control-key={KEY}",
)


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


def test_a_release_is_promoted_and_goes_back_when_a_server_is_killed(
    page: Page, slipway: Up, chromium: Browser, fleet: dict[str, ServerProcess]
) -> None:
    house = House(slipway, page)
    house.publish("sailed", relu_bytes(), CONFIG)
    house.publish("sailed", relu_bytes())
    house.person.call("POST", "accounts", json={"username": "mary", "password": PASSWORD, "permissions": ["operate"]})
    # Two environments with their servers, each wanting a release.
    for name, number in (("staging", 2), ("eu", 1)):
        page.goto("/environments/")
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("Control key", exact=True).fill(KEY)
        page.get_by_role("button", name="Add environment").click()
        for server, process in fleet.items():
            if server.startswith(name):
                form = page.locator("form", has=page.locator("#add-name"))
                form.get_by_label("Name", exact=True).fill(server)
                form.get_by_label("HTTP address").fill(f"http://{process.http}")
                form.get_by_label("gRPC address").fill(process.grpc)
                form.get_by_label("Metrics address").fill(f"http://{process.metrics}")
                page.get_by_role("button", name="Add server").click()
                expect(page.get_by_text(f"Server {server} is added.")).to_be_visible()
        page.get_by_label("Model", exact=True).fill("sailed")
        page.get_by_label("Release", exact=True).fill(str(number))
        page.get_by_role("button", name="Want it here").click()
        wanted = page.get_by_text("1 of 1 wanted")
        expect(wanted).to_have_count(2 if name == "eu" else 1)
    page.get_by_role("link", name="Policy").click()
    page.get_by_label("A release serves first in").select_option("staging")
    page.get_by_label(re.compile("A second person has approved")).check()
    page.get_by_role("button", name="Save policy").click()

    # One click promotes, once somebody else has approved it.
    page.watch.allowed = ("409 (Conflict)",)  # type: ignore[attr-defined]  # what is missing is listed
    page.goto("/environments/staging/")
    page.get_by_role("button", name="Promote sailed to eu").click()
    asked = page.locator("section", has=page.get_by_role("heading", name="What eu asks"))
    expect(asked.locator("li", has_text="It serves on every server of staging.")).to_contain_text("met")
    expect(asked.locator("li", has_text="Somebody must approve it")).to_contain_text("missing")
    context = new_context(chromium, slipway)
    mary = context.new_page()
    sign_in(mary, "mary")
    mary.goto("/environments/eu/deployments/new?model=sailed&release=2")
    mary.get_by_label("Comment").fill("tried on staging")
    mary.get_by_role("button", name="Approve").click()
    expect(mary.get_by_text("mary approved it")).to_be_visible()
    context.close()
    page.goto("/environments/staging/")
    page.get_by_role("button", name="Promote sailed to eu").click()
    fleet["eu-2"].kill()

    # The first server changes; the killed one stops it, and one button goes back.
    first, second = (page.locator("tr", has=page.get_by_role("rowheader", name=name)) for name in ("eu-1", "eu-2"))
    expect(first).to_contain_text("Changed")
    expect(first).to_contain_text("release 2")
    expect(page.get_by_role("alert").first).to_contain_text("Server eu-2 does not answer.")
    expect(second).to_contain_text("Waiting")
    page.get_by_role("button", name="Go back to release 1").click()
    expect(first).to_contain_text("Gone back")
    expect(first).to_contain_text("release 1")
    for name in ("eu", "staging"):
        house.person.call("DELETE", f"environments/{name}")
