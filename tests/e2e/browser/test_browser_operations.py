"""What somebody on call looks at: each version on the charts, what happened, what a model says, in a real browser."""

import csv
import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Page, Response, WebSocketRoute, expect

from tests.e2e.browser.conftest import text_before
from tests.support.serving_process import wait_until
from tests.support.up_process import Up

pytestmark = pytest.mark.browser
BODY = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}]}


def test_a_page_whose_dashboard_is_away_says_so_and_calls_nothing_ready(page: Page) -> None:
    away, sockets = [False], []

    def connected(socket: WebSocketRoute) -> None:
        if away[0]:
            socket.close()
        else:
            socket.connect_to_server()
            sockets.append(socket)

    page.route_web_socket(re.compile("/ws/changes/"), connected)
    page.goto("/models/digits/")
    state, note = page.locator("h1 + .state"), page.locator("#away")
    expect(state).to_have_text("Ready")
    expect(note).to_be_hidden()
    away[0] = True
    for socket in sockets:
        socket.close()
    expect(note).to_contain_text("The dashboard does not answer. This page shows the state of")
    expect(page.locator("body")).to_have_class("is-away")
    expect(state).to_have_css("outline-style", "dashed")
    wait_until(lambda: text_before(state) == '"was"')
    away[0] = False
    expect(note).to_be_hidden()
    expect(page.locator("body")).not_to_have_class("is-away")
    wait_until(lambda: text_before(state) == "none")


def test_a_page_whose_dashboard_hangs_says_so_though_its_connections_stay_open(page: Page, slipway: Up) -> None:
    page.goto("/models/digits/")
    note = page.locator("#away")
    expect(page.locator("#freshness")).to_have_text("up to date")
    expect(note).to_be_hidden()
    [dashboard] = slipway.running("-m", "daphne")
    os.kill(dashboard, signal.SIGSTOP)
    try:
        expect(note).to_contain_text("The dashboard does not answer.")
        expect(page.locator("body")).to_have_class("is-away")
    finally:
        os.kill(dashboard, signal.SIGCONT)
    expect(note).to_be_hidden()


def test_two_live_versions_are_two_lines_that_go_quiet_with_the_traffic(page: Page, slipway: Up) -> None:
    def infer(version: int) -> None:
        assert page.request.post(f"{slipway.http_url}/v2/models/digits/versions/{version}/infer", data=BODY).ok

    infer(1)
    infer(2)
    page.goto("/models/digits/")
    legend = page.locator('[data-chart="latency"] [data-legend]')
    expect(legend).to_contain_text("version 1 p99")
    expect(legend).to_contain_text("version 2 p99")
    expect(page.locator("#chart-versions")).to_have_value("each")
    expect(page.locator('[data-chart="throughput"] [data-legend]')).to_contain_text(
        re.compile(r"version 1 \S+version 2 \S+")
    )
    expect(legend).to_have_text(re.compile(r"(version \d p\d\d –){4}"))  # nobody sends any more
    page.locator("#chart-versions").select_option("Version 1")
    expect(page).to_have_url(re.compile("version=1"))
    expect(legend).to_have_text(re.compile("^p50"))
    page.go_back()
    expect(legend).to_contain_text("version 2 p99")


def test_activity_is_filtered_searched_and_exported(page: Page) -> None:
    page.goto("/activity/")
    page.locator("select[name=what]").select_option("What people did")
    expect(page).to_have_url(re.compile("what=people"))
    page.get_by_label("Search what happened").fill("published digits")
    page.get_by_label("Search what happened").press("Enter")
    expect(page).to_have_url(re.compile("q=published"))
    expect(page.locator(".entries > li").first).to_contain_text("digits")
    expect(page.locator(".entries")).not_to_contain_text("model_loaded")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    assert rows
    assert {row["kind"] for row in rows} == {"version.publish"}
    page.get_by_role("link", name="Clear").click()
    page.locator("input[name=from]").fill("2020-01-01")
    page.locator("input[name=to]").fill("2020-12-31")
    expect(page.get_by_text("Nothing matches these filters")).to_be_visible()


def is_post(answer: Response) -> bool:
    return answer.request.method == "POST"


def test_the_log_of_a_model_follows_what_is_said_of_it(page: Page) -> None:
    page.goto("/models/text_classifier/log")
    log = page.locator("#log")
    expect(log).to_contain_text("loaded 'text_classifier'")
    expect(log).not_to_contain_text("'digits'")
    page.get_by_role("button", name="Unload").click()
    with page.expect_response(is_post):
        page.locator("#confirm").get_by_role("button", name="Unload").click()
    page.goto("/models/text_classifier/log")
    expect(log).to_contain_text("unloading 'text_classifier'")
    with page.expect_response(is_post):
        page.get_by_role("button", name="Load", exact=True).click()
    page.goto("/models/text_classifier/log")
    loaded = page.locator("#log .log-line", has_text="loaded 'text_classifier'")
    expect(loaded).to_have_count(2)
    page.get_by_label("Only lines with").fill("nothing says this")
    expect(log).to_have_text("No line matches the choices above.")
    page.get_by_label("Only lines with").fill("")
    page.get_by_label("Show").select_option("Errors")
    expect(loaded).to_have_count(0)


def test_a_crash_appears_on_the_charts_by_itself_with_the_time_that_nothing_was_counted(
    page: Page, slipway: Up
) -> None:
    page.goto("/")
    serving = re.compile(r"\d+ of \d+ models serving")
    line = page.locator(".server-line")
    expect(line).to_contain_text(serving)
    [before] = serving.findall(line.inner_text())
    page.goto("/models/digits/")
    expect(page.locator('[data-chart="throughput"] .main-svg').first).to_be_visible()
    [server] = slipway.running("-m", "serving")
    os.kill(server, signal.SIGKILL)
    expect(page.locator("#markers")).to_contain_text("was killed by SIGKILL")
    expect(page.locator("#markers .bad").first).to_be_visible()
    expect(page.locator("#markers")).to_contain_text("is back")
    expect(page.locator('[data-chart="throughput"] .shapelayer path[style*="stroke-width: 0"]')).not_to_have_count(0)
    expect(page.get_by_text(re.compile("did not answer for .* of the last 15 min"))).to_be_visible()
    sign = page.locator('[data-chart="errors"] .annotation-text')
    expect(sign.first).to_have_text(re.compile("✕|down"))
    # As the other tests found it.
    wait_until(lambda: page.request.get(f"{slipway.http_url}/v2/models/digits/ready").ok)
    page.goto("/")
    expect(line).to_contain_text(before)


def test_the_doctor_tells_each_check_when_it_is_made_and_can_be_stopped(page: Page) -> None:
    page.goto("/servers/")
    page.get_by_role("link", name="Doctor", exact=True).click()
    page.get_by_role("button", name="Run the checks").click()
    expect(page.locator('[data-check="static"] [data-state="ready"]')).to_be_visible()
    expect(page.locator('[data-check="ports"]')).to_contain_text("Slipway runs on this data folder")
    expect(page.locator("#doctor")).to_have_text(re.compile("All is well|checks found a fault"))
    expect(page.locator("tr[data-check] .state")).to_have_count(page.locator("tr[data-check]").count())
    page.get_by_role("button", name="Run the checks").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#doctor")).to_have_text(re.compile("Stopped after"))
