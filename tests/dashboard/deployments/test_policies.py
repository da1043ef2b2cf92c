"""An environment asks something of a release before it is deployed there: over REST as on pages, in one list."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.deployments import policies
from dashboard.examples.services import example_create
from dashboard.models import Model, ReleaseCheck, Server, ServerEnvironment
from dashboard.models.deployment import Freeze
from dashboard.releases import life
from dashboard.releases.selectors import newest_release, release_get
from dashboard.servers.wanted import wanted_models
from tests.dashboard.deployments.conftest import start

pytestmark = pytest.mark.django_db

ONES = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}


@pytest.fixture
def client_of(person: Callable[..., Any]) -> Callable[..., APIClient]:
    def make(name: str, *permissions: str, **more: Any) -> APIClient:
        client = APIClient()
        client.force_authenticate(person(*permissions, name=name, **more))
        return client

    return make


@pytest.fixture
def root(client_of: Callable[..., APIClient]) -> APIClient:
    return client_of("root", is_superuser=True)


def ask(root: APIClient, **policy: Any) -> Any:
    return root.put("/api/v1/environments/eu/policy", policy, format="json")


def missing(client: APIClient, number: int) -> list[str]:
    rows = client.get(f"/api/v1/environments/eu/requirements/relu/{number}").data["results"]
    return [row["name"] for row in rows if not row["met"]]


def test_a_second_person_approves_exactly_one_release(
    eu: ServerEnvironment,
    api: APIClient,
    root: APIClient,
    client_of: Callable[..., APIClient],
    numbers: tuple[int, int],
) -> None:
    assert ask(root, approval=True).status_code == 200
    mary = client_of("mary", "operate")
    address = f"/api/v1/environments/eu/approvals/relu/{numbers[1]}"
    # Olga, who made the release, cannot approve it, and nobody starts what only they approved.
    own = api.post(address, {}, format="json")
    assert (own.status_code, "you made release" in own.data["error"]) == (409, True)
    assert client_of("vera").post(address, {}, format="json").status_code == 403
    refused = start(api, numbers[1])
    assert (refused.status_code, "somebody must approve it" in refused.data["error"]) == (409, True)
    assert mary.post(address, {"comment": "fine"}, format="json").status_code == 201
    assert mary.post(address, {}, format="json").status_code == 409
    assert start(mary, numbers[1]).status_code == 409
    assert (missing(mary, numbers[1]), missing(api, numbers[1])) == (["approval"], [])
    assert missing(api, numbers[0]) == ["approval"]
    # An approval of somebody who may not operate any more counts for nothing.
    permissions = get_user_model().objects.get(username="mary").user_permissions
    permissions.clear()
    assert missing(api, numbers[1]) == ["approval"]
    permissions.set(Permission.objects.filter(codename="operate"))
    # What the policy governs is not wanted past it.
    past = api.put("/api/v1/environments/eu/wanted/relu", {"release": numbers[1]}, format="json")
    assert (past.status_code, past.data["error"]) == (409, "environment eu has a policy: deploy the release there")
    assert root.patch("/api/v1/environments/eu", {"everything": True}, format="json").status_code == 409
    out = api.delete("/api/v1/environments/eu/wanted/relu")
    assert (out.status_code, "only an administrator takes a model out" in out.data["error"]) == (409, True)
    made = start(api, numbers[1])
    assert made.status_code == 201
    # Taken back, it does not go on after a stop; going back asks nothing.
    assert mary.delete(address).status_code == 204
    assert mary.delete(address).status_code == 404
    assert api.post(f"/api/v1/deployments/{made.data['id']}/stop").status_code == 200
    assert api.post(f"/api/v1/deployments/{made.data['id']}/continue").status_code == 409
    assert api.post(f"/api/v1/deployments/{made.data['id']}/go-back").status_code == 200
    assert root.delete("/api/v1/environments/eu/wanted/relu").status_code == 204


def test_a_release_serves_in_the_source_with_golden_requests_and_a_budget_first(
    eu: ServerEnvironment,
    model: Model,
    api: APIClient,
    root: APIClient,
    actor: Actor,
    numbers: tuple[int, int],
) -> None:
    staging = ServerEnvironment.objects.create(name="staging", everything=False)
    assert ask(root, source="staging", golden=True, budget=True).data["source"] == "staging"
    refused = start(api, numbers[1]).data["error"]
    for said in ("staging has no server", "'relu' has no golden request", "'relu' has no budget"):
        assert said in refused
    server = staging.servers.create(name="staging-1", http_url="s")
    example_create(
        model=model,
        actor=actor,
        name="ones",
        request={"inputs": [ONES]},
        expected={"outputs": [{**ONES, "name": "y"}]},
        golden=True,
    )
    model.budget = {"p99_ms": 5.0, "per_second": 100.0}
    model.save()
    release = release_get(model, numbers[1])
    rows = {one.name: one for one in policies.requirements(environment=eu, release=release, actor=actor)}
    assert "not on staging-1" in rows["source"].said
    assert "version 2 was not measured" in rows["budget"].said
    life.serving(server=server, releases={model.pk: release.pk})
    life.passed(
        release=release, server=server, steps=[{"step": "golden", "checks": [{"name": "ones", "passed": True}]}]
    )
    assert missing(api, numbers[1]) == ["budget"]
    ReleaseCheck.objects.update(steps=[{"step": "golden", "checks": [{"name": "ones", "passed": False}]}])
    assert missing(api, numbers[1]) == ["golden", "budget"]


@pytest.mark.parametrize(
    ("day", "start", "end", "at", "frozen"),
    [
        (4, "16:00", "24:00", "2026-11-27 14:59", False),
        (4, "16:00", "24:00", "2026-11-27 15:00", True),  # a Friday, in winter one hour before UTC
        (4, "16:00", "24:00", "2026-11-27 22:59", True),
        (4, "16:00", "24:00", "2026-11-27 23:00", False),
        (4, "16:00", "24:00", "2026-07-24 14:00", True),  # in summer two hours
        (4, "16:00", "24:00", "2026-07-24 22:00", False),
        # The hour from 2 to 3 comes twice on this Sunday, and not at all on that one.
        (6, "02:00", "03:00", "2026-10-25 00:00", True),
        (6, "02:00", "03:00", "2026-10-25 01:59", True),
        (6, "02:00", "03:00", "2026-10-25 02:00", False),
        (6, "02:00", "03:00", "2026-03-29 00:59", False),
        (6, "02:00", "03:00", "2026-03-29 01:00", False),
        (6, "01:00", "03:30", "2026-03-29 01:29", True),
        (6, "01:00", "03:30", "2026-03-29 01:30", False),
    ],
)
def test_a_freeze_is_by_the_clock_of_its_time_zone(day: int, start: str, end: str, at: str, frozen: bool) -> None:
    freeze: Freeze = {"days": [day], "start": start, "end": end}
    local = datetime.fromisoformat(at).replace(tzinfo=UTC).astimezone(ZoneInfo("Europe/Berlin"))
    assert (policies.frozen_by([freeze], local) is not None) == frozen


def test_nothing_starts_in_a_freeze(eu: ServerEnvironment, root: APIClient, numbers: tuple[int, int]) -> None:
    always = {"days": list(range(7)), "start": "00:00", "end": "24:00"}
    assert ask(root, freezes=[always], time_zone="Asia/Tokyo").status_code == 200
    refused = start(root, numbers[1])
    assert "nothing is deployed there on Mon, Tue" in refused.data["error"]
    friday = {**always, "days": [4]}
    ask(root, freezes=[friday], time_zone="Asia/Tokyo")
    release = release_get(Model.objects.get(), numbers[1])
    for hour, met in ((14, True), (15, False)):  # 15:00 on Thursday in UTC is Friday in Tokyo
        at = datetime(2026, 11, 26, hour, tzinfo=UTC)
        rows = policies.requirements(environment=eu, release=release, actor=Actor(system=True), at=at)
        assert [one.met for one in rows] == [met]


@pytest.mark.parametrize(
    ("policy", "code", "sentence"),
    [
        ({"source": "eu"}, 400, "eu cannot get its releases from itself"),
        ({"source": "mars"}, 404, "there is no environment named 'mars'"),
        ({"time_zone": "Mars/Olympus"}, 400, "'Mars/Olympus' is no time zone"),
        ({"freezes": [{"days": [4], "start": "16:00", "end": "09:00"}]}, 400, "a start and a later end"),
        ({"freezes": [{"days": [4], "start": "4pm", "end": "24:00"}]}, 400, "a start and a later end"),
        ({"freezes": [{"days": [], "start": "16:00", "end": "24:00"}]}, 400, "a freeze has days"),
        ({"freezes": [{"days": [7], "start": "16:00", "end": "24:00"}]}, 400, "6"),
        ({"golden": True, "more": 1}, 400, "There is no such field"),
    ],
)
def test_what_is_no_policy_is_refused(
    eu: ServerEnvironment,
    root: APIClient,
    policy: dict[str, Any],
    code: int,
    sentence: str,
) -> None:
    answer = ask(root, **policy)
    assert (answer.status_code, sentence in str(answer.data)) == (code, True), answer.data
    assert root.get("/api/v1/environments/eu/policy").status_code == 404


def test_an_environment_that_follows_new_releases_has_no_policy(
    eu: ServerEnvironment,
    root: APIClient,
    api: APIClient,
) -> None:
    assert ask(api, golden=True).status_code == 403
    eu.wanted.update(release=None)
    assert "wants 'relu' always at its newest" in ask(root, golden=True).data["error"]
    ServerEnvironment.objects.update(everything=True)
    assert "wants every loaded model" in ask(root, golden=True).data["error"]
    assert root.delete("/api/v1/environments/eu/policy").status_code == 404
    # It pins what it wants now, and no server loads anything.
    server = eu.servers.get(name="eu-1")
    before = wanted_models(server)[0]
    assert api.post("/api/v1/environments/eu/pin").status_code == 403
    assert root.post("/api/v1/environments/eu/pin").data["everything"] is False
    server = Server.objects.get(pk=server.pk)
    after = wanted_models(server)[0]
    assert after == before._replace(release=newest_release(Model.objects.get()).pk)
    assert ask(root, golden=True).status_code == 200
