"""The state machine: where a release stands follows from the facts that servers told, and from nothing else."""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.catalog.selectors import model_summary
from dashboard.catalog.services import model_load, model_unload
from dashboard.configuration.services import config_apply
from dashboard.models import Model, ModelSync, Release, ReleaseCheck, ReleaseSpan, Server, ServerEvent, Version
from dashboard.releases import life
from dashboard.releases.life import Facts, state_of
from dashboard.releases.loading import Ask, load_plans, needs_another_load
from dashboard.releases.observation import checks_observed, releases_observed
from dashboard.releases.selectors import lives_of, releases, serving_release
from dashboard.servers.server_state import Report, VersionStatus, model_states_record, model_sync_failed
from dashboard.shared.choices import CheckState, ReleaseState
from dashboard.versions.services import aliases_set
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG

pytestmark = pytest.mark.django_db

FAILED, PASSED, RUNNING = CheckState.FAILED, CheckState.PASSED, CheckState.RUNNING


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    return published(load=True).model


def edit(model: Model, actor: Actor, count: int) -> Release:
    return config_apply(
        model=model, document=Document.read(f"{CONFIG}instance_group [ {{ count: {count} }} ]\n"), actor=actor
    )


def states(model: Model) -> list[str]:
    """The newest first."""
    model.refresh_from_db()
    return [str(row.state) for row in lives_of(releases(model))]


def said(server: Server, *rows: VersionStatus) -> None:
    releases_observed([Report(server, rows)])


def ready(release: int, version: int = 1) -> VersionStatus:
    return VersionStatus("relu", version, "READY", "", release=release)


def test_what_loads_on_several_servers_come_to_is_recorded_together(model: Model, actor: Actor, server: Server) -> None:
    first, second = releases(model)[0], edit(model, actor, 2)
    far = Server.objects.create(
        name="far", http_url="http://far:8000", grpc_url="far:8001", metrics_url="http://far:8002"
    )
    asks = [Ask(model.pk, one, serves) for one in (server, far) for serves in (False, True)]
    life.passed(release=first, server=server)
    life.serving(server=server, releases={model.pk: first.pk})
    plans = [plan for plan in load_plans([*asks, Ask(0, far, False)]) if plan is not None]
    # The releases that the bundled server served count for a server that has served nothing yet.
    assert [[one.pk for one in plan.good] for plan in plans] == [[first.pk], [], [first.pk], []]
    assert {plan.wanted for plan in plans} == {second}
    before = life.all_began([life.Begun(second, server), life.Begun(second, far), life.Begun(first, server)])
    assert [check and check.state for check in before] == [None, None, PASSED]
    life.failed(release=second, server=far, error="no room")
    life.all_began([life.Begun(second, server), life.Begun(second, far, again=True)])
    assert set(ReleaseCheck.objects.filter(release=second).values_list("server__name", "state")) == {
        ("local", RUNNING),
        ("far", FAILED),
    }
    life.all_passed([life.Passed(second, server), life.Passed(second, far)])
    assert {(row.state, row.attempts) for row in ReleaseCheck.objects.filter(release=second)} == {(PASSED, 0)}
    releases_observed([Report(far, [ready(second.number)], {"relu"}), Report(server, [], {"other"})])
    spans = ReleaseSpan.objects.filter(ended_at=None).values_list("server__name", "release")
    assert set(spans) == {("local", first.pk), ("far", second.pk)}
    releases_observed([Report(server, [ready(second.number)], {"relu"}), Report(far, [], {"relu"})])
    assert set(spans.all()) == {("local", second.pk)}


def test_every_combination_of_facts_has_one_state() -> None:
    checks = [None, *(ReleaseCheck(state=state) for state in (RUNNING, PASSED, FAILED))]
    switches = itertools.product((True, False), repeat=5)
    for (newest, loaded, wanted, serves, served), check in itertools.product(switches, checks):
        state = state_of(Facts(newest, loaded, wanted, serves, served or serves, check))
        assert (state == ReleaseState.SERVING) == serves
        if not serves:
            assert (state == ReleaseState.CHECKING) == (check is not None and check.state == RUNNING)
            assert state != ReleaseState.WANTED or wanted
            assert state != ReleaseState.HELD or (newest and loaded and not wanted)
            assert state != ReleaseState.SERVED or not wanted
            assert state != ReleaseState.SKIPPED or not newest
            assert state != ReleaseState.FAILED or (check is not None and check.state == FAILED)


def test_a_release_is_wanted_checked_live_and_replaced(model: Model, actor: Actor, server: Server) -> None:
    first = releases(model)[0]
    assert states(model) == ["wanted"]
    life.began(release=first, server=server)
    assert states(model) == ["checking"]
    life.passed(release=first, server=server, steps=[{"step": "load", "ms": 12.5}])
    said(server, ready(1))
    assert states(model) == ["serving"]
    second = edit(model, actor, 2)
    life.began(release=second, server=server)
    assert states(model) == ["checking", "serving"]
    life.failed(release=second, server=server, error="no room", steps=[{"step": "memory", "failed": True}])
    assert states(model) == ["failed", "serving"]
    edit(model, actor, 3)
    assert states(model) == ["wanted", "failed", "serving"]
    said(server, ready(3))
    assert states(model) == ["serving", "failed", "served"]
    assert lives_of(releases(model))[1].error == "no room"


def test_a_failed_release_stays_failed_while_it_is_tried_again_by_itself(
    model: Model, actor: Actor, server: Server
) -> None:
    first = releases(model)[0]
    life.began(release=first, server=server)
    life.failed(release=first, server=server, error="no room")
    life.began(release=first, server=server, again=True)
    assert (states(model), lives_of([first])[0].error) == (["failed"], "no room")
    life.began(release=first, server=server)
    assert states(model) == ["checking"]


def test_a_new_wish_forgets_earlier_failures_and_a_failure_of_an_old_wish_is_not_shown(
    model: Model, actor: Actor, server: Server
) -> None:
    old = model.generation
    fails = partial(model_sync_failed, server=server, model_id=model.pk, attempts=1, error="no room")
    fails(generation=old, error="no room: 17.2 GiB")
    fails(generation=old)
    fails(generation=old, error="no room: 17 GiB")
    assert ServerEvent.objects.count() == 3
    fails(generation=old, error="no room: 16.8 GiB")
    assert ServerEvent.objects.count() == 3, "a retry that tells another number is no news"
    fails(generation=old)
    assert model_summary(model).state == "failed"
    model_states_record([Report(server, [VersionStatus("relu", 1, "LOADING", "")])])
    assert model_summary(model).reason == "no room", "it is tried again, and the page does not jump"
    edit(model, actor, 2)
    fails(generation=old)
    assert model_summary(model).state == "loading"


def test_a_load_under_way_goes_on_where_what_came_since_is_changed_in_place(
    model: Model, actor: Actor, server: Server, published: Callable[..., Version]
) -> None:
    def broken_off() -> bool:
        return needs_another_load(model_id=model.pk, loading=first)

    first = releases(model)[0]
    assert broken_off(), "somebody asked for it once more"
    aliases_set(model=model, actor=actor, aliases={"champion": 1})
    assert not broken_off()
    published()
    aliases_set(model=model, actor=actor, aliases={"champion": 1, "candidate": 2})
    assert not broken_off(), "one more version is loaded beside it"
    config_apply(
        model=model, document=Document.read(CONFIG.replace("max_batch_size: 8", "max_batch_size: 4")), actor=actor
    )
    assert broken_off()


def test_unloading_ends_a_span_and_loading_begins_another_of_the_same_release(
    model: Model, actor: Actor, server: Server
) -> None:
    said(server, ready(1))
    model_unload(model=model, actor=actor)
    said(server, VersionStatus("relu", 1, "UNAVAILABLE", "unloaded", "unloaded"))
    assert states(model) == ["idle"]
    model_load(model=model, actor=actor)
    assert states(model) == ["wanted"]
    said(server, ready(1))
    assert [span.ended_at is None for span in ReleaseSpan.objects.all()] == [True, False]
    assert states(model) == ["serving"]


def test_what_was_replaced_before_it_served_was_skipped(model: Model, actor: Actor) -> None:
    edit(model, actor, 2)
    assert states(model) == ["wanted", "skipped"]


def test_a_lost_server_serves_nothing(model: Model, server: Server) -> None:
    said(server, ready(1))
    life.lost(server=server, at=timezone.now())
    assert serving_release(model) is None
    assert states(model) == ["wanted"]
    said(server, ready(1))
    assert ReleaseSpan.objects.count() == 2


def test_saying_the_same_again_writes_nothing(model: Model, server: Server) -> None:
    said(server, ready(1))
    before = list(ReleaseSpan.objects.values())
    said(server, ready(1))
    assert list(ReleaseSpan.objects.values()) == before


def test_a_server_that_names_no_release_serves_what_was_loaded_there_last(
    model: Model, actor: Actor, server: Server
) -> None:
    first, second = releases(model)[0], edit(model, actor, 2)
    sync = ModelSync.objects.create(server=server, model=model, release=first)
    said(server, ready(0))
    assert serving_release(model) == first
    sync.release = second
    sync.save()
    said(server, ready(0))
    assert serving_release(model) == second
    ModelSync.objects.update(release=None)
    said(server, ready(0))
    assert serving_release(model) is None


def test_a_server_in_step_since_before_releases_were_recorded_serves_the_newest(model: Model, server: Server) -> None:
    ModelSync.objects.create(server=server, model=model, applied_generation=model.generation)
    said(server, ready(0))
    assert serving_release(model) == releases(model)[0]


def test_a_release_that_nobody_made_here_serves_nothing(model: Model, server: Server) -> None:
    said(server, ready(99), VersionStatus("stranger", 1, "READY", "", release=1))
    assert serving_release(model) is None


def test_a_sleeping_version_serves_and_a_failing_one_does_not(model: Model, server: Server) -> None:
    said(server, VersionStatus("relu", 1, "UNAVAILABLE", "asleep", "asleep", release=1))
    assert states(model) == ["serving"]
    said(server, VersionStatus("relu", 1, "UNAVAILABLE", "no such operator", "asleep", True, release=1))
    assert states(model) == ["wanted"]


def test_the_steps_of_a_check_are_shown_while_it_runs(model: Model, server: Server) -> None:
    release = releases(model)[0]
    life.began(release=release, server=server)
    at = {"release": 1, "step": "golden", "done": 1, "of": 3}
    row = VersionStatus("relu", 1, "LOADING", "", loading=at)  # type: ignore[arg-type]  # a TypedDict from JSON
    checks_observed([Report(server, [row])])
    assert lives_of([release])[0].check.steps == [{"step": "golden", "done": 1, "of": 3}]
    life.passed(release=release, server=server, steps=[{"step": "load", "ms": 1.0}])
    checks_observed([Report(server, [row])])  # an answer that was on its way
    assert lives_of([release])[0].check.steps == [{"step": "load", "ms": 1.0}]


def test_a_check_that_nobody_runs_any_more_has_failed(model: Model, server: Server) -> None:
    life.began(release=releases(model)[0], server=server)
    life.end_abandoned_checks(server=server)
    assert states(model) == ["failed"]


def test_a_server_that_was_not_reached_changes_nothing(model: Model, server: Server) -> None:
    release = releases(model)[0]
    facts = {"release": release, "server": server}
    before = life.began(**facts)  # type: ignore[arg-type]
    life.not_begun(**facts, before=before)  # type: ignore[arg-type]
    assert not ReleaseCheck.objects.exists()
    life.passed(**facts)  # type: ignore[arg-type]
    life.not_begun(**facts, before=life.began(**facts))  # type: ignore[arg-type]
    assert ReleaseCheck.objects.get().state == PASSED


def test_a_release_is_never_changed(model: Model) -> None:
    release = releases(model)[0]
    release.summary = "other"
    with pytest.raises(TypeError, match="immutable"):
        release.save()
