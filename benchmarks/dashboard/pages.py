"""Measures every page: milliseconds as a browser sees them, CPU time of the web process, and database queries."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import httpx

from benchmarks.dashboard.filled import ROLLOUTS, Filled
from benchmarks.machine import own_cpu_seconds
from tests.support.model_pages import model_name, model_pages

TIMES = 15
ROLLOUT = f"r-0-{ROLLOUTS}"  # the rollout that is under way
_ONE = f"/models/{model_name(0)}"
PAGES = (
    "/",
    "/models/",
    "/models/?sort=-rps",
    "/models/?q=model_01",
    "/models/?sort=-rps&page=5",
    *model_pages(model_name(0)),
    *(f"{_ONE}/rollouts/{path}" for path in ("", "new", *(f"{ROLLOUT}/{part}" for part in ("", "chart", "unlike")))),
    "/rollouts/",
    "/models/new",
    "/jobs/",
    "/servers/",
    "/servers/local/",
    "/activity/",
    "/activity/?page=90",
    f"/activity/?model={model_name(0)}",
    "/settings/",
    "/places",
    *(f"/api/v1{_ONE}{path}" for path in ("", "/releases", "/versions", "/rollouts")),
    *(f"/api/v1{_ONE}/rollouts/{ROLLOUT}{path}" for path in ("", "/figures", "/mismatches")),
)
# The parts of a page that an open page requests again after a change.
OPEN_OVERVIEW = ("/?part=now", "/?part=busy", "/?part=changes", "/health")
OPEN_LIST = ("/models/", "/health")
OPEN_ROLLOUT = (f"{_ONE}/releases/", f"{_ONE}/rollouts/{ROLLOUT}/")
OPEN_MODEL = (f"{_ONE}/head?tab=overview", f"{_ONE}/?part=now", f"{_ONE}/?part=rows", "/health")
FED = ("/?part=now", f"{_ONE}/?part=now")  # the parts whose figures come from the live feed
HTMX = {"HX-Request": "true"}


class Page(NamedTuple):
    """ms: the median time from request to last byte. cpu_ms: the mean CPU time of the web process. bytes: of the compressed
    body."""

    name: str
    ms: float
    cpu_ms: float
    queries: int
    bytes: int


def measure_pages(filled: Filled) -> list[Page]:
    """Return the figures of each page, each request for a chart's data, and each part that an open page polls."""
    count = _query_counter()
    pid = filled.web_process()
    found = []
    with httpx.Client(base_url=filled.url, cookies=filled.cookies, timeout=60.0) as client:
        for name, path, headers in _requests():
            filled.keep_current()
            client.get(path, headers=headers).raise_for_status()
            times, before = [], own_cpu_seconds(pid)
            for _ in range(TIMES):
                began = time.perf_counter()
                answer = client.get(path, headers=headers)
                times.append(time.perf_counter() - began)
            cpu = (own_cpu_seconds(pid) - before) / TIMES
            queries = count(path, headers)
            found.append(Page(name, statistics.median(times) * 1e3, cpu * 1e3, queries, answer.num_bytes_downloaded))
    return found


def _requests() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield name, path and headers of each request."""
    for path in PAGES:
        yield path, path, {}
    end = time.time()
    for model in ("", model_name(0)):
        for name, span in (("15 min", 900), ("a day", 86_400)):
            yield f"/metrics?model={model}, {name}", f"/metrics?model={model}&start={end - span}&end={end}", {}
    for path in dict.fromkeys(OPEN_OVERVIEW + OPEN_LIST + OPEN_MODEL + OPEN_ROLLOUT):
        yield f"{path}, the part", path, HTMX


def _query_counter() -> Callable[[str, dict[str, str]], int]:
    """Return a function (path, headers) -> number of queries. For that, Django runs in this process, on the same database."""
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client(headers={"host": "127.0.0.1"})
    client.force_login(get_user_model().objects.get(username="admin"))

    def count(path: str, headers: dict[str, str]) -> int:
        client.get(path, headers=headers)
        with CaptureQueriesContext(connection) as captured:
            assert client.get(path, headers=headers).status_code == 200, path
        return len(captured)

    return count
