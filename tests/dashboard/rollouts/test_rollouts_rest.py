"""Rollouts over REST: every action, its right, and the figures of arms, guardrails and mismatches."""

from typing import Any

import pytest
from rest_framework.test import APIClient

from dashboard.models import AuditEntry, Model, Rollout, RolloutMismatch, Server
from dashboard.rollouts.figures import figures_store, mismatches_store
from tests.dashboard.rollouts.reports import mismatch, rollout_report, shadow_report

pytestmark = pytest.mark.django_db

ADDRESS = "/api/v1/models/relu/rollouts"
STEPS = {"steps": [{"weight": 5, "bake_s": 0}, {"weight": 50}]}


def post(api: APIClient, path: str, data: Any = None, status: int = 200) -> Any:
    answer = api.post(f"{ADDRESS}{path}", data, format="json")
    assert answer.status_code == status, answer.json()
    return answer.json()


def test_a_rollout_is_led_over_rest_from_its_start_to_its_end(model: Model, api: APIClient):
    begun = post(api, "", {"candidate": 2, "plan": STEPS}, 201)
    name = begun["rollout"]["name"]
    assert (begun["weight"], begun["serves"], begun["in_force"]) == (5, False, None)
    assert [line["name"] for line in begun["guardrails"]] == ["Errors", "Latency p50", "Latency p99"]
    assert begun["rollout"]["plan"]["steps"][1] == {"weight": 50, "bake_s": 600}
    assert post(api, f"/{name}/advance", {"step": 3}, 409)["error"].startswith(f"rollout {name} is running at 5 %")
    assert post(api, f"/{name}/advance", {"step": 0})["weight"] == 50
    assert post(api, f"/{name}/pause")["rollout"]["state"] == "paused"
    assert post(api, f"/{name}/resume")["rollout"]["state"] == "running"
    assert post(api, f"/{name}/promote")["rollout"]["state"] == "holding"
    assert post(api, f"/{name}/keep_old", {"days": 0}, 400)["error"].startswith("expected a number of days above 0")
    post(api, f"/{name}/keep_old", {"days": 30})
    assert "no request of it is known" in post(api, f"/{name}/unload_old")["rollout"]["reason"]
    assert post(api, f"/{name}/abort", status=409)["error"] == f"rollout {name} is done by now: look at it again"
    assert [row["name"] for row in api.get(ADDRESS).json()["results"]] == [name]
    every = api.get("/api/v1/rollouts?state=done").json()["results"]
    assert [(row["model"], row["name"]) for row in every] == [("relu", name)]
    assert not api.get("/api/v1/rollouts?state=running").json()["results"]
    assert api.get(f"{ADDRESS}/r-none").status_code == 404


def test_an_error_names_its_field(model: Model, api: APIClient):
    for given, sentence in (
        ({"candidate": "two"}, "expected 'candidate' to be the number of a version or"),
        ({"candidate": 2, "plan": [1]}, "expected 'plan' to be an object"),
        ({"candidate": 2, "stable": 7}, "expected 'stable' to be"),
        ({"candidate": 2, "plan": {"guardrails": [{"metric": "disagreement"}]}}, "give 'shadow' with a 'share'"),
        ({"candidate": 2, "weight": 5}, "no such field"),
    ):
        assert sentence in str(next(iter(post(api, "", given, 400).values()))), given


def test_figures_and_mismatches_are_told_as_a_server_told_them(model: Model, api: APIClient, server: Server):
    name = post(api, "", {"candidate": 2, "kind": "shadow"}, 201)["rollout"]["name"]
    rollout = Rollout.objects.get()
    word = rollout_report(rollout, stable=90, shadow=shadow_report(compared=9, failed=1))
    figures_store(rollout=rollout, server=server, report=word, instance="a")
    mismatches_store(rollout=rollout, server=server, rows=[mismatch(1, score=0.5), mismatch(2, score=3.0)])
    figures = api.get(f"{ADDRESS}/{name}/figures").json()
    assert [(arm["words"], arm["requests"], arm["share"]) for arm in figures["arms"]] == [
        ("version 1", 90, 1.0),
        ("version 2", 10, 10 / 90),  # asked beside version 1, by no client
    ]
    assert figures["arms"][1]["error_share"] == 0.1
    assert figures["servers"][0]["server"] == "local"
    kept = api.get(f"{ADDRESS}/{name}/mismatches").json()["results"]
    assert [row["score"] for row in kept] == [3.0, 0.5]
    assert "inputs" not in kept[0]
    whole = api.get(f"{ADDRESS}/{name}/mismatches/{kept[0]['id']}").json()
    assert whole["inputs"][0]["data"] == [2]
    assert api.delete(f"{ADDRESS}/{name}/mismatches").status_code == 204
    assert not RolloutMismatch.objects.exists()
    assert AuditEntry.objects.filter(action="rollout.forget").exists()


def test_a_viewer_moves_no_requests_and_sees_no_inputs(model: Model, api: APIClient, person: Any, server: Server):
    name = post(api, "", {"candidate": 2, "kind": "shadow"}, 201)["rollout"]["name"]
    mismatches_store(rollout=Rollout.objects.get(), server=server, rows=[mismatch(1, score=0.5)])
    viewer = APIClient()
    viewer.force_authenticate(person())
    assert viewer.get(f"{ADDRESS}/{name}/figures").status_code == 200
    assert viewer.get(f"{ADDRESS}/{name}/mismatches").json()["count"] == 1
    assert viewer.get(f"{ADDRESS}/{name}/mismatches/{RolloutMismatch.objects.get().pk}").status_code == 403
    for act in ("advance", "pause", "resume", "promote", "abort", "keep_old", "unload_old"):
        assert viewer.post(f"{ADDRESS}/{name}/{act}", {}, format="json").status_code == 403
    assert viewer.post(ADDRESS, {"candidate": 2}, format="json").status_code == 403
