"""A rollout that waits for somebody says so on the overview, with what to press; no page promises a step that may not come."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from dashboard.access.authorisation import Actor
from dashboard.configuration.services import config_apply
from dashboard.models import Model, Rollout, Server
from dashboard.releases.selectors import current_document
from dashboard.rollouts.figures import figures_store
from dashboard.rollouts.selectors import rollouts_of_note, standing
from dashboard.rollouts.services import rollout_start
from repository.config.document import Document
from tests.dashboard.conftest import text_of
from tests.dashboard.rollouts.conftest import served
from tests.dashboard.rollouts.reports import guardrail, rollout_report

pytestmark = pytest.mark.django_db
LAST = [{"weight": 100, "bake_s": 600}]
USUAL = [guardrail(), guardrail(metric="latency"), guardrail(metric="latency")]


def started(model: Model, server: Server, actor: Actor, **plan: Any) -> Rollout:
    rollout = rollout_start(model=model, actor=actor, candidate=2, plan=plan)
    served(model, server)
    return rollout


def figures(rollout: Rollout, server: Server, **more: Any) -> None:
    figures_store(rollout=rollout, server=server, report=rollout_report(rollout, **more), instance="one")


def test_a_last_step_that_is_promoted_by_hand_needs_attention(
    model: Model, server: Server, actor: Actor, as_person: Callable[..., Client]
) -> None:
    started(model, server, actor, steps=LAST, promote="hand")
    page = text_of(as_person("operate"), "/")
    attention = page[page.index("Needs attention") :][:1500]
    assert "The last step waits for somebody: press Promote version 2, or Roll back to version 1." in attention
    assert "press Promote version 2, or Roll back" in text_of(as_person("operate"), "/models/relu/releases/")


def test_one_whose_stable_version_is_not_known_any_more_does_too(
    model: Model, server: Server, actor: Actor, as_person: Callable[..., Client]
) -> None:
    rollout = started(model, server, actor, steps=LAST)
    figures(rollout, server, candidate=300, guardrails=USUAL)
    assert rollouts_of_note() == []
    unknown = {**guardrail("waiting"), "samples": [0, 300]}
    figures(rollout, server, candidate=300, guardrails=[unknown, *USUAL[1:]])
    assert rollouts_of_note() == [rollout]
    said = "At 100 % version 1 gets no more requests, so its figures stay unknown: press Promote version 2"
    assert said in text_of(as_person("operate"), "/")
    page = text_of(as_person("operate"), "/models/relu/releases/")
    assert said in page
    assert "automatically" not in page[page.index('id="rollout"') :][:3000]


def test_one_whose_answers_are_compared_no_more_does_too(model: Model, server: Server, actor: Actor) -> None:
    compared = {"guardrails": [{"metric": "disagreement", "limit": 0.01}], "shadow": {"share": 10, "keep": False}}
    rollout = started(model, server, actor, steps=LAST, **compared)
    unknown = {**guardrail("waiting", metric="disagreement"), "samples": [0, 0]}
    figures(rollout, server, candidate=300, guardrails=[unknown])
    assert rollouts_of_note() == [rollout]


def test_a_step_that_waits_for_samples_is_not_promised(
    model: Model, server: Server, actor: Actor, as_person: Callable[..., Client]
) -> None:
    rollout = started(model, server, actor)
    figures(rollout, server, stable=950, candidate=40, guardrails=[guardrail("waiting", samples=40), *USUAL[1:]])
    page = text_of(as_person(), "/models/relu/releases/")
    words = page[page.index('id="rollout"') :][:3000]
    assert "at the earliest, once every guardrail holds: errors (40 of 200 requests to the candidate" in words
    assert "automatically" not in words
    figures(rollout, server, stable=950, candidate=300, guardrails=USUAL)
    assert "automatically, while the guardrails hold" in text_of(as_person(), "/models/relu/releases/")
    assert rollouts_of_note() == []


def test_a_further_text_leaves_a_step_served(model: Model, server: Server, actor: Actor) -> None:
    rollout = started(model, server, actor)
    config_apply(model=model, document=Document.read("# mine\n" + current_document(model).text), actor=actor)
    served(model, server)
    assert standing(rollout).serves
