"""Make live, go back, archive, restore: each a release or a state, and an audit entry."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboard.access.authorisation import Actor
from dashboard.catalog.selectors import model_summary, models_standing, summaries_of
from dashboard.catalog.services import model_delete, model_load, model_unload
from dashboard.configuration.drift import drift_check
from dashboard.configuration.services import config_apply
from dashboard.models import AuditEntry, Model, ModelState, ModelSync, Server, Version
from dashboard.releases.selectors import releases, wanted_versions, way_back
from dashboard.servers.services import server_ensure_local
from dashboard.shared.exceptions import Conflict, Forbidden
from dashboard.versions.moves import version_archive, version_restore
from dashboard.versions.services import release_go_back, release_promote, version_annotate
from repository.config.document import Document
from tests.dashboard.conftest import serve

pytestmark = pytest.mark.django_db
Publish = Callable[..., Version]


@pytest.fixture
def three(published: Publish) -> list[Version]:
    """Versions 1 to 3, the first of which is live."""
    return [published(load=True), published(), published()]


def test_making_a_version_live_pins_the_policy_and_keeps_comments(three: list[Version], actor: Actor) -> None:
    model = three[0].model
    before = Model.objects.get().generation
    release_promote(version=three[1], actor=actor)
    text = model.releases.first().text
    assert "versions: [2]" in text
    assert "# The widest ReLU of the house." in text
    assert wanted_versions(model) == [2]
    assert Model.objects.get().generation == before + 1
    assert AuditEntry.objects.first().summary == "relu: Made version 2 live"


def test_going_back_returns_to_what_was_served_before(three: list[Version], actor: Actor) -> None:
    model = three[0].model
    before = serve(model)
    release_promote(version=three[2], actor=actor)
    assert way_back(model) == before
    release_go_back(model=model, actor=actor)
    assert wanted_versions(model) == [1]
    assert AuditEntry.objects.first().action == "release.go_back"
    assert [release.versions for release in releases(model)][:3] == [[1], [3], [1]]


def test_a_model_of_which_nothing_else_served_cannot_go_back(published: Publish, actor: Actor) -> None:
    with pytest.raises(Conflict, match="no earlier release"):
        release_go_back(model=published(load=True).model, actor=actor)


def test_an_archived_version_is_no_way_back(three: list[Version], actor: Actor) -> None:
    release_promote(version=three[1], actor=actor)
    version_archive(version=three[0], actor=actor)
    assert way_back(three[0].model) is None
    with pytest.raises(Conflict, match="archived"):
        release_promote(version=three[0], actor=actor)


def test_a_version_that_is_wanted_is_not_archived(three: list[Version], actor: Actor) -> None:
    with pytest.raises(Conflict, match="is wanted by release 1"):
        version_archive(version=three[0], actor=actor)


def test_an_archived_version_leaves_the_repository_and_can_come_back(
    three: list[Version], actor: Actor, data_folder: Path
) -> None:
    folder = data_folder / "models" / "relu" / "2"
    version_archive(version=three[1], actor=actor)
    assert not folder.exists()
    assert drift_check() == []
    with pytest.raises(Conflict, match="not published"):
        version_archive(version=three[1], actor=actor)
    version_restore(version=three[1], actor=actor)
    assert (folder / "model.onnx").exists()
    assert drift_check() == []
    assert wanted_versions(three[1].model) == [1]


def test_restoring_does_not_make_live_by_the_way(published: Publish, actor: Actor) -> None:
    published(load=True)
    second = published(load=True)
    first = Version.objects.get(number=1)
    release_promote(version=first, actor=actor)
    version_archive(version=second, actor=actor)
    model = first.model
    config_apply(model=model, document=Document.read(model.releases.last().text), actor=actor)
    with pytest.raises(Conflict, match="would serve version 2 immediately"):
        version_restore(version=second, actor=actor)
    second.refresh_from_db()
    assert second.state == "archived"


def test_unloading_and_loading_are_no_releases(three: list[Version], actor: Actor) -> None:
    model = three[0].model
    count = releases(model).count()
    model = model_unload(model=model, actor=actor)
    assert wanted_versions(model) == []
    model = model_load(model=model, actor=actor)
    assert (wanted_versions(model), releases(model).count()) == ([1], count)
    assert [entry.action for entry in AuditEntry.objects.all()[:2]] == ["model.load", "model.unload"]


def test_loading_again_tells_the_servers_again(three: list[Version], actor: Actor) -> None:
    generation = Model.objects.get().generation
    model_load(model=three[0].model, actor=actor)
    assert Model.objects.get().generation == generation + 1


def test_a_note_can_be_changed(three: list[Version], actor: Actor) -> None:
    assert version_annotate(version=three[0], actor=actor, note=" retrained ").note == "retrained"
    assert AuditEntry.objects.first().after == {"note": "retrained"}


def test_only_those_who_may_operate_change_what_is_served(three: list[Version], person: Callable[..., Any]) -> None:
    uploader = Actor(user=person("upload_data", "upload_code"))
    model = three[0].model
    for act in (
        lambda: release_promote(version=three[1], actor=uploader),
        lambda: release_go_back(model=model, actor=uploader),
        lambda: version_archive(version=three[1], actor=uploader),
        lambda: model_unload(model=model, actor=uploader),
        lambda: version_annotate(version=three[1], actor=uploader, note="x"),
    ):
        with pytest.raises(Forbidden):
            act()


# -- the one word that a list shows ----------------------------------------------------------------------------------


def say(version: int, state: str, reason: str = "", condition: str = "", failed: bool = False) -> None:
    server = Server.objects.first() or server_ensure_local()
    values = {"state": state, "reason": reason, "condition": condition, "failed": failed}
    ModelState.objects.update_or_create(server=server, model_name="relu", version=version, defaults=values)


def word(model: Model) -> tuple[str, str]:
    summary = model_summary(model)
    return summary.state, summary.reason


def test_a_model_is_loading_until_a_server_says_that_it_is_ready(three: list[Version]) -> None:
    model = three[0].model
    assert word(model) == ("loading", "")
    say(1, "LOADING")
    assert word(model) == ("loading", "")
    say(1, "READY")
    assert word(model) == ("ready", "")


def test_a_model_that_did_not_load_has_failed_and_says_why(three: list[Version]) -> None:
    say(1, "UNAVAILABLE", "no such operator")
    assert word(three[0].model) == ("failed", "no such operator")


def test_a_model_whose_reload_failed_is_degraded_while_the_old_one_serves(three: list[Version]) -> None:
    say(1, "READY")
    ModelSync.objects.create(server=Server.objects.get(), model=three[0].model, error="the new file is broken")
    summary = model_summary(three[0].model)
    assert (summary.state, summary.reason, summary.needs_attention) == ("degraded", "the new file is broken", True)


def test_an_unloaded_model_is_unloaded_once_the_server_let_go_of_it(three: list[Version], actor: Actor) -> None:
    say(1, "READY")
    model = model_unload(model=three[0].model, actor=actor)
    assert word(model) == ("unloading", "")
    say(1, "UNLOADING", "unloaded")
    assert word(model) == ("unloading", "")
    say(1, "UNAVAILABLE", "words for people", "unloaded")
    assert word(model) == ("unloaded", "")


def test_a_model_that_cannot_be_unloaded_says_that_it_still_serves(three: list[Version], actor: Actor) -> None:
    say(1, "READY")
    model = model_unload(model=three[0].model, actor=actor)
    ModelSync.objects.create(server=Server.objects.get(), model=model, error="an ensemble needs it")
    assert word(model) == ("degraded", "it is still loaded: an ensemble needs it")


def test_a_model_that_waits_for_its_first_request_is_asleep(three: list[Version], actor: Actor) -> None:
    say(1, "UNAVAILABLE", "words for people", "asleep")
    model = three[0].model
    assert word(model) == ("asleep", "")
    say(1, "LOADING")
    assert word(model) == ("loading", "")
    say(1, "UNAVAILABLE", "no such operator", "asleep", failed=True)
    assert word(model) == ("failed", "no such operator")
    say(1, "UNAVAILABLE", "words for people", "asleep")
    assert word(model_unload(model=model, actor=actor)) == ("unloading", "")
    with pytest.raises(Conflict, match="still being unloaded"):
        model_delete(model=model, actor=actor, confirm_name="relu")


def test_each_version_has_a_word_of_its_own() -> None:
    words = {
        ("READY", "", ""): ("ready", ""),
        ("LOADING", "", ""): ("loading", ""),
        ("UNLOADING", "in words", ""): ("unloading", ""),
        ("UNAVAILABLE", "in words", "unloaded"): ("unloaded", ""),
        ("UNAVAILABLE", "in words", "asleep"): ("asleep", ""),
        ("UNAVAILABLE", "unloaded", ""): ("failed", "unloaded"),
        ("READY", "runs on the CPU", ""): ("ready", "runs on the CPU"),
    }
    for (state, reason, condition), expected in words.items():
        row = ModelState(state=state, reason=reason, condition=condition)
        assert (row.word, row.complaint) == expected


def test_the_overview_takes_as_many_queries_for_one_model_as_for_many(
    published: Publish, django_assert_num_queries: Any
) -> None:
    for name in ("a", "b", "c"):
        published(name, load=True)
    standing = models_standing()
    with django_assert_num_queries(8):
        rows = summaries_of(standing)
    assert [(row.name, row.wanted_versions, row.wanted_by) for row in rows] == [(n, [1], "olga") for n in "abc"]
