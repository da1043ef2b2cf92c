"""With very many models every page stays small: as many queries as with a few, and no more rows than a person reads."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.catalog.selectors import models_overview, models_standing
from dashboard.metrics.recent import busiest
from dashboard.metrics.samples import Sample, encode
from dashboard.models import MetricSample, Model, ModelState, ModelSync, Release, Server, Version
from tests.dashboard.conftest import text_of
from tests.dashboard.feeds import PROCESS, usage

MANY = 150
PAGES = (
    "/",
    "/models/",
    "/models/?sort=-rps",
    "/models/model_000/",
    "/models/model_000/versions",
    "/models/model_000/playground",
    "/jobs/",
    "/servers/",
    "/servers/local/",
    "/activity/",
    "/settings/",
    "/health",
)


def add(server: Server, numbers: range) -> None:
    names = [f"model_{number:03}" for number in numbers]
    models = Model.objects.bulk_create([Model(name=name, desired_state="loaded", generation=1) for name in names])
    Version.objects.bulk_create([Version(model=model, number=1, format="onnx") for model in models])
    Release.objects.bulk_create(
        [Release(model=model, number=1, versions=[1], created_by_name="olga") for model in models]
    )
    ModelSync.objects.bulk_create([ModelSync(server=server, model=model, applied_generation=1) for model in models])
    ModelState.objects.bulk_create(
        [ModelState(server=server, model_name=name, version=1, state="READY") for name in names]
    )


@pytest.fixture
def viewer(server: Server, as_person: Callable[..., Client]) -> Client:
    add(server, range(3))
    return as_person(is_superuser=True)


def queries(client: Client, path: str) -> int:
    client.get(path)  # what is read once in a process
    with CaptureQueriesContext(connection) as captured:
        assert client.get(path).status_code == 200
    return len(captured)


def test_every_page_takes_as_many_queries_for_a_few_models_as_for_many(viewer: Client, server: Server) -> None:
    few = {path: queries(viewer, path) for path in PAGES}
    add(server, range(3, MANY))
    assert {path: queries(viewer, path) for path in PAGES} == few
    assert max(few.values()) < 34


def test_the_list_comes_in_pages_and_filters_all_of_them(viewer: Client, server: Server) -> None:
    add(server, range(3, MANY))
    first = text_of(viewer, "/models/")
    assert first.count('data-model="') == 100
    assert "Page 1 of 2" in first
    assert f"{MANY} models" in first
    assert 'data-model="model_149"' in text_of(viewer, "/models/?page=2")
    assert text_of(viewer, "/models/?q=model_149").count('data-model="') == 1


def test_no_page_carries_the_names_of_all_models(viewer: Client, server: Server) -> None:
    add(server, range(3, MANY))
    assert "model_149" not in text_of(viewer, "/settings/")
    assert text_of(viewer, "/places").count("<li>") == MANY + 6


def test_a_servers_page_shows_first_what_is_not_ready(viewer: Client, server: Server) -> None:
    add(server, range(3, MANY))
    ModelState.objects.filter(model_name="model_149").update(state="UNAVAILABLE", reason="no such operator")
    page = text_of(viewer, "/servers/local/")
    assert page.count("data-held=") == 100
    assert page.index("model_149") < page.index("model_000")
    assert f"{MANY - 100} more" in page


def test_the_frame_says_of_each_model_what_the_list_says(viewer: Client, server: Server) -> None:
    Model.objects.filter(name="model_001").update(desired_state="unloaded")
    ModelState.objects.filter(model_name="model_002").update(state="UNAVAILABLE", reason="no such operator")
    states = [row.state for row in models_overview()]
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
