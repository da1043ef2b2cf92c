"""With very many rows, a page takes as many queries as with a few, and no more bytes than load quickly."""

import gzip
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.templatetags.static import static
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.catalog.selectors import models_standing, summaries_of
from dashboard.metrics.recent import busiest
from dashboard.metrics.samples import Sample, encode
from dashboard.models import MetricSample, Model, ModelState, Rollout, Server
from dashboard.overview.search_pages import PAGES as RAIL_PAGES
from tests.dashboard.conftest import text_of
from tests.dashboard.feeds import PROCESS, usage
from tests.dashboard.many_rows import (
    add_history,
    add_models,
    add_people,
    add_rollout_history,
    add_rollouts,
    add_samples,
    deepen,
)
from tests.support.model_pages import model_name, model_pages

MANY = 150
_ONE = "/models/model_000"
PAGES = (
    "/",
    "/models/",
    "/models/?sort=-rps",
    "/models/?q=model_00&tag=0",
    "/models/new",
    *model_pages(model_name(0)),
    f"{_ONE}/rollouts/",
    f"{_ONE}/rollouts/new",
    f"{_ONE}/rollouts/UNDER_WAY/",
    f"{_ONE}/rollouts/UNDER_WAY/chart",
    f"{_ONE}/rollouts/UNDER_WAY/unlike",
    "/jobs/",
    "/servers/",
    "/servers/local/",
    "/activity/",
    "/activity/?who=olga&model=model_000",
    "/settings/",
    "/places",
)
PARTS = (
    "/health",
    "/?part=now",
    "/?part=busy",
    "/?part=changes",
    "/models/",
    f"{_ONE}/head",
    f"{_ONE}/?part=now",
    f"{_ONE}/versions",
    f"{_ONE}/releases/",
    f"{_ONE}/compare?a=v1&b=r6",
    f"{_ONE}/rollouts/UNDER_WAY/",
    "/jobs/",
)
MOST_BYTES = 200_000  # of a page with all that it loads before plotly.js


@pytest.fixture
def viewer(server: Server, as_person: Callable[..., Client]) -> Client:
    add_models(server, range(3), versions=3, releases=6)
    add_rollouts(server, range(3), each=2)
    add_people(range(4))
    add_history(server, range(3), each=12)
    add_samples(server, [model_name(number) for number in range(3)], time.time())
    return as_person(is_superuser=True)


@pytest.fixture
def much(server: Server, viewer: Client) -> None:
    """Fifty times as many models and people; of the first model ever more releases, versions, entries."""
    add_models(server, range(3, MANY))
    add_people(range(4, 54))
    add_history(server, range(MANY), each=4)
    add_samples(server, [model_name(number) for number in range(3, 20)], time.time())
    first = Model.objects.get(name=model_name(0))
    deepen(server, first, versions=40, releases=200)
    add_rollouts(server, range(3, 30), each=1)
    first.rollouts.all().delete()
    add_rollouts(server, range(1), each=100)
    add_rollout_history(server, first, readings=300)


def queries(client: Client, page: str, headers: dict[str, str]) -> int:
    path = page.replace("UNDER_WAY", Rollout.objects.get(model__name=model_name(0), state="running").name)
    client.get(path, headers=headers)  # what is read once in a process
    with CaptureQueriesContext(connection) as captured:
        assert client.get(path, headers=headers).status_code == 200, path
    return len(captured)


def all_queries(client: Client) -> dict[str, int]:
    pages = {path: queries(client, path, {}) for path in PAGES}
    return pages | {f"part {path}": queries(client, path, {"HX-Request": "true"}) for path in PARTS}


def test_no_page_takes_more_queries_for_more_rows(viewer: Client, request: pytest.FixtureRequest) -> None:
    few = all_queries(viewer)
    request.getfixturevalue("much")
    # One or two more, for rows of a kind that the few did not have: never one for each row.
    assert {path: count for path, count in all_queries(viewer).items() if count > few[path] + 2} == {}
    assert max(few.values()) <= 49


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the plan is SQLite's")
@pytest.mark.usefixtures("much")
def test_no_page_of_one_model_reads_what_every_model_served(viewer: Client) -> None:
    with CaptureQueriesContext(connection) as captured:
        for path in model_pages(model_name(0)):
            assert viewer.get(path).status_code == 200, path
    plans = [plan(one["sql"]) for one in captured.captured_queries if "dashboard_releasespan" in one["sql"]]
    assert len(plans) > 20
    assert [one for one in plans if not re.search(r"INDEX release_span_\w+ \((model|release)_id=\?", one)] == []


def plan(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql.replace('%', '%%')}")
        return "\n".join(row[3] for row in cursor.fetchall())


@pytest.mark.usefixtures("much")
def test_no_page_grows_beyond_what_loads_quickly(viewer: Client) -> None:
    folder = settings.BASE_DIR / "static"
    ours = sum(len(gzip.compress(path.read_bytes())) for path in folder.rglob("*") if path.is_file())
    htmx = len(viewer.get(static("django_htmx/htmx-2.min.js"), headers={"Accept-Encoding": "gzip"}).content)
    for path in PAGES:
        page = len(viewer.get(path.replace("UNDER_WAY", "r-0-100"), headers={"Accept-Encoding": "gzip"}).content)
        assert ours + htmx + page < MOST_BYTES, path


def test_the_list_comes_in_pages_and_filters_all_of_them(viewer: Client, server: Server) -> None:
    add_models(server, range(3, MANY))
    first = text_of(viewer, "/models/")
    assert first.count('data-model="') == 100
    assert "Page 1 of 2" in first
    assert f"{MANY} models" in first
    assert 'data-model="model_149"' in text_of(viewer, "/models/?page=2")
    assert text_of(viewer, "/models/?q=model_149").count('data-model="') == 1


def test_no_page_carries_the_names_of_all_models(viewer: Client, server: Server) -> None:
    add_models(server, range(3, MANY))
    assert "model_149" not in text_of(viewer, "/settings/")
    assert text_of(viewer, "/places").count("<li ") == MANY + len(RAIL_PAGES)


def test_a_servers_page_shows_first_what_is_not_ready(viewer: Client, server: Server) -> None:
    add_models(server, range(3, MANY))
    ModelState.objects.filter(model_name="model_149").update(state="UNAVAILABLE", reason="no such operator")
    page = text_of(viewer, "/servers/local/")
    assert page.count("data-held=") == 100
    assert page.index("model_149") < page.index("model_000")
    assert f"{MANY - 100} more" in page


def test_the_frame_says_of_each_model_what_the_list_says(viewer: Client, server: Server) -> None:
    Model.objects.filter(name="model_001").update(desired_state="unloaded")
    ModelState.objects.filter(model_name="model_002").update(state="UNAVAILABLE", reason="no such operator")
    states = [row.state for row in summaries_of(models_standing())]
    assert [model.state for model in models_standing()] == states == ["ready", "unloading", "failed"]


def test_the_busiest_models_are_those_with_most_requests_now(server: Server) -> None:
    now = int(time.time())
    rows: list[tuple[str, int, int, int]] = [("slow", 1, now - 1, 2), ("quick", 1, now - 1, 20)]
    rows += [(name, 10, now // 10 * 10 - 100, 50) for name in ("slow", "quick", "earlier", "")]
    MetricSample.objects.bulk_create([sample(server, *row) for row in rows])
    assert [name for name, _ in busiest(8, now)] == ["quick", "slow", "earlier"]
    assert [name for name, _ in busiest(1, now)] == ["quick"]
    assert sum(busiest(8, now)[2][1].spark) > 0


def sample(server: Server, name: str, resolution: int, at: int, requests: int) -> Any:
    data = encode(Sample(usage(requests, 1000).pack(), None if name else PROCESS))
    return MetricSample(server=server, model_name=name, version=1, resolution=resolution, at=at, data=data)
