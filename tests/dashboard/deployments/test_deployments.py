"""A release reaches the servers of an environment one after another. The servers' reports are written by hand here."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.alerts.facts import Facts
from dashboard.alerts.finders import deployment_stopped
from dashboard.deployments.advance import deployments_advance
from dashboard.examples.services import example_create
from dashboard.fleet.services import wanted_set
from dashboard.models import (
    AuditEntry,
    Deployment,
    DeploymentPolicy,
    Model,
    ModelSync,
    Release,
    Server,
    ServerEnvironment,
    ServerState,
    Version,
)
from dashboard.servers.wanted import wanted_models
from dashboard.shared.exceptions import Conflict
from tests.dashboard.deployments.conftest import report, start

pytestmark = pytest.mark.django_db


def served(eu: ServerEnvironment) -> dict[str, int | None]:
    """The version that is wanted on each server."""
    return {
        server.name: Release.objects.get(pk=one.release).answers
        for server in eu.servers.order_by("name")
        for one in wanted_models(server)
        if one.release is not None
    }


def generations(eu: ServerEnvironment) -> dict[str, int]:
    return {server.name: wanted_models(server)[0].generation for server in eu.servers.all()}


def act(api: APIClient, pk: int, what: str, **body: Any) -> Any:
    return api.post(f"/api/v1/deployments/{pk}/{what}", body, format="json")


def reach(eu: ServerEnvironment, *names: str) -> None:
    """Let the next group begin, and load."""
    for name in names:
        deployments_advance()
        report(Server.objects.get(name=name))


def test_one_server_after_another_changes_zone_by_zone(
    eu: ServerEnvironment, api: APIClient, numbers: tuple[int, int]
) -> None:
    made = start(api, numbers[1], reason="ticket 7")
    assert made.status_code == 201, made.data
    assert [one["server"] for one in made.data["servers"]] == ["eu-2", "eu-3", "eu-1"]
    assert served(eu) == {"eu-1": 1, "eu-2": 1, "eu-3": 1}
    before = generations(eu)
    deployments_advance()
    assert served(eu) == {"eu-1": 1, "eu-2": 2, "eu-3": 1}
    deployments_advance()  # it waits until the server serves
    assert served(eu) == {"eu-1": 1, "eu-2": 2, "eu-3": 1}
    assert generations(eu) | {"eu-2": 0} == before | {"eu-2": 0}  # nobody else loads anything
    reach(eu, "eu-2", "eu-3", "eu-1")
    assert served(eu) == {"eu-1": 2, "eu-2": 2, "eu-3": 2}
    loaded = generations(eu)
    deployments_advance()
    shown = api.get(f"/api/v1/deployments/{made.data['id']}").data
    assert (shown["state"], {one["state"] for one in shown["servers"]}) == ("done", {"done"})
    assert generations(eu) == loaded  # its end loads nothing again
    assert eu.wanted.get(release__number=numbers[1])
    said = list(AuditEntry.objects.filter(action__startswith="deployment.").order_by("pk"))
    assert [(one.action, one.actor_name) for one in said] == [
        ("deployment.start", "olga"),
        ("deployment.done", "system"),
    ]
    assert "ticket 7" in said[0].summary


def test_the_first_that_fails_stops_it_and_it_goes_on_or_back(
    eu: ServerEnvironment, api: APIClient, numbers: tuple[int, int], actor: Actor, model: Model
) -> None:
    pk = start(api, numbers[1], order=["eu-1"]).data["id"]
    before = generations(eu)
    reach(eu, "eu-1")
    deployments_advance()
    report(Server.objects.get(name="eu-2"), error="the disk is full")
    deployments_advance()
    shown = api.get(f"/api/v1/deployments/{pk}").data
    assert (shown["state"], shown["error"]) == ("stopped", "server eu-2 failed: the disk is full")
    assert [one["state"] for one in shown["servers"]] == ["done", "failed", "waiting"]
    (told,) = deployment_stopped(Facts(timezone.now()))
    assert (told.title, told.detail) == (
        "Release 2 of relu stopped on its way to eu",
        "Server eu-2 failed: the disk is full.",
    )
    deployments_advance()
    assert served(eu)["eu-3"] == 1
    with pytest.raises(Conflict, match="is not over"):
        wanted_set(environment=eu, model=model, actor=actor, release=numbers[0])
    assert start(api, numbers[1]).status_code == 409
    # It is tried again, and fails again.
    assert act(api, pk, "continue").data["state"] == "running"
    assert act(api, pk, "continue").status_code == 409
    deployments_advance()
    assert Deployment.objects.get().state == "running"  # the old failure does not count
    report(Server.objects.get(name="eu-2"), error="the disk is full")
    deployments_advance()
    assert Deployment.objects.get().state == "stopped"
    assert act(api, pk, "go-back").data["state"] == "returned"
    assert act(api, pk, "go-back").status_code == 409
    assert not list(deployment_stopped(Facts(timezone.now())))
    assert served(eu) == {"eu-1": 1, "eu-2": 1, "eu-3": 1}
    # Those that were reached load the earlier release, whatever they have applied; the others load nothing.
    applied = dict(ModelSync.objects.values_list("server__name", "applied_generation"))
    assert (applied["eu-1"], applied["eu-2"], applied["eu-3"]) == (0, 0, before["eu-3"])
    assert generations(eu) == before
    assert start(api, numbers[1]).status_code == 201


def test_a_server_that_is_killed_stops_it(eu: ServerEnvironment, api: APIClient, numbers: tuple[int, int]) -> None:
    pk = start(api, numbers[1]).data["id"]
    deployments_advance()
    state = ServerState.objects.filter(server__name="eu-2")
    state.update(state="down")
    deployments_advance()
    assert Deployment.objects.get().state == "running"  # it may come back
    state.update(checked_at=timezone.now() - timedelta(seconds=60))
    ServerState.objects.filter(server__name="eu-1").update(checked_at=timezone.now() - timedelta(seconds=60))
    deployments_advance(timezone.now())  # a watcher that has just begun has asked neither of them yet
    assert Deployment.objects.get().state == "running"
    report(Server.objects.get(name="eu-1"))
    deployments_advance()
    assert Deployment.objects.get().error == "server eu-2 does not answer"
    act(api, pk, "continue")
    deployments_advance()
    assert Deployment.objects.get().state == "stopped"  # it is still away
    report(Server.objects.get(name="eu-2"))
    act(api, pk, "continue")
    report(Server.objects.get(name="eu-2"))
    reach(eu, "eu-3")
    assert served(eu) == {"eu-1": 1, "eu-2": 2, "eu-3": 2}
    assert act(api, pk, "stop").data["error"] == "olga stopped it"
    reach(eu, "eu-1")
    assert served(eu)["eu-1"] == 1


def test_a_server_that_does_not_answer_is_left_out_before_or_afterwards(
    eu: ServerEnvironment, api: APIClient, numbers: tuple[int, int]
) -> None:
    away = ServerState.objects.filter(server__name="eu-2")
    away.update(state="down", checked_at=timezone.now() - timedelta(seconds=60))
    refused = start(api, numbers[1])
    assert (refused.status_code, "server eu-2 does not answer: leave it out" in refused.data["error"]) == (409, True)
    pk = start(api, numbers[1], leave_out=["eu-2"]).data["id"]
    deployments_advance()
    assert served(eu) == {"eu-1": 1, "eu-2": 1, "eu-3": 2}
    # The first that changes fails, and is left out too: it serves what it served before.
    report(Server.objects.get(name="eu-3"), error="the disk is full")
    deployments_advance()
    assert act(api, pk, "leave-out", server="eu-9").status_code == 404
    left = act(api, pk, "leave-out", server="eu-3").data
    assert ([one["state"] for one in left["servers"]], left["server_count"]) == (["left_out", "left_out", "waiting"], 3)
    assert act(api, pk, "leave-out", server="eu-3").status_code == 409
    assert served(eu)["eu-3"] == 1
    assert not ModelSync.objects.get(server__name="eu-3").error
    act(api, pk, "continue")
    reach(eu, "eu-1")
    deployments_advance()
    assert Deployment.objects.get().state == "done"
    assert served(eu) == {"eu-1": 2, "eu-2": 2, "eu-3": 2}  # they load it when they answer
    assert act(api, pk, "leave-out", server="eu-1").status_code == 409


def test_a_server_on_which_golden_requests_have_not_passed_stops_it(
    eu: ServerEnvironment, model: Model, api: APIClient, numbers: tuple[int, int], actor: Actor
) -> None:
    ones = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}
    given = {"request": {"inputs": [ones]}, "expected": {"outputs": [{**ones, "name": "y"}]}, "golden": True}
    example_create(model=model, actor=actor, name="ones", **given)
    Server.objects.update(http_url="http://127.0.0.1:1")  # nothing answers there
    start(api, numbers[1])
    reach(eu, "eu-2")  # its load has run none of them
    deployments_advance()
    assert "server eu-2 failed: golden requests were not answered" in Deployment.objects.get().error


def test_a_server_that_comes_meanwhile_is_the_last(
    eu: ServerEnvironment, api: APIClient, numbers: tuple[int, int]
) -> None:
    start(api, numbers[1], at_once=5)
    server = Server.objects.create(name="eu-0", environment=eu, zone="c", http_url="eu-0")
    ServerState.objects.create(server=server)
    report(server)
    deployments_advance()
    assert served(eu) == {"eu-0": 1, "eu-1": 1, "eu-2": 2, "eu-3": 2}  # two of one zone at once
    for name in ("eu-2", "eu-3"):
        report(Server.objects.get(name=name))
    reach(eu, "eu-1", "eu-0")
    deployments_advance()
    assert Deployment.objects.get().state == "done"


def test_a_model_that_is_new_in_an_environment_is_taken_out_by_going_back(
    eu: ServerEnvironment, api: APIClient, numbers: tuple[int, int]
) -> None:
    eu.wanted.all().delete()
    pk = start(api, numbers[0]).data["id"]
    deployments_advance()
    assert served(eu) == {"eu-2": 1}
    act(api, pk, "go-back")
    assert served(eu) == {}


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        ({"release": 99}, 400, "has no release 99"),
        ({"model": "nobody"}, 404, "nobody"),
        ({"at_once": 0}, 400, "at least one server changes at a time"),
        ({"order": ["mars-1"]}, 400, "eu has no server named 'mars-1'"),
        ({"more": 1}, 400, "There is no such field"),
        ({"leave_out": ["mars-1"]}, 400, "eu has no server named 'mars-1'"),
        ({"leave_out": ["eu-1", "eu-2", "eu-3"]}, 400, "at least one server must not be left out"),
        ({"release": 1}, 409, "eu wants release 1 of 'relu' already"),
    ],
)
def test_what_cannot_be_deployed_is_refused_in_a_sentence(
    eu: ServerEnvironment, api: APIClient, numbers: tuple[int, int], body: dict[str, Any], code: int, sentence: str
) -> None:
    answer = api.post(
        "/api/v1/environments/eu/deployments", {"model": "relu", "release": numbers[1], **body}, format="json"
    )
    assert (answer.status_code, sentence in str(answer.data)) == (code, True), answer.data
    assert not Deployment.objects.exists()


def test_only_who_may_operate_deploys(
    eu: ServerEnvironment, person: Callable[..., Any], api: APIClient, numbers: tuple[int, int]
) -> None:
    pk = start(api, numbers[1]).data["id"]
    viewer = APIClient()
    viewer.force_authenticate(person(name="vera"))
    assert viewer.get(f"/api/v1/deployments/{pk}").status_code == 200
    assert viewer.get("/api/v1/environments/eu/deployments").data["count"] == 1
    acts = ("stop", "continue", "go-back", "leave-out")
    assert [act(viewer, pk, what, server="eu-2").status_code for what in acts] == [403] * 4
    assert viewer.get("/api/v1/deployments?page_size=1").data["count"] == 1
    servers = viewer.get(f"/api/v1/deployments/{pk}/servers?page_size=2&page=2").data
    assert (servers["count"], [one["server"] for one in servers["results"]]) == (3, ["eu-1"])
    assert start(viewer, numbers[1]).status_code == 403
    assert api.put("/api/v1/environments/eu/servers/eu-1/zone", {"zone": "x"}, format="json").status_code == 403
    assert api.get("/api/v1/deployments/9999").status_code == 404


def test_production_pins_what_it_served_so_that_a_newer_release_reaches_nobody(
    model: Model, api: APIClient, numbers: tuple[int, int], published: Callable[..., Version], actor: Actor
) -> None:
    made = ServerEnvironment.objects.create(name="eu")
    server = Server.objects.create(name="eu-1", environment=made, http_url="a")
    ServerState.objects.create(server=server, state="ready")
    Model.objects.update(desired_state="unloaded")
    refused = start(api, numbers[0])
    assert (refused.status_code, "is not loaded" in refused.data["error"]) == (409, True)
    Model.objects.update(desired_state="loaded")
    before = wanted_models(server)[0].generation
    assert start(api, numbers[0]).status_code == 201
    assert (served(made), wanted_models(server)[0].generation) == ({"eu-1": 2}, before)
    published(make_live=True)
    assert served(made) == {"eu-1": 2}


def test_the_command_deploys_shows_and_ends(
    eu: ServerEnvironment, model: Model, actor: Actor, capsys: pytest.CaptureFixture[str]
) -> None:
    staging = ServerEnvironment.objects.create(name="staging", everything=False)
    with pytest.raises(CommandError, match="Environment staging has chosen no release of 'relu'"):
        call_command("environments", "promote", "staging", "eu", "relu")
    wanted_set(environment=staging, model=model, actor=actor, release=2)
    DeploymentPolicy.objects.create(environment=eu, source=staging)
    with pytest.raises(CommandError, match="does not go to eu yet"):
        call_command("environments", "requirements", "eu", "relu", "2")
    with pytest.raises(CommandError, match="has no server on which it could serve"):
        call_command("environments", "promote", "staging", "eu", "relu")
    DeploymentPolicy.objects.all().delete()
    call_command("environments", "promote", "staging", "eu", "relu", "--order", "eu-1", "--leave-out", "eu-3")
    pk = str(Deployment.objects.get().pk)
    call_command("environments", "deployment", pk, "stop", "--leave-out", "eu-2")
    call_command("environments", "deployments", "eu")
    shown = capsys.readouterr().out
    assert "missing  Environment staging has no server" in shown
    assert f"{pk}  release 2 of relu to eu  stopped  system stopped it\n  eu-1  waiting\n  eu-2  left out" in shown
    call_command("environments", "deployment", pk, "go-back")
    with pytest.raises(CommandError, match="is gone back"):
        call_command("environments", "deployment", pk, "continue")
