"""An administrator sets a quota, a client reaches it, and the page shows both, in a real browser."""

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser.conftest import PASSWORD, Watch, new_context, sign_in
from tests.support.serving_process import wait_until
from tests.support.up_process import Up

pytestmark = pytest.mark.browser
BODY = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}]}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("usage") / "data"
    price = {"SLIPWAY_DEVICE_HOUR_PRICE": "2.50 EUR"}
    with Up(folder, SLIPWAY_ADMIN_PASSWORD=PASSWORD, SLIPWAY_REQUIRE_TOKENS="1", **price) as running:
        yield running.prepared(wanted=["digits"]).start()


@pytest.fixture
def page(up: Up, chromium: Browser) -> Iterator[Page]:
    context = new_context(chromium, up, viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    sign_in(page)
    watch = Watch(page, urlsplit(up.dashboard_url).netloc)
    watch.allowed = (
        "400 (Bad Request)",
        "status of 429",
    )  # a form that is refused, and a request over the quota
    yield page
    watch.check()
    context.close()


def test_a_quota_is_set_reached_and_shown(page: Page, up: Up) -> None:
    page.goto("/settings/")
    page.get_by_label("New token for").fill("shop")
    page.get_by_label("Infer").check()
    page.get_by_role("button", name="Make token").click()
    token = page.locator("#new-token").inner_text()
    url = f"{up.http_url}/v2/models/digits/infer"

    def ask() -> httpx.Response:
        return httpx.post(url, json=BODY, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=60)

    answered = []  # the server reads a new quota within two seconds, and may answer more than it until then

    def is_refused() -> httpx.Response | None:
        answer = ask()
        if answer.status_code == 429:
            return answer
        answered.extend([answer] if answer.status_code == 200 else [])
        return None

    wait_until(lambda: is_refused() or answered, what="the server knows the token")
    page.goto("/usage/")
    form = page.locator("form", has=page.locator("#quota-of"))
    form.get_by_label("Name, or first characters").fill("nobody")
    form.get_by_label("Requests a day").fill("10")
    form.get_by_role("button", name="Set quota").click()
    expect(page.locator("#quota-refused")).to_have_text("There is no person 'nobody'.")
    expect(form.get_by_label("Requests a day")).to_have_value("10")
    form.get_by_label("Name, or first characters").fill("admin")
    form.get_by_role("button", name="Set quota").click()
    expect(page.get_by_text("The quota of admin is set.")).to_be_visible()
    refused = wait_until(is_refused, what="the quota is reached")
    assert len(answered) >= 10
    assert 1 <= int(refused.headers["retry-after"]) <= 86_400
    assert "the quota of 'admin' is 10 requests a day" in refused.json()["error"]
    quotas = page.locator("section", has=page.get_by_role("heading", name="Quotas"))
    expect(quotas).to_contain_text(f"{len(answered)} of 10: used up")  # without a reload
    digits = page.locator("tr", has=page.get_by_role("rowheader", name="digits"))
    expect(digits.locator('[data-label="Requests"]')).to_have_text(str(len(answered)))
    expect(digits.locator('[data-label="Price"]')).to_contain_text("EUR")
    page.locator("select[name=by]").select_option("token")
    expect(page.get_by_role("rowheader", name="admin: shop")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV of").click()
    assert f"digits,admin: shop,admin,,{len(answered)},0," in download.value.path().read_text()
    page.goto("/models/digits/playground")  # its requests count for the person who sends them
    page.get_by_role("button", name="Send request").click()
    told = page.locator("#answer p", has_text="the quota of 'admin' is 10 requests a day, and is used up")
    expect(told).to_contain_text("on the next day (UTC), or ask an administrator for more")
    page.goto("/usage/")
    expect(page.get_by_text("Daily limits begin anew at midnight UTC")).to_be_visible()
    page.get_by_role("link", name="Change the quota of admin").click()
    expect(form.get_by_label("Requests a day")).to_have_value("10")
    form.get_by_label("Requests a day").fill("1000")
    form.get_by_role("button", name="Set quota").click()
    wait_until(lambda: ask().status_code == 200, what="the quota is raised")
    folder = os.environ.get("USAGE_PICTURES")
    for scheme in ("light", "dark") if folder else ():
        page.emulate_media(color_scheme=scheme)
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 1000})
            page.screenshot(path=f"{folder}/{scheme}-{width}.png", full_page=True)
