"""The pages of releases: what serves, what is wanted, what was live when, the way back with what it changes."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.configuration.services import config_apply
from dashboard.models import Model, ModelState, Release, ReleaseSpan, Server, Version
from dashboard.releases import life
from dashboard.releases.selectors import current_document, newest_release
from dashboard.rollouts.services import rollout_advance, rollout_start
from dashboard.servers.services import server_ensure_local
from dashboard.versions.services import release_go_back, release_promote
from dashboard.versions.timeline import timeline
from repository.config.document import Document
from tests.dashboard.conftest import serve, text_of

pytestmark = pytest.mark.django_db
Publish = Callable[..., Version]


@pytest.fixture
def server(db: None) -> Server:
    return server_ensure_local()


@pytest.fixture
def model(published: Publish, actor: Actor) -> Model:
    """Version 1 served, version 2 serves now."""
    first = published(load=True)
    serve(first.model)
    release_promote(version=published(), actor=actor)
    serve(first.model)
    return first.model


def test_the_page_says_what_serves_and_the_way_back(model: Model, as_person: Callable[..., Client]) -> None:
    page = text_of(as_person("operate"), "/models/relu/releases/")
    assert "Live now" in page
    assert 'href="/models/relu/versions#version-2">version 2</a>' in page
    assert "Go back to release 1" in page
    assert "What was live when" in page
    assert "Wanted" not in page.split("<ol")[0].split("Live now")[1]  # what is wanted serves: it is said once


def test_the_page_says_both_while_the_wanted_release_failed(
    model: Model, published: Publish, actor: Actor, server: Server, as_person: Callable[..., Client]
) -> None:
    release_promote(version=published(), actor=actor)
    wanted = newest_release(model)
    assert wanted is not None
    life.began(release=wanted, server=server)
    life.failed(
        release=wanted,
        server=server,
        error="golden request 'cat': output 'y' is off by 3",
        steps=[
            {"step": "load", "ms": 2.0},
            {
                "step": "golden",
                "ms": 1.0,
                "failed": True,
                "checks": [{"name": "cat", "version": 3, "passed": False, "detail": "output 'y' is off by 3"}],
            },
        ],
    )
    page = text_of(as_person("operate"), "/models/relu/releases/")
    assert f">Release {wanted.number}</a>" in page
    assert "by olga: failed" in page
    assert "Live now" in page
    assert "Golden requests" in page
    assert "Output 'y' is off by 3" in page.replace("&#x27;", "'")


def test_the_steps_are_shown_while_a_release_is_checked(
    model: Model, published: Publish, actor: Actor, server: Server, as_person: Callable[..., Client]
) -> None:
    release_promote(version=published(), actor=actor)
    wanted = newest_release(model)
    assert wanted is not None
    life.began(release=wanted, server=server)
    life.stepped(release=wanted, servers=[server], steps=[{"step": "golden", "done": 1, "of": 3}])
    page = text_of(as_person(), "/models/relu/releases/")
    assert "1 of 3" in page
    assert 'aria-current="step"' in page
    assert page.index("Warm up") < page.index("1 of 3") < page.index("Drain")


def test_a_release_says_what_going_back_would_change(
    model: Model, actor: Actor, as_person: Callable[..., Client]
) -> None:
    text = current_document(model).text.replace("max_batch_size: 8", "max_batch_size: 4")
    config_apply(model=model, document=Document.read(text), actor=actor)
    page = text_of(as_person("operate"), "/models/relu/releases/1/")
    assert "Go back to release 1" in page
    assert '<span class="del">-max_batch_size: 4</span>' in page
    assert '<span class="add">+max_batch_size: 8</span>' in page
    assert "from 2 to 1" in page
    assert "stayed 2" in text_of(as_person(), "/models/relu/releases/4/")
    assert "Go back to release 1" not in text_of(as_person(), "/models/relu/releases/1/")  # a viewer


def test_a_release_that_was_never_live_says_why_it_cannot_come_back(
    model: Model, published: Publish, actor: Actor, as_person: Callable[..., Client]
) -> None:
    release_promote(version=published(), actor=actor)
    skipped = newest_release(model)
    assert skipped is not None
    release_go_back(model=model, actor=actor)
    page = text_of(as_person("operate"), f"/models/relu/releases/{skipped.number}/")
    assert "It was never live" in page
    assert '<button class="button primary">' not in page


def test_a_release_that_there_is_not_is_not_found(model: Model, as_person: Callable[..., Client]) -> None:
    assert as_person().get("/models/relu/releases/99/").status_code == 404
    assert as_person().get("/models/nobody/releases/").status_code == 404


def test_the_timeline_has_a_row_for_each_version_and_a_bar_for_each_span(model: Model, server: Server) -> None:
    now = timezone.now()
    spans = list(ReleaseSpan.objects.order_by("started_at"))
    for span, began, ended in zip(spans, (4, 2), (2, None), strict=True):
        times = {"started_at": now - timedelta(hours=began), "ended_at": ended and now - timedelta(hours=ended)}
        ReleaseSpan.objects.filter(pk=span.pk).update(**times)
    picture, name = timeline(model, now=now)
    assert name == "6h"
    assert [(row.version, [(round(bar.x), round(bar.width)) for bar in row.bars]) for row in picture.rows] == [
        (2, [(67, 33)]),
        (1, [(33, 33)]),
    ]
    assert picture.rows[0].bars[0].ended is None


def test_the_steps_of_a_rollout_are_one_bar_whose_height_is_the_share(
    model: Model, published: Publish, actor: Actor, as_person: Callable[..., Client]
) -> None:
    published()
    rollout = rollout_start(model=model, actor=actor, candidate=3)
    serve(model)
    rollout_advance(rollout=rollout, actor=actor)
    serve(model)
    picture, _ = timeline(model)
    assert [(row.version, [bar.shares for bar in row.bars]) for row in picture.rows] == [
        (3, ["5 %, 25 %"]),
        (2, ["100 %", "95 %, 75 %"]),
        (1, ["100 %"]),
    ]
    tall, low = picture.rows[1].bars[1].parts[0], picture.rows[0].bars[0].parts[0]
    assert low.height < tall.height < 16
    assert tall.y + tall.height == low.y + low.height == 18
    page = text_of(as_person(), "/models/relu/releases/")
    assert f"Rollout {rollout.name}: 5 %, 25 % of requests" in page
    assert "75 % version 2, 25 % version 3" in page  # in the list of releases


def test_a_span_of_a_moment_stays_visible_inside_the_picture(model: Model, server: Server) -> None:
    picture, _ = timeline(model, "1y", now=timezone.now())
    bars: list[Any] = [bar for row in picture.rows for bar in row.bars]
    assert bars
    assert all(bar.width >= 0.25 and bar.x >= 0 and bar.x + bar.width <= 100 for bar in bars)


def test_the_head_says_since_when_it_serves_not_since_when_it_was_wanted(
    model: Model, as_person: Callable[..., Client]
) -> None:
    Release.objects.update(created_at=timezone.now() - timedelta(hours=9))
    ReleaseSpan.objects.filter(ended_at=None).update(started_at=timezone.now() - timedelta(hours=3))
    ModelState.objects.create(server=server_ensure_local(), model_name="relu", version=2, state="READY")
    head = text_of(as_person(), "/models/relu/head").split("live since")[1][:200]
    assert ">3 h ago</time>, wanted by olga" in head
    assert ">3 h ago<" in text_of(as_person(), "/models/")
