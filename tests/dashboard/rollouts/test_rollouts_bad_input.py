"""Every input to a route of rollouts is taken whole or refused with a sentence."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.models import Model, Release, Rollout
from dashboard.releases.storage import on_disk
from dashboard.rollouts.services import rollout_abort

pytestmark = pytest.mark.django_db

ADDRESS = "/api/v1/models/relu/rollouts"
DEEP: Any = 7
for _ in range(500):
    DEEP = [DEEP]
VALUES = (None, True, -1, 10**400, float("nan"), "a\0", "\ud800", [[]], {"": None}, DEEP)
GUARDRAILS: tuple[dict[str, Any], ...] = (
    {"metric": "errors", "margin": 0.01},
    {"metric": "latency", "quantile": 0.99, "ratio": 1.5},
    {"metric": "disagreement", "limit": 0.02},
    {"metric": "prometheus", "name": "custom", "ratio": 1.2},
    {"metric": "prometheus", "url": "http://prom:9090", "stable": "a", "candidate": "b", "ratio": 1.2},
)
REMOTE = {
    "url": "http://host:8000",
    "protocol": "json",
    "model": "m",
    "version": "1",
    "timeout_s": 1,
    "request": {"x": "$x"},
    "response": {"y": "y"},
}
SHADOW = {"share": 10, "absolute": 1e-4, "relative": 1e-3, "max_in_flight": 8}
KEEP = {"count": 20, "bytes": 100, "days": 7}
STICKY = ({"header": "x-user"}, {"parameter": "user"}, {"id": True})


def bodies() -> Iterator[dict[str, Any]]:
    """Each value in the place of each field, one at a time."""
    for value in VALUES:
        for field in ("candidate", "stable", "kind", "plan", "model", "\0"):
            yield {"candidate": 2, field: value}
        for field in (
            "steps",
            "promote",
            "hold_days",
            "min_samples",
            "window_s",
            "alpha",
            "sticky",
            "shadow",
            "guardrails",
        ):
            yield plan(**{field: value})
        yield plan(steps=[value])
        for field in ("weight", "bake_s"):
            yield plan(steps=[{"weight": 5, field: value}])
        for guardrail in GUARDRAILS:
            for field in guardrail:
                yield plan(shadow=SHADOW, guardrails=[{**guardrail, field: value}])
        for field in SHADOW:
            yield plan(shadow={**SHADOW, field: value})
        for field in KEEP:
            yield plan(shadow={**SHADOW, "keep": {**KEEP, field: value}})
        for sticky in STICKY:
            yield plan(sticky=dict.fromkeys(sticky, value))
        for field in REMOTE:
            yield {"candidate": {**REMOTE, field: value}}
            yield {"candidate": 2, "stable": {**REMOTE, field: value}}


def plan(**fields: Any) -> dict[str, Any]:
    return {"candidate": 2, "plan": fields}


def send(api: APIClient, address: str, body: object) -> Any:
    return api.post(address, json.dumps(body), content_type="application/json")


def test_every_field_of_a_plan_takes_any_value_or_refuses_it_with_a_sentence(
    model: Model, api: APIClient, actor: Actor, remotes: Path
):
    before = Release.objects.count()
    for body in bodies():
        answer = send(api, ADDRESS, body)
        asked = json.dumps(body)[:300]
        if answer.status_code == 201:
            rollout = Rollout.objects.get(state="running")
            json.dumps(answer.json(), allow_nan=False)
            assert api.get(f"{ADDRESS}/{rollout.name}/figures").status_code == 200, asked
            rollout_abort(rollout=rollout, actor=actor)
            before = Release.objects.count()
            continue
        assert answer.status_code in (400, 409), asked
        assert answer.json(), asked
        assert (Release.objects.count(), Rollout.objects.filter(state="running").count()) == (before, 0), asked
    assert on_disk("relu").text


def test_nesting_as_deep_as_the_parser_goes_is_refused_with_a_sentence(model: Model, api: APIClient):
    """What reads the value later has more frames below it than the parser had."""
    for depth in range(820, 980):
        body = f'{{"candidate": 2, "plan": {{"hold_days": {"[" * depth}{"]" * depth}}}}}'
        answer = api.post(ADDRESS, body, content_type="application/json")
        assert answer.status_code == 400, depth
        assert answer.json()["error"]


def test_acts_take_no_nonsense(model: Model, api: APIClient):
    name = send(api, ADDRESS, {"candidate": 2}).json()["rollout"]["name"]
    more = ({"step": 10**400}, {"step": "\0"}, {"step": -1}, {"days": 10**400}, {"days": "nan"}, {"x": 1})
    for act in ("advance", "promote", "pause", "resume", "abort", "keep_old", "unload_old"):
        for body in (*VALUES[1:], *more):
            answer = send(api, f"{ADDRESS}/{name}/{act}", body)
            assert answer.status_code in (400, 409), (act, str(body)[:50], answer.content)
            assert answer.json()
    for odd in ("r-none", "%00", "..", "x" * 300, "ü"):
        assert api.get(f"{ADDRESS}/{odd}").status_code in (400, 404)
        assert api.post(f"{ADDRESS}/{odd}/abort").status_code in (400, 404)
    assert api.get(f"{ADDRESS}/{name}/mismatches/{10**30}").status_code == 404
    for page in ("0", "-1", "\0", "9" * 400):
        assert api.get(ADDRESS, {"page": page}).status_code in (400, 404)
    assert [row.state for row in Rollout.objects.all()] == ["running"]
