"""Names of versions: they move as releases, what they name is served, and exactly one version answers by default."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.configuration.services import config_apply
from dashboard.models import Model, Version
from dashboard.releases.selectors import newest_release, releases
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.versions.services import aliases_set, release_go_back, release_promote
from repository.config import model_config
from repository.config.document import Document
from repository.config.release import aliases_of, set_aliases
from tests.dashboard.conftest import serve

pytestmark = pytest.mark.django_db


@pytest.fixture
def three(published: Callable[..., Version]) -> list[Version]:
    """Versions 1 to 3, the first of which is live."""
    return [published(load=True), published(), published()]


def said(model: Model) -> tuple[list[int], dict[str, int]]:
    """The versions and aliases of the newest release, by its text and by its columns."""
    release = newest_release(model)
    assert aliases_of(model_config.parse(release.text)) == release.aliases
    return release.versions, release.aliases


def test_what_gets_a_name_is_served_and_what_answered_goes_on_to_answer(three: list[Version], actor: Actor) -> None:
    model = three[0].model
    release = aliases_set(model=model, aliases={"champion": 1, "candidate": 3}, actor=actor)
    assert said(model) == ([1, 3], {"champion": 1, "candidate": 3, "default": 1})
    assert (release.kind, release.summary) == (
        "aliases",
        "Named versions: candidate is version 3, champion is version 1, default is version 1",
    )


def test_moving_a_name_is_a_release_and_the_same_names_are_none(three: list[Version], actor: Actor) -> None:
    model = three[0].model
    aliases_set(model=model, aliases={"champion": 1}, actor=actor)
    aliases_set(model=model, aliases={"champion": 2, "default": 2}, actor=actor)
    count, number = releases(model).count(), newest_release(model).number
    assert aliases_set(model=model, aliases={"champion": 2, "default": 2}, actor=actor).number == number
    assert releases(model).count() == count
    assert said(model) == ([1, 2], {"champion": 2, "default": 2})
    aliases_set(model=model, aliases={}, actor=actor)
    assert said(model) == ([1, 2], {"default": 2}) or said(model) == ([1, 2], {})


def test_making_live_keeps_named_versions_and_answers_by_default(three: list[Version], actor: Actor) -> None:
    model = three[0].model
    aliases_set(model=model, aliases={"candidate": 3}, actor=actor)
    release_promote(version=three[1], actor=actor)
    assert said(model) == ([2, 3], {"candidate": 3, "default": 2})
    release_promote(version=three[2], actor=actor)
    assert said(model) == ([3], {"candidate": 3})


def test_publishing_keeps_named_versions(three: list[Version], actor: Actor, published: Callable[..., Version]) -> None:
    model = three[0].model
    aliases_set(model=model, aliases={"champion": 1}, actor=actor)
    published(load=True, make_live=True, config_text=newest_release(model).text)
    assert said(model) == ([1, 4], {"champion": 1})


def test_going_back_brings_the_names_back(three: list[Version], actor: Actor) -> None:
    model = three[0].model
    aliases_set(model=model, aliases={"champion": 1, "candidate": 2}, actor=actor)
    named = serve(model)
    aliases_set(model=model, aliases={"champion": 2}, actor=actor)
    release_go_back(model=model, release=named, actor=actor)
    assert said(model) == ([1, 2], {"champion": 1, "candidate": 2, "default": 1})


@pytest.mark.parametrize("aliases", [{"champion": 9}, {"Champion": 1}, {"7": 1}, {"": 1}, {"a" * 65: 1}])
def test_what_cannot_be_a_name_or_names_nothing_is_refused(
    aliases: dict[str, int], three: list[Version], actor: Actor, api: APIClient
) -> None:
    with pytest.raises(Invalid):
        aliases_set(model=three[0].model, aliases=aliases, actor=actor)
    assert api.put("/api/v1/models/relu/aliases", {"aliases": aliases}, format="json").status_code == 400
    assert api.get("/api/v1/models/relu/aliases").json()["aliases"] == {}


def test_two_people_who_name_versions_at_once_lose_nothing(three: list[Version], actor: Actor) -> None:
    model = three[0].model
    base = aliases_set(model=model, aliases={"champion": 1, "old": 1}, actor=actor).number
    aliases_set(model=model, aliases={"champion": 2, "default": 1}, actor=actor, base_release=base)
    aliases_set(model=model, aliases={"champion": 1, "old": 1, "mine": 3}, actor=actor, base_release=base)
    assert said(model)[1] == {"champion": 2, "default": 1, "mine": 3}


def test_two_people_who_move_one_name_are_told_of_each_other(
    three: list[Version], actor: Actor, api: APIClient
) -> None:
    base = aliases_set(model=three[0].model, aliases={"champion": 1, "old": 1}, actor=actor).number
    aliases_set(model=three[0].model, aliases={"champion": 2, "old": 1}, actor=actor)
    body = {"aliases": {"champion": 3, "mine": 1}, "base_release": base}
    answer = api.put("/api/v1/models/relu/aliases", body, format="json")
    assert answer.status_code == 409
    assert "olga" in answer.json()["error"]
    assert "'champion' is version 2 by now" in answer.json()["error"]
    again = {"aliases": answer.json()["merged"], "base_release": answer.json()["current_release"]}
    assert api.put("/api/v1/models/relu/aliases", again, format="json").status_code == 200
    assert said(three[0].model)[1] == {"champion": 3, "default": 1, "mine": 1}


def test_a_configuration_whose_name_no_version_has_is_refused_before_a_server_does(
    three: list[Version], actor: Actor
) -> None:
    model = three[0].model
    text = newest_release(model).text
    for aliases, serves in (({"champion": 9}, "it serves 1"), ({"champion": 3}, "it serves 1")):
        config = model_config.parse(text)
        set_aliases(config, aliases)
        with pytest.raises(Invalid, match=serves):
            config_apply(model=model, document=Document.read(text).with_message(config), actor=actor)


def test_a_file_that_is_no_text_any_more_is_a_change_by_hand(
    three: list[Version], actor: Actor, data_folder: Path
) -> None:
    (data_folder / "models" / "relu" / "config.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(Conflict, match="changed on disk"):
        aliases_set(model=three[0].model, aliases={"champion": 1}, actor=actor)
