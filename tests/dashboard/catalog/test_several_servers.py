"""A model is ready when each server of production that answers serves it. The servers' reports are written by hand here."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.catalog.selectors import model_summary, models_standing
from dashboard.deployments.advance import deployments_advance
from dashboard.models import Model, ModelState, ModelSync, Server, ServerEnvironment, ServerState, Version
from dashboard.servers.server_state import server_lost
from tests.dashboard.conftest import text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    return published(load=True, make_live=True).model


@pytest.fixture
def servers(model: Model) -> list[Server]:
    """Three servers of production that answer, of which the first serves version 1."""
    found = [Server.objects.create(name=f"p-{number}", http_url=f"http://p-{number}") for number in (1, 2, 3)]
    for server in found:
        ServerState.objects.create(server=server, state="ready", checked_at=timezone.now())
    report(found[0])
    return found


def report(server: Server, state: str = "READY", version: int = 1, **more: Any) -> None:
    where = {"server": server, "model_name": "relu", "version": version}
    ModelState.objects.update_or_create(**where, defaults={"state": state, **more})


def told(model: Model) -> tuple[str, str]:
    """The model's state and where it serves; the list of all models says the same."""
    summary = model_summary(model)
    assert [one.state for one in models_standing()] == [summary.state]
    return summary.state, summary.spread.in_words


def test_it_loads_until_each_server_that_answers_serves_it(model: Model, servers: list[Server]) -> None:
    assert told(model) == ("loading", "on 1 of 3 servers")
    report(servers[1], "LOADING")
    assert told(model) == ("loading", "on 1 of 3 servers")
    report(servers[1])
    assert told(model) == ("loading", "on 2 of 3 servers")
    report(servers[2], "UNAVAILABLE", condition="asleep")
    assert told(model) == ("ready", "")
    Server.objects.filter(pk=servers[2].pk).delete()
    assert told(model) == ("ready", "")


def test_a_server_that_is_away_or_told_to_end_holds_it_not(model: Model, servers: list[Server]) -> None:
    for server in servers[1:]:
        report(server, "LOADING")
    server_lost(server=servers[1], reason="connection refused")
    assert told(model) == ("loading", "on 1 of 2 servers")
    Server.objects.filter(pk=servers[2].pk).update(leaving=True)
    assert told(model) == ("ready", "")
    report(servers[0], "UNAVAILABLE", condition="unloaded")
    assert told(model)[0] == "loading", "a server that is told to end does not stand for the others"
    server_lost(server=servers[0], reason="connection refused")
    Server.objects.filter(pk=servers[2].pk).delete()
    assert told(model) == ("failed", ""), "no server answers"


def test_where_it_failed_is_named(model: Model, servers: list[Server]) -> None:
    report(servers[1])
    report(servers[2], "UNAVAILABLE", failed=True, reason="the file is damaged")
    ModelSync.objects.create(server=servers[2], model=model, error="the file is damaged")
    assert told(model) == ("degraded", "on 2 of 3 servers")
    assert model_summary(model).reason == "on p-3: the file is damaged"
    ModelSync.objects.create(server=servers[1], model=model, error="it is too large")
    assert model_summary(model).reason == "on p-2 and 1 more: it is too large"
    server_lost(server=servers[2], reason="connection refused")
    ModelSync.objects.filter(server=servers[1]).update(error="")
    assert told(model) == ("ready", ""), "what failed on a server that is away is not said of the others"


def test_a_silent_version_on_one_server_is_no_ready_one(model: Model, servers: list[Server]) -> None:
    report(servers[1])
    report(servers[2], condition="silent", reason="its process gives no sign of life")
    assert told(model) == ("degraded", "on 2 of 3 servers")


def test_servers_that_others_drive_and_other_environments_hold_it_not(model: Model, servers: list[Server]) -> None:
    staging = ServerEnvironment.objects.create(name="staging")
    Server.objects.filter(pk=servers[1].pk).update(environment=staging)
    Server.objects.filter(pk=servers[2].pk).update(environment=None)
    assert told(model) == ("loading", "on 1 of 2 servers")
    ServerEnvironment.objects.filter(name="production").update(driven=False)
    Server.objects.filter(pk=servers[2].pk).delete()
    assert told(model) == ("ready", "")


def test_each_server_should_serve_what_a_deployment_has_brought_it(
    model: Model, servers: list[Server], published: Callable[..., Version], api: APIClient
) -> None:
    first = model.releases.latest("number").number
    published(make_live=True)
    for server in servers:
        report(server, version=2)
    report(servers[0], "UNAVAILABLE", condition="unloaded")
    assert told(model) == ("ready", "")
    body = {"model": "relu", "release": first}
    started = api.post("/api/v1/environments/production/deployments", body, format="json")
    assert started.status_code == 201, started.data
    deployments_advance()
    assert told(model) == ("loading", "on 2 of 3 servers"), "the first server should serve version 1 now"
    report(servers[0])
    report(servers[0], "UNAVAILABLE", version=2, condition="unloaded")
    assert told(model) == ("ready", ""), "the others should serve version 2"


def test_pages_and_rest_say_where_it_serves(
    model: Model, servers: list[Server], as_person: Callable[..., Client], api: APIClient
) -> None:
    client, where = as_person(), "on 1 of 3 servers"
    pages = ["/models/", "/models/relu/", "/models/relu/versions"]
    assert [where in text_of(client, page) for page in pages] == [True] * 3
    found = api.get("/api/v1/models/relu").json()
    assert (found["state"], found["serving_servers"], found["servers"]) == ("loading", 1, 3)
    for server in servers[1:]:
        report(server)
    assert [where in text_of(client, page) for page in pages] == [False] * 3
    found = api.get("/api/v1/models/relu").json()
    assert (found["state"], found["serving_servers"], found["servers"]) == ("ready", 3, 3)
