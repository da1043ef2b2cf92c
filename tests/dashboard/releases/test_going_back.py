"""Going back restores versions and configuration together, and is refused beforehand where it cannot work."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.catalog.services import model_unload
from dashboard.configuration.services import config_apply
from dashboard.examples.outcomes import outcomes_of_check
from dashboard.examples.services import example_create
from dashboard.models import AuditEntry, Model, ModelState, ModelSync, ReleaseSpan, Server, Upload, Version
from dashboard.releases.going_back import going_back
from dashboard.releases.selectors import (
    current_document,
    last_good,
    newest_release,
    protected_versions,
    release_get,
    wanted_versions,
    way_back,
)
from dashboard.shared.exceptions import Conflict
from dashboard.versions.moves import version_archive
from dashboard.versions.services import release_go_back, release_promote
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, serve, text_of

pytestmark = pytest.mark.django_db

SMALLER = CONFIG.replace("max_batch_size: 8", "max_batch_size: 4")


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    """Release 1 serves version 1."""
    model = published(load=True).model
    serve(model)
    return model


def test_versions_and_configuration_come_back_together_though_both_changed(
    model: Model, published: Callable[..., Version], actor: Actor
) -> None:
    published(load=True, config_text=SMALLER)
    serve(model)
    config_apply(model=model, document=Document.read(SMALLER + "instance_group [ { count: 3 } ]\n"), actor=actor)
    serve(model)
    made = release_go_back(model=model, release=release_get(model, 1), actor=actor)
    assert (made.versions, made.kind, made.returns_to.number) == ([1], "go_back", 1)
    assert "max_batch_size: 8" in made.text
    assert "instance_group" not in made.text
    assert "versions: [1]" in made.text  # the latest is another one by now
    entry = AuditEntry.objects.first()
    assert (entry.action, entry.before["release"], entry.after["release"]) == ("release.go_back", 3, 4)


def test_what_served_last_is_known_though_the_clock_was_set_back(
    model: Model, published: Callable[..., Version]
) -> None:
    ReleaseSpan.objects.update(started_at=timezone.now() + timedelta(hours=1))
    published(load=True)
    serve(model)
    published(load=True)
    assert [one.number for one in last_good(model)] == [2, 1]


def test_the_difference_is_shown_before(model: Model, published: Callable[..., Version]) -> None:
    published(load=True, config_text=SMALLER)
    found = going_back(model, release_get(model, 1))
    assert (found.versions_now, found.versions_then, found.effect, found.refusals) == ([2], [1], "reload", [])
    assert {"-max_batch_size: 4", "+max_batch_size: 8"} <= set(found.diff.splitlines())
    assert "slipway.release" not in found.diff


def test_a_release_that_was_never_live_does_not_become_so_by_going_back(model: Model, actor: Actor) -> None:
    never = config_apply(model=model, document=Document.read(SMALLER), actor=actor)
    config_apply(
        model=model, document=Document.read(CONFIG.replace("max_batch_size: 8", "max_batch_size: 2")), actor=actor
    )
    assert going_back(model, never).refusals == ["it was never live; make its version live, or edit the configuration"]
    assert way_back(model).number == 1
    with pytest.raises(Conflict, match="release 2 of 'relu' cannot come back: it was never live"):
        release_go_back(model=model, release=never, actor=actor)


def test_where_a_version_is_gone_it_is_refused_before(
    model: Model, published: Callable[..., Version], actor: Actor
) -> None:
    for number in (2, 3, 4):
        published(load=True, config_text=f"{CONFIG}# {number}\n")
        serve(model)
    first = Version.objects.get(number=1)
    version_archive(version=first, actor=actor)
    found = going_back(model, release_get(model, 1))
    assert found.refusals == ["version 1 is archived; restore it first"]
    first.delete()
    assert going_back(model, release_get(model, 1)).refusals == ["version 1 is not there any more"]


def test_what_is_wanted_already_needs_no_going_back(model: Model, actor: Actor) -> None:
    assert going_back(model, release_get(model, 1)).refusals == ["it is what is wanted already"]
    with pytest.raises(Conflict, match="no earlier release"):
        release_go_back(model=model, actor=actor)


def test_while_the_wanted_release_has_not_served_the_way_back_is_what_serves(model: Model, actor: Actor) -> None:
    config_apply(model=model, document=Document.read(SMALLER), actor=actor)
    assert way_back(model).number == 1
    serve(model)
    assert way_back(model).number == 1
    release_go_back(model=model, actor=actor)
    assert way_back(model).number == 2  # and forth again
    assert Document.read(newest_release(model).text).text == CONFIG


def test_going_back_loads_a_model_that_was_unloaded(model: Model, actor: Actor) -> None:
    config_apply(model=model, document=Document.read(SMALLER), actor=actor)
    model_unload(model=model, actor=actor)
    release_go_back(model=model, actor=actor)
    model.refresh_from_db()
    assert (model.desired_state, wanted_versions(model)) == ("loaded", [1])


def test_what_serves_is_wanted_named_or_the_way_back_is_not_archived(
    model: Model, published: Callable[..., Version], actor: Actor, api: APIClient
) -> None:
    published(load=True)
    serve(model)
    third = published(load=True)
    published()
    why = protected_versions(model)
    assert "live" in why[2]
    assert "wanted by release 3" in why[3]
    assert 1 not in why
    api.put("/api/v1/models/relu/aliases", {"aliases": {"candidate": 4}}, format="json")
    assert "called 'candidate'" in protected_versions(model)[4] or "wanted" in protected_versions(model)[4]
    release_promote(version=third, actor=actor)
    serve(model)
    assert "needed to go back to release 2" in protected_versions(model)[2]
    for number in (2, 3, 4):
        with pytest.raises(Conflict):
            version_archive(version=Version.objects.get(number=number), actor=actor)
        assert api.post(f"/api/v1/models/relu/versions/{number}/archive").status_code == 409
        assert api.get(f"/api/v1/models/relu/versions/{number}").json()["protected"]
    assert api.post("/api/v1/models/relu/versions/1/archive").json()["state"] == "archived"


def test_the_editors_text_has_no_stamp(model: Model, api: APIClient) -> None:
    assert current_document(model).text == CONFIG == api.get("/api/v1/models/relu/config").json()["text"]


def test_the_page_says_which_release_failed_and_which_serves(
    model: Model, actor: Actor, as_person: Callable[..., Client]
) -> None:
    server = Server.objects.get()
    ModelState.objects.create(server=server, model_name="relu", version=1, state="READY")
    config_apply(model=model, document=Document.read(SMALLER), actor=actor)
    ModelSync.objects.create(server=server, model=model, error="no room for it")
    page = text_of(as_person("operate"), "/models/relu/")
    assert "Release 2</a> failed: No room for it." in page
    assert "Release 1</a> keeps serving, with version 1." in page
    assert "Go back to release 1" in page


def test_many_restarts_do_not_hide_the_way_back(model: Model, actor: Actor) -> None:
    config_apply(model=model, document=Document.read(SMALLER), actor=actor)
    second, server = serve(model), Server.objects.get()
    now = timezone.now()
    ReleaseSpan.objects.bulk_create(
        ReleaseSpan(release=second, model=model, server=server, started_at=now, ended_at=now) for _ in range(600)
    )
    assert [release.number for release in last_good(model)] == [2, 1]
    assert way_back(model).number == 1


def test_what_a_person_changed_on_disk_is_said_before_anything_is_asked_for(
    model: Model, published: Callable[..., Version], inspected: Callable[..., Upload], as_person: Callable[..., Client]
) -> None:
    published(load=True)
    upload = inspected()
    pages = ("/models/relu/releases/1/", "/models/relu/versions/1/live", f"/uploads/{upload.pk}/")
    said, person = "was changed on disk: adopt that text or overwrite it first", as_person()
    person.force_login(upload.user)
    assert all(said not in text_of(person, page) for page in pages)
    file = Path(settings.MODEL_REPOSITORY, "relu", "config.pbtxt")
    file.write_text(file.read_text() + "# by hand\n")
    assert not going_back(model, release_get(model, 1)).works
    assert all(said in text_of(person, page) for page in pages)
    assert 'id="publish" form="publish-form" disabled' in text_of(person, pages[2])


def test_what_the_address_does_not_say_is_not_passed_over(
    model: Model, published: Callable[..., Version], api: APIClient
) -> None:
    published(load=True)
    refused = api.post("/api/v1/models/relu/go_back", {"release": 1}, format="json")
    assert (refused.status_code, newest_release(model).number) == (400, 2)
    assert "takes no fields" in refused.json()["error"]


def test_of_several_versions_one_that_fails_a_golden_request_stands_for_all(model: Model, actor: Actor) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    given: dict[str, Any] = {"request": {"inputs": [tensor]}, "expected": {"outputs": [{**tensor, "name": "y"}]}}
    example_create(model=model, actor=actor, name="ones", golden=True, **given)
    checks = [{"name": "ones", "version": number, "passed": number != 2} for number in (1, 2, 3)]
    outcomes_of_check(release=release_get(model, 1), steps=[{"step": "golden", "checks": checks}])
    kept = model.examples.get().outcome
    assert (kept["passed"], kept["version"]) == (False, "2")
