"""A release is approved by a second person and promoted, on pages. The servers' reports are written by hand."""

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.catalog.selectors import models_standing
from dashboard.deployments.advance import deployments_advance
from dashboard.deployments.policies import policy_of
from dashboard.fleet.services import wanted_remove, wanted_set
from dashboard.models import Deployment, Model, Server, ServerEnvironment, ServerState
from dashboard.releases import life
from dashboard.releases.selectors import release_get
from tests.dashboard.deployments.conftest import report

pytestmark = pytest.mark.django_db


def text_of(answer: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", answer.content.decode())).split())


@pytest.fixture
def client_of(person: Callable[..., Any]) -> Callable[..., Client]:
    def make(name: str, *permissions: str, **more: Any) -> Client:
        client = Client()
        client.force_login(person(*permissions, name=name, **more))
        return client

    return make


def test_a_second_person_approves_and_a_release_is_promoted_and_goes_back(
    eu: ServerEnvironment, model: Model, numbers: tuple[int, int], client_of: Callable[..., Client]
) -> None:
    staging = ServerEnvironment.objects.create(name="staging", everything=False)
    server = staging.servers.create(name="staging-1", http_url="s")
    root, paul, mary = client_of("root", is_superuser=True), client_of("paul", "operate"), client_of("mary", "operate")
    form = {"source": "staging", "approval": "on", "time_zone": "Europe/Berlin", "start": ["", ""], "end": ["", ""]}
    assert paul.post("/environments/eu/policy/change", form).status_code == 403
    assert root.post("/environments/eu/policy/change", form).status_code == 302
    paul.post("/environments/staging/wanted", {"model": "relu", "release": numbers[1]})
    life.serving(server=server, releases={model.pk: release_get(model, numbers[1]).pk})
    assert "Promote to eu" in paul.get("/environments/staging/").content.decode()
    assert "come by a deployment" in text_of(paul.get("/environments/eu/"))

    given = {"model": "relu", "release": str(numbers[1])}
    refused = paul.post("/environments/eu/deployments/start", given)
    assert refused.status_code == 409
    assert "missing Somebody must approve it" in text_of(refused)
    assert "met It serves on every server of staging." in text_of(refused)
    approved = mary.post("/environments/eu/approvals", {**given, "comment": "tried it"}, follow=True)
    assert "mary approved it" in text_of(approved)
    asked = paul.get(f"/environments/eu/deployments/new?model=relu&release={numbers[1]}")
    assert "met It was approved by mary." in text_of(asked)
    assert "Take my approval back" in text_of(approved)
    started = paul.post("/environments/eu/deployments/start", {**given, "at_once": "1"})
    pk = Deployment.objects.get().pk
    assert started.headers["Location"] == f"/environments/eu/deployments/{pk}/"
    deployments_advance()
    report(Server.objects.get(name="eu-2"))
    deployments_advance()
    page = text_of(paul.get(f"/environments/eu/deployments/{pk}/"))
    assert "1 of 3 servers changed" in page
    report(Server.objects.get(name="eu-3"), error="the disk is full")
    deployments_advance()
    page = text_of(paul.get(f"/environments/eu/deployments/{pk}/"))
    assert "Server eu-3 failed: the disk is full." in page
    assert "Release 2 of relu stopped on its way to the servers" in text_of(paul.get("/environments/eu/"))
    assert "Go back to release 1" in page
    left = paul.post(f"/environments/eu/deployments/{pk}/leave-out", {"server": "eu-3"}, follow=True)
    assert "Server eu-3 is left out." in text_of(left)
    paul.post(f"/environments/eu/deployments/{pk}/continue")
    paul.post(f"/environments/eu/deployments/{pk}/stop")
    gone = paul.post(f"/environments/eu/deployments/{pk}/go-back", follow=True)
    assert "The servers that were reached go back to release 1" in text_of(gone)
    assert "Gone back" in text_of(paul.get("/environments/eu/deployments/"))
    assert paul.get(f"/environments/staging/deployments/{pk}/").status_code == 404


def test_the_form_of_a_policy_keeps_freezes_and_refuses_others(
    eu: ServerEnvironment, client_of: Callable[..., Client]
) -> None:
    root = client_of("root", is_superuser=True)
    form = {"time_zone": "UTC", "day-0": ["4", "5"], "start": ["16:00", ""], "end": ["24:00", ""]}
    assert root.post("/environments/eu/policy/change", form).status_code == 302
    policy = policy_of(eu)
    assert policy is not None
    assert policy.freezes == [{"days": [4, 5], "start": "16:00", "end": "24:00"}]
    assert 'value="16:00"' in root.get("/environments/eu/policy/").content.decode()
    refused = root.post("/environments/eu/policy/change", {**form, "start": ["4 pm", ""]})
    assert (refused.status_code, "A freeze has a start" in text_of(refused)) == (400, True)
    assert root.post("/environments/eu/policy/change", {"remove": "1"}).status_code == 302
    assert policy_of(eu) is None


@pytest.mark.parametrize(
    ("query", "code", "sentence"),
    [
        ("", 200, "Choose a release"),
        ("?model=relu&release=x", 400, "'x' is not a whole number"),
        ("?model=relu&release=99", 404, "has no release 99"),
        ("?model=nobody&release=1", 404, "nobody"),
        ("?model=relu&release=2", 200, "eu-2 (a), then eu-3 (a), then eu-1 (b)"),
    ],
)
def test_the_form_of_a_deployment_says_what_it_would_do(
    eu: ServerEnvironment, client_of: Callable[..., Client], query: str, code: int, sentence: str
) -> None:
    answer = client_of("paul", "operate").get(f"/environments/eu/deployments/new{query}")
    assert (answer.status_code, sentence in text_of(answer)) == (code, True), text_of(answer)


def test_a_server_that_does_not_answer_is_told_before_a_deployment_and_in_it(
    eu: ServerEnvironment, client_of: Callable[..., Client], numbers: tuple[int, int]
) -> None:
    paul, given = client_of("paul", "operate"), {"model": "relu", "release": str(numbers[1])}
    away = ServerState.objects.filter(server__name="eu-3")
    away.update(state="down")
    assert "1 server does not answer" in text_of(paul.get("/environments/eu/deployments/new", given))
    refused = paul.post("/environments/eu/deployments/start", given)
    assert (refused.status_code, "Server eu-3 does not answer: leave it out" in text_of(refused)) == (409, True)
    started = paul.post("/environments/eu/deployments/start", {**given, "leave_out": ["eu-3"]}, follow=True)
    assert "0 of 3 servers changed, 1 left out" in text_of(started)
    ServerState.objects.filter(server__name="eu-2").update(state="down")
    page = text_of(paul.get(f"/environments/eu/deployments/{Deployment.objects.get().pk}/"))
    assert "It waits for eu-2, which does not answer." in page


def test_a_zone_is_said_on_the_page(eu: ServerEnvironment, client_of: Callable[..., Client]) -> None:
    root = client_of("root", is_superuser=True)
    root.post("/environments/eu/servers/eu-1/zone", {"zone": " west "})
    assert Server.objects.get(name="eu-1").zone == "west"
    root.post("/environments/eu/servers/eu-1/zone", {"zone": "x" * 65})
    assert Server.objects.get(name="eu-1").zone == "west"


def test_production_that_is_held_at_a_release_tells_what_serves_and_what_needs_a_deployment(
    model: Model, numbers: tuple[int, int], actor: Actor, api: APIClient, client_of: Callable[..., Client]
) -> None:
    production, _ = ServerEnvironment.objects.get_or_create(name="production")
    local = production.servers.create(name="local", bundled=True, http_url="l")
    ServerState.objects.create(server=local)
    wanted_set(environment=production, model=model, actor=actor, release=numbers[0])
    report(local)
    life.serving(server=local, releases={model.pk: release_get(model, numbers[0]).pk})
    paul = client_of("paul", "operate")

    def told() -> tuple[str, int, int, list[str]]:
        shown, rows = api.get("/api/v1/models/relu").data, api.get("/api/v1/models/relu/releases").data["results"]
        return shown["state"], shown["wanted_release"], shown["serving_release"], [row["state"] for row in rows]

    assert told() == ("ready", 1, 1, ["held", "serving"])
    page = text_of(paul.get("/models/relu/releases/"))
    assert "Production stays at release 1 : release 2 reaches it by a deployment. Deploy release 2" in page
    assert "Needs a deployment" in page
    assert [one.state for one in models_standing()] == ["ready"]
    refused = api.post("/api/v1/models/relu/rollouts", {"candidate": 1}, format="json")
    assert (refused.status_code, "by deployments only" in refused.data["error"]) == (409, True)
    # A reached server counts as soon as it should serve the release.
    assert api.post("/api/v1/environments/production/deployments", {"model": "relu", "release": 2}).status_code == 201
    deployments_advance()
    assert told()[1:] == (2, 1, ["wanted", "serving"])
    Deployment.objects.all().delete()
    production.wanted.all().delete()
    ServerEnvironment.objects.update(everything=False)
    page = text_of(paul.get("/models/relu/"))
    assert "Production wants chosen models, and not this one: release 2 reaches it by a deployment." in page
    # What production has chosen is not unloaded past it.
    wanted_set(environment=production, model=model, actor=actor, release=numbers[0])
    assert api.post("/api/v1/models/relu/unload").status_code == 409
    wanted_remove(environment=production, model=model, actor=actor)
    assert api.post("/api/v1/models/relu/unload").status_code == 200
