"""Open pages follow what others do, and are quiet while nothing happens."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.e2e.browser.conftest import PASSWORD
from tests.support.up_process import Up

pytestmark = pytest.mark.browser
MODEL = "digits_torch"


@pytest.fixture(scope="module")
def describe(slipway: Up) -> Iterator[Callable[[str], None]]:
    """describe("a word"): somebody else gives the model a tag."""
    with httpx.Client(base_url=slipway.dashboard_url, timeout=60, follow_redirects=True) as http:
        token = http.get("/sign-in").text.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        http.post("/sign-in", data={"username": "admin", "password": PASSWORD, "csrfmiddlewaretoken": token})

        def give(tag: str) -> None:
            form = {"tags": tag, "csrfmiddlewaretoken": http.cookies["slipway_csrf"]}
            http.post(f"/models/{MODEL}/describe", data=form).raise_for_status()

        yield give
        give("")


def asked(page: Page) -> list[str]:
    """The parts that the page asks for from now on."""
    found: list[str] = []

    def note(request: Any) -> None:
        if request.headers.get("hx-request"):
            found.append(request.url)

    page.on("request", note)
    return found


def test_what_somebody_else_does_appears_by_itself(page: Page, describe: Callable[[str], None]) -> None:
    page.goto(f"/models/{MODEL}/activity")
    for tag in ("first", "second"):
        describe(tag)
        expect(page.locator("#model-head .tag")).to_have_text(tag)
    expect(page.get_by_text(f"Described {MODEL}").nth(1)).to_be_visible()


def test_parts_that_show_nothing_of_it_are_not_asked(page: Page, describe: Callable[[str], None]) -> None:
    """From the moment at which the page knows what each part is made from: after the answers to the first changes."""
    page.goto("/servers/")
    parts = asked(page)
    rounds: list[set[str]] = []
    while rounds[-2:] != [{"health"}] * 2 and len(rounds) < 10:
        with page.expect_response(lambda answer: answer.url.endswith("/health")):
            describe(f"tag{len(rounds)}")
        rounds.append({url.rpartition("/")[2] for url in parts})
        del parts[:]
    assert rounds[-2:] == [{"health"}] * 2


def test_what_happened_while_the_connection_was_away_is_not_missed(page: Page, describe: Callable[[str], None]) -> None:
    cut = {"on": False}
    sockets: list[WebSocketRoute] = []

    def pass_on(socket: WebSocketRoute) -> None:
        if cut["on"]:
            socket.close()
            return
        sockets.append(socket)
        socket.connect_to_server()

    page.watch.allowed = ("WebSocket is closed before the connection",)  # type: ignore[attr-defined]
    page.route_web_socket("**/ws/changes/", pass_on)
    describe("before")
    page.goto(f"/models/{MODEL}/versions")
    expect(page.locator("#model-head .tag")).to_have_text("before")
    cut["on"] = True
    for socket in sockets:
        socket.close()
    describe("meanwhile")
    cut["on"] = False
    expect(page.locator("#model-head .tag")).to_have_text("meanwhile")


def test_a_page_of_somebody_who_was_signed_out_goes_to_the_sign_in(page: Page, describe: Callable[[str], None]) -> None:
    page.goto("/activity/")
    page.context.clear_cookies()
    describe("gone")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
