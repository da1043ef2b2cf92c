"""A whole Slipway on a data folder of its own, and a real Chromium that looks at it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Playwright,
    Request,
    expect,
    sync_playwright,
)

from tests.support.serving_process import PATIENCE_S
from tests.support.up_process import Up

if TYPE_CHECKING:
    from tests.e2e.browser.house import House

PASSWORD = "harbour-light-42"
# Chromium obeys the last list alone, so this one repeats Playwright's. The last row spares every window the pages of its
# address bar, which cost more than most pages of the tests.
WITHOUT = ",".join(
    (
        "AimEnabled,AvoidCorsURLLoaderRestartOnRedirect,AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose",
        "HttpsFirstBalancedModeAutoEnable,HttpsUpgrades,LensOverlay,MediaRouter,NetworkTimeServiceQuerying,OptimizationHints",
        "PaintHolding,PreconnectToSearch,TcpPortRandomizationWin,ThirdPartyStoragePartitioning",
        "PreloadTopChromeWebUI,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup,WebUIOmniboxPopup",
    )
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-sync",
    f"--disable-features={WITHOUT}",
]
TIMEOUT_MS = 1000 * PATIENCE_S


class Watch:
    """Collects the faults of a page: errors in the console, exceptions, requests to other hosts."""

    def __init__(self, page: Page, own_host: str) -> None:
        self.problems: list[str] = []
        self._own_host = own_host
        self.allowed: tuple[str, ...] = ()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"thrown: {error}"))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != self._own_host:
            self.problems.append(f"asked {request.url}")

    def check(self) -> None:
        left = [problem for problem in self.problems if not any(text in problem for text in self.allowed)]
        assert not left, left


@pytest.fixture(scope="package")
def slipway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """`manage.py up` with the example models."""
    with Up(tmp_path_factory.mktemp("slipway") / "data", SLIPWAY_ADMIN_PASSWORD=PASSWORD) as up:
        yield up.prepared().start()


# Of the folder, not of the session: while it runs, Playwright's event loop is in the way of asynchronous tests.
@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="package")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "the browser tests need Chromium: sudo apt-get install chromium"
    browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS, timeout=2 * TIMEOUT_MS)
    expect.set_options(timeout=TIMEOUT_MS)
    yield browser
    browser.close()


def new_context(browser: Browser, up: Up, **options: Any) -> BrowserContext:
    """For pages of this dashboard, without motion: Chromium draws a dot that breathes 60 times a second, and a colour that
    changes slowly has no contrast to speak of."""
    context = browser.new_context(base_url=up.dashboard_url, reduced_motion="reduce", **options)
    context.set_default_timeout(TIMEOUT_MS)
    return context


@pytest.fixture(scope="package")
def signed_in(slipway: Up, chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cookies of an administrator."""
    context = new_context(chromium, slipway)
    page = context.new_page()
    sign_in(page)
    path = tmp_path_factory.mktemp("cookies") / "state.json"
    context.storage_state(path=path)
    context.close()
    return path


@pytest.fixture
def context(slipway: Up, chromium: Browser, signed_in: Path) -> Iterator[BrowserContext]:
    context = new_context(
        chromium,
        slipway,
        storage_state=signed_in,
        viewport={"width": 1440, "height": 1000},
        permissions=["clipboard-read", "clipboard-write"],
    )
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, slipway: Up) -> Iterator[Page]:
    """A page of an administrator; a problem that `Watch` finds fails the test."""
    page = context.new_page()
    watch = Watch(page, urlsplit(slipway.dashboard_url).netloc)
    page.watch = watch  # type: ignore[attr-defined]
    yield page
    watch.check()


@pytest.fixture(scope="module")
def house(slipway: Up, chromium: Browser) -> Iterator["House"]:
    """The shared Slipway, and one page of an administrator for a whole file."""
    from tests.e2e.browser.house import visited  # it imports the pictures, which import this module

    with visited(slipway, chromium) as house:
        yield house


def sign_in(page: Page, name: str = "admin") -> None:
    page.goto("/sign-in")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/")


def text_before(element: Locator) -> str:
    """Return what the style sheet writes before an element: a text in quotes, "none", or "" for an element that has gone."""
    return str(element.evaluate("element => getComputedStyle(element, '::before').content"))
