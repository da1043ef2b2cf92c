"""A release begins when what clients meet changes: not with a version that nobody is served, nor with another text."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.catalog.selectors import model_summary
from dashboard.configuration.services import config_apply
from dashboard.configuration.version_settings import version_settings_apply
from dashboard.models import Model, ReleaseSpan, Version
from dashboard.releases import life
from dashboard.releases.going_back import going_back
from dashboard.releases.selectors import (
    current_document,
    newest_release,
    release_get,
    releases,
    serving_release,
    way_back,
)
from dashboard.servers.services import server_ensure_local
from dashboard.versions.services import release_go_back, release_promote
from repository.config import model_config
from repository.config.document import Document
from repository.config.version_settings import settings_of
from tests.dashboard.conftest import CONFIG, serve, text_of

pytestmark = pytest.mark.django_db

SMALLER = CONFIG.replace("max_batch_size: 8", "max_batch_size: 4")


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    """Release 1 has served version 1 for an hour."""
    model = published(load=True).model
    serve(model)
    ReleaseSpan.objects.update(started_at=timezone.now() - timedelta(hours=1))
    return model


def numbers(model: Model) -> list[int]:
    return [release.number for release in releases(model)]


def test_only_publishing_begins_no_release_and_leaves_no_way_back(
    model: Model, published: Callable[..., Version], actor: Actor, api: APIClient, as_person: Callable[..., Client]
) -> None:
    second = published(load=False, make_live=False)
    since = model_summary(model).serving_since
    serve(model)  # the server has read the text, which names version 1 now
    assert (numbers(model), serving_release(model).number, way_back(model)) == ([1], 1, None)
    summary = model_summary(model)
    assert (summary.serving_since, summary.instead, summary.wanted.number) == (since, None, 1)
    listed = api.get("/api/v1/models/relu/releases").json()["results"]
    assert [(row["number"], row["state"], len(row["spans"])) for row in listed] == [(1, "serving", 1)]
    page = text_of(as_person("operate"), "/models/relu/releases/")
    assert "Way back" not in page
    assert "Go back to release" not in page

    release_promote(version=second, actor=actor)
    made = serve(model)
    assert (serving_release(model), way_back(model).number) == (made, 1)
    release_go_back(model=model, actor=actor)
    serve(model)
    assert (serving_release(model).versions, way_back(model)) == ([1], made)


def test_a_text_that_is_only_published_is_kept_for_its_version(
    model: Model, published: Callable[..., Version], actor: Actor
) -> None:
    second = published(load=False, make_live=False, config_text=SMALLER)
    assert "max_batch_size: 8" in newest_release(model).text  # nothing that is served changes
    assert "max_batch_size: 4" in second.config


def test_comments_and_order_begin_no_release(model: Model, actor: Actor, as_person: Callable[..., Client]) -> None:
    lines = CONFIG.splitlines(keepends=True)
    text = config_apply(
        model=model,
        document=Document.read("# mine\n" + "".join([lines[0], lines[2], lines[1], *lines[3:]])),
        actor=actor,
    )
    serve(model)
    assert (numbers(model), text.begun.number, way_back(model)) == ([1], 1, None)
    assert ReleaseSpan.objects.count() == 1
    assert going_back(model, release_get(model, 1)).refusals == ["it is what is wanted already"]
    assert "Text 2 of release 1" in text_of(as_person(), "/models/relu/releases/2/")
    assert "# mine" in text_of(as_person(), "/models/relu/configuration")
    config_apply(model=model, document=Document.read(SMALLER), actor=actor)
    assert (numbers(model), way_back(model).number) == ([3, 1], 1)


@pytest.mark.parametrize(
    "text",
    [
        CONFIG + "instance_group [ { count: 2 kind: KIND_CPU } ]\n",
        CONFIG + 'parameters { key: "slipway.aliases" value { string_value: "{\\"champion\\": 1}" } }\n',
        CONFIG + "response_cache { enable: true }\n",
    ],
)
def test_how_it_serves_begins_one(model: Model, actor: Actor, text: str) -> None:
    config_apply(model=model, document=Document.read(text), actor=actor)
    serve(model)
    assert (numbers(model), way_back(model).number) == ([2, 1], 1)


def test_a_default_that_answers_anyhow_begins_none(model: Model, actor: Actor) -> None:
    named = 'parameters { key: "slipway.aliases" value { string_value: "{\\"default\\": 1}" } }\n'
    config_apply(model=model, document=Document.read(CONFIG + named), actor=actor)
    assert numbers(model) == [1]


def same_meaning(one: str, other: str) -> bool:
    return Document.read(one).same_meaning(Document.read(other), [1])


def parameter(name: str, value: str) -> str:
    return f"{CONFIG}parameters {{ key: \"slipway.{name}\" value {{ string_value: '{value}' }} }}\n"


def test_settings_of_a_version_that_is_not_served_begin_none_and_come_back_with_the_release(
    model: Model, published: Callable[..., Version], actor: Actor, as_person: Callable[..., Client]
) -> None:
    second = published(load=False, make_live=False)
    version_settings_apply(version=second, fields={"max_batch_size": 2}, actor=actor)
    serve(model)
    assert numbers(model) == [1]
    release_promote(version=second, actor=actor)
    config_apply(model=model, document=Document.read(CONFIG + "# without them\n"), actor=actor)
    serve(model)
    assert len(numbers(model)) == 3, "those of the version that serves are met"
    page = text_of(as_person("operate"), "/models/relu/releases/1/")
    assert ">text 3</a>" in page
    assert "It names the versions" not in page
    release_go_back(model=model, actor=actor, release=release_get(model, 1))
    assert settings_of(model_config.parse(current_document(model).text))[2].max_batch_size == 2


@pytest.mark.parametrize(
    ("one", "other", "same"), [("true", "1", False), ("1.0", "1", True), ("[NaN]", "[ NaN ]", True)]
)
def test_what_json_tells_apart_is_another_value(one: str, other: str, same: bool) -> None:
    assert same_meaning(parameter("x", one), parameter("x", other)) is same


def test_a_parameter_too_deep_for_json_is_shown_as_a_text() -> None:
    deep = CONFIG + f'parameters {{ key: "slipway.x" value {{ string_value: "{"[" * 200_000}" }} }}\n'
    assert same_meaning(Document.read(deep).stamped(1), Document.read(deep).stamped(2))
    assert not same_meaning(deep, deep.replace("max_batch_size: 8", "max_batch_size: 4"))


def test_a_further_text_that_fails_is_a_failure_of_its_release(model: Model, actor: Actor) -> None:
    server = server_ensure_local()
    text = config_apply(model=model, document=Document.read("# mine\n" + CONFIG), actor=actor)
    life.began(release=text, server=server)
    life.failed(release=text, server=server, error="no memory")
    assert release_get(model, 1).checks.get().error == "no memory"
    assert not text.checks.exists()
