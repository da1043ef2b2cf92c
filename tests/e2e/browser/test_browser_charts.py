"""Charts: live within seconds, ranges in the address, one crosshair, old data that says so."""

import itertools
import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import APIResponse, Page, Route, WebSocketRoute, expect

from tests.support.serving_process import ServerProcess, wait_until
from tests.support.up_process import Up

pytestmark = pytest.mark.browser
BODY = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}]}


def infer(page: Page, slipway: Up, times: int = 5) -> None:
    for _ in range(times):
        assert page.request.post(f"{slipway.http_url}/v2/models/digits/infer", data=BODY).ok


@pytest.fixture
def charts(page: Page, slipway: Up) -> Page:
    infer(page, slipway)
    page.goto("/models/digits/")
    expect(page.locator('[data-chart="latency"] .main-svg').first).to_be_visible()
    return page


def test_every_chart_is_drawn_or_says_why_it_is_empty(charts: Page) -> None:
    for name in ("latency", "throughput", "errors", "phases", "batches", "pending", "memory"):
        figure = charts.locator(f'[data-chart="{name}"]')
        figure.scroll_into_view_if_needed()
        expect(figure.locator(".main-svg, .blank").first).to_be_visible()
    expect(charts.locator('[data-chart="gpu"]')).to_have_count(0)
    charts.goto("/models/digits_torch/")  # to which no test sends what is wrong
    expect(charts.locator('[data-chart="errors"]')).to_contain_text("No failures in this range")


def test_a_range_is_in_the_address_and_comes_back_with_the_back_button(charts: Page) -> None:
    charts.get_by_role("link", name="1h", exact=True).click()
    expect(charts).to_have_url(re.compile("range=1h"))
    charts.get_by_role("link", name="7d", exact=True).click()
    expect(charts).to_have_url(re.compile("range=7d"))
    charts.go_back()
    expect(charts.locator('[data-range="1h"]')).to_have_attribute("aria-current", "true")
    charts.reload()
    expect(charts.locator('[data-range="1h"]')).to_have_attribute("aria-current", "true")


def test_dragging_zooms_and_a_button_zooms_out(charts: Page) -> None:
    plot = charts.locator('[data-chart="throughput"] .nsewdrag').first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    charts.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 30)
    charts.mouse.down()
    charts.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 30, steps=8)
    charts.mouse.up()
    expect(charts).to_have_url(re.compile(r"from=\d+&to=\d+"))
    charts.get_by_role("button", name="Zoom out").click()
    expect(charts).not_to_have_url(re.compile("from="))


def test_one_crosshair_crosses_all_charts(charts: Page) -> None:
    plot = charts.locator('[data-chart="latency"] .nsewdrag').first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    lines = [charts.locator(f'[data-chart="{name}"] .crosshair') for name in ("latency", "throughput")]
    moves = itertools.cycle((0, 1))

    def crossed() -> bool:
        """Whether both show it; a chart that is drawn anew meanwhile has to see the mouse move again."""
        charts.mouse.move(box["x"] + box["width"] / 2 + next(moves), box["y"] + box["height"] / 2)
        return all(line.is_visible() for line in lines)

    wait_until(crossed, what="the crosshair on both charts")
    expect(charts.locator('[data-chart="throughput"] [data-legend]')).to_contain_text(re.compile(r"\d\d:\d\d:\d\d"))


def test_a_deployment_is_marked_and_linked(charts: Page) -> None:
    charts.goto("/models/digits/?range=24h")
    charts.locator("#markers").get_by_role("link", name="of digits serves").first.click()
    expect(charts).to_have_url(re.compile(r"/models/digits/releases/\d+/"))
    expect(charts.get_by_role("main")).to_contain_text("Release")


def test_history_that_fails_can_be_tried_again(page: Page) -> None:
    page.watch.allowed = ("500",)  # type: ignore[attr-defined]

    def fail(route: Route) -> None:
        route.fulfill(status=500, json={"error": "the history cannot be read"})

    page.route("**/metrics?*", fail)
    page.goto("/models/digits/")
    figure = page.locator('[data-chart="latency"]')
    expect(figure).to_contain_text("the history cannot be read")
    page.unroute("**/metrics?*")
    figure.get_by_role("button", name="Try again").click()
    expect(figure.locator(".main-svg").first).to_be_visible()


def test_without_the_feed_the_numbers_say_how_old_they_are(page: Page) -> None:
    """The socket is cut between browser and dashboard, and mended again."""
    cut = {"on": False}
    sockets: list[WebSocketRoute] = []

    def pass_on(socket: WebSocketRoute) -> None:
        if cut["on"]:
            socket.close()
            return
        sockets.append(socket)
        socket.connect_to_server()

    page.route_web_socket(re.compile("/ws/live/"), pass_on)
    page.goto("/models/digits/")
    expect(page.locator("#freshness")).to_have_text("up to date")
    cut["on"] = True
    for socket in sockets:
        socket.close()
    expect(page.locator("#freshness")).to_have_text(re.compile(r"last update \d+ s ago, reconnecting"))
    expect(page.locator("#main")).to_have_class(re.compile("is-stale"))
    cut["on"] = False
    expect(page.locator("#freshness")).to_have_text("up to date")


def test_batch_sizes_that_have_left_the_range_are_not_shown_any_more(page: Page, slipway: Up) -> None:
    """The points are the test's own, and the browser's clock runs ahead: nobody waits for a quarter of an hour."""
    sockets: list[WebSocketRoute] = []
    page.route_web_socket(re.compile("/ws/live/"), lambda socket: sockets.append(socket))
    page.clock.install()
    page.goto("/models/digits_torch/")
    chart = page.locator('[data-chart="batches"]')
    chart.scroll_into_view_if_needed()
    while not sockets:
        page.wait_for_timeout(20)
    idle = {"rps": 1, "pending": 0, "in_flight": 0, "errors": 0, "cancelled": 0}

    def show(size: int) -> None:
        at = page.evaluate("Date.now() / 1000")
        figures = {**idle, "batch": {str(size): 3}}
        point = {
            "type": "point",
            "server": "local",
            "at": at,
            "models": {"digits_torch": figures},
            "process": {"gpus": []},
        }
        sockets[-1].send(json.dumps({**point, "versions": {}, "states": {}, "memory": {}}))
        page.clock.run_for(3000)

    show(61)
    expect(chart.locator(".xtick").get_by_text("61", exact=True)).to_be_visible()
    page.clock.fast_forward("20:00")
    show(62)
    expect(chart.locator(".xtick").get_by_text("62", exact=True)).to_be_visible()
    expect(chart.locator(".xtick").get_by_text("61", exact=True)).to_have_count(0)


@pytest.fixture
def staging(page: Page, slipway: Up) -> Iterator[ServerProcess]:
    """An environment whose only server serves `digits` beside production, and is only observed."""
    flags = ("--model-control-mode=explicit", "--load-model=digits")
    with ServerProcess(slipway.data / "models", *flags) as server:
        page.goto("/environments/")
        token = page.locator("body").get_attribute("data-csrf") or ""

        def call(method: str, path: str, **body: object) -> APIResponse:
            headers = {"X-CSRFToken": token, "Referer": slipway.dashboard_url}
            return page.request.fetch(f"/api/v1/environments{path}", method=method, headers=headers, data=body or None)

        assert call("POST", "", name="staging", driven=False, everything=False).ok
        given = {"address": server.http_url, "grpc": server.grpc, "metrics": f"http://{server.metrics}"}
        added = call("POST", "/staging/servers", name="staging-1", unchecked=True, **given)
        assert added.ok, added.text()
        yield server
        assert call("DELETE", "/staging").ok


def test_charts_and_playground_choose_a_server_of_another_environment(page: Page, staging: ServerProcess) -> None:
    def requests() -> int:
        _, answer = staging.get("/v2/models/digits/stats")
        return sum(int(one["inference_stats"]["success"]["count"]) for one in answer["model_stats"])

    page.goto("/models/digits_torch/")
    page.get_by_label("Servers").select_option(label="all of staging together")
    expect(page).to_have_url(re.compile("environment=staging"))
    throughput = page.locator('[data-chart="throughput"]')
    page.goto("/models/digits/?environment=staging")
    expect(throughput).to_contain_text("No requests in this range")
    page.goto("/models/digits/playground")
    page.locator("#play-server").select_option("staging-1, staging")
    page.get_by_role("button", name="JSON").click()
    page.get_by_label("image as JSON").fill(json.dumps([[[[0.5] * 8] * 8]]))
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-output="probabilities"]')).to_be_visible()
    wait_until(lambda: requests() == 1, what="the chosen server counts the request")
    page.goto("/models/digits/?server=staging-1")
    expect(page.get_by_label("Servers")).to_have_value("server=staging-1")
    expect(throughput.locator(".main-svg").first).to_be_visible()
