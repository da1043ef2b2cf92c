"""What pages read of rollouts takes as many queries with very many of them as with a few."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from dashboard.models import Model, Rollout, Server
from dashboard.rollouts import selectors
from dashboard.rollouts.advance import rollouts_open
from tests.dashboard.conftest import text_of
from tests.dashboard.many_rows import add_models, add_rollout_history, add_rollouts

pytestmark = pytest.mark.django_db


def queries(model: Model, api: APIClient, pages: Client) -> dict[str, int]:
    rollout = selectors.rollout_now(model)
    assert rollout is not None
    address = f"/api/v1/models/{model.name}/rollouts"
    readings: dict[str, Callable[[], Any]] = {
        "now": lambda: selectors.rollout_now(model),
        "list": lambda: [one.stable_words for one in selectors.rollouts(model)[:20]],
        "of note": lambda: [(one.model.name, one.in_words) for one in selectors.rollouts_of_note()],
        "open": lambda: [(one.model.name, one.step_release) for one in rollouts_open()],
        "standing": lambda: selectors.standing(rollout),
        "history": lambda: selectors.history(rollout),
        "by server": lambda: selectors.figures_by_server(rollout),
        "mismatches": lambda: [one.server.name for one in selectors.mismatches(rollout)[:20]],
        "last change": lambda: selectors.last_change(model, release=None, back=None),
        "rest list": lambda: api.get(address).json(),
        "rest detail": lambda: api.get(f"{address}/{rollout.name}").json(),
        "rest figures": lambda: api.get(f"{address}/{rollout.name}/figures").json(),
    }
    site = f"/models/{model.name}"
    at = f"{site}/rollouts/{rollout.name}"
    for path in (
        "/rollouts/",
        f"{site}/releases/",
        f"{site}/rollouts/",
        f"{site}/rollouts/new",
        f"{at}/",
        f"{at}/unlike/",
        f"{at}/chart",
    ):
        readings[f"page {path.replace(rollout.name, 'one').removeprefix(site)}"] = lambda path=path: (
            pages.get(path).content
        )  # type: ignore[misc]
    pages.get("/rollouts/")  # what is read once in a process
    found = {}
    for name, read in readings.items():
        with CaptureQueriesContext(connection) as captured:
            read()
        found[name] = len(captured)
    return found


def test_nothing_that_is_read_takes_more_queries_for_more_rows(
    server: Server, api: APIClient, as_person: Callable[..., Client]
):
    client = as_person("operate")
    add_models(server, range(2), versions=2, releases=4)
    add_rollouts(server, range(2), each=2)
    model = Model.objects.get(name="model_000")
    few = queries(model, api, client)
    add_models(server, range(2, 60), versions=2, releases=2)
    add_rollouts(server, range(2, 60), each=1)
    Rollout.objects.filter(model=model).delete()
    add_rollouts(server, range(1), each=150)
    assert queries(model, api, client) == few
    pages = {name for name in few if name.startswith("page ")}
    assert max(few[name] for name in few if name not in pages) <= 14
    assert max(few[name] for name in pages) <= 51
    assert (few["of note"], few["open"]) == (3, 1)


def test_a_chart_has_a_bounded_number_of_points_up_to_the_last_reading(server: Server):
    add_models(server, range(1), versions=2, releases=4)
    add_rollouts(server, range(1), each=2)
    model = Model.objects.get()
    add_rollout_history(server, model, readings=550)
    rollout = selectors.rollout_now(model)
    assert rollout is not None
    times = selectors.history(rollout)["times"]
    assert isinstance(times, list)
    assert 150 < len(times) <= selectors.MOST_POINTS + 1
    assert times == sorted(times)
    assert times[-1] == rollout.samples.last().at


def test_the_overview_tells_of_rollouts_under_way_and_of_those_that_were_rolled_back(
    server: Server, as_person: Callable[..., Client]
):
    add_models(server, range(2), versions=2, releases=2)
    add_rollouts(server, range(2), each=1)
    Rollout.objects.filter(state="running", model__name="model_001").delete()
    page = text_of(as_person(), "/")
    assert "5 % of requests go to version 2; step 1 of 4." in page
    assert "5 % of its answers were errors." in page
    assert page.count("Rolled back") == 1
