"""The files of an upload come from an allowed folder and from a URL, in the browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.conftest import relu_bytes
from tests.dashboard.uploads.file_server import FileServer, WebFile, file_server
from tests.e2e.browser.conftest import PASSWORD, new_context, sign_in
from tests.support.up_process import Up

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture(scope="module")
def web() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("allowed")
    (folder / "relu.onnx").write_bytes(relu_bytes())
    return folder


@pytest.fixture
def view(tmp_path_factory: pytest.TempPathFactory, allowed: Path, web: FileServer, chromium: Browser) -> Iterator[Page]:
    """The page of an administrator of a dashboard that may read a folder and a web server."""
    settings = {"SLIPWAY_SOURCE_FOLDERS": str(allowed), "SLIPWAY_SOURCE_URLS": f"{web.url}/models"}
    with Up(tmp_path_factory.mktemp("up") / "data", SLIPWAY_ADMIN_PASSWORD=PASSWORD, **settings) as up:
        up.prepared(wanted=()).start()
        context = new_context(chromium, up)
        page = context.new_page()
        sign_in(page)
        yield page
        context.close()


def test_a_folder_and_a_url_become_versions(view: Page, allowed: Path, web: FileServer) -> None:
    # A folder: what is not allowed is told at its field, and what was typed stays.
    view.goto("/models/new")
    view.get_by_role("link", name="a folder").click()
    field = view.get_by_label("File or folder")
    expect(field).to_have_attribute("placeholder", f"{allowed}/model.onnx")
    field.fill("/etc/hosts")
    view.get_by_role("button", name="Fetch").click()
    expect(view.locator("#source-address-error")).to_contain_text("This folder may not be read")
    expect(field).to_have_value("/etc/hosts")
    field.fill(str(allowed / "relu.onnx"))
    view.get_by_role("button", name="Fetch").click()
    expect(view.get_by_role("heading", name="What it is")).to_be_visible()
    expect(view.get_by_role("heading", level=1)).to_have_text("relu")
    view.get_by_role("button", name="Publish").click()
    expect(view.get_by_role("heading", name="Version 1 is published")).to_be_visible()

    # A URL: the next version, paused and continued.
    content = relu_bytes()
    file = web.files["/models/next.onnx"] = WebFile(content, holds_at=len(content) // 2)
    file.released.set()
    view.goto("/models/new?model=relu")
    view.get_by_role("link", name="a URL").click()
    view.get_by_label("URL").fill(f"{web.url}/models/none.onnx")
    view.get_by_role("button", name="Fetch").click()
    expect(view.locator("#source-address-error")).to_contain_text("has nothing at this address")
    view.get_by_label("URL").fill(f"{web.url}/models/next.onnx")
    file.released.clear()
    view.get_by_role("button", name="Fetch").click()
    expect(view.get_by_role("heading", name="Fetching")).to_be_visible()
    expect(view.locator("#fetching")).to_contain_text("Fetching next.onnx")
    view.get_by_role("button", name="Pause").click()
    expect(view.get_by_role("button", name="Stopping")).to_be_disabled()
    file.released.set()
    expect(view.locator("#fetching")).to_contain_text("Fetching was paused. What has arrived is kept.")
    view.get_by_role("button", name="Continue").click()
    expect(view.get_by_role("heading", name="What it is")).to_be_visible()
    expect(view.get_by_role("heading", name="Publish version 2")).to_be_visible()
