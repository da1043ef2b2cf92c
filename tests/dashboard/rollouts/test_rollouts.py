"""A rollout moves a model's requests from one version to another, release by release, and back; other releases keep to it or
end it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.catalog.selectors import model_summary
from dashboard.catalog.services import model_unload
from dashboard.configuration.drift import drift_adopt
from dashboard.configuration.services import config_apply
from dashboard.models import AuditEntry, Model, ModelState, Release, Rollout, Server, Version
from dashboard.releases import life
from dashboard.releases import rollout_states as states
from dashboard.releases.selectors import current_document, newest_release, protected_versions, wanted_release, way_back
from dashboard.releases.storage import managed_repository, on_disk
from dashboard.rollouts.services import (
    rollout_abort,
    rollout_advance,
    rollout_keep_old,
    rollout_pause,
    rollout_promote,
    rollout_resume,
    rollout_roll_back,
    rollout_start,
    rollout_unload_old,
)
from dashboard.servers.server_state import server_lost
from dashboard.shared.exceptions import Conflict, DashboardError, Forbidden, Invalid, WrongState
from dashboard.versions.moves import version_archive
from dashboard.versions.services import aliases_set, release_go_back, release_promote
from dashboard.versions.timeline import timeline
from repository.config.document import Document
from tests.dashboard.conftest import text_of
from tests.dashboard.rollouts.conftest import served

pytestmark = pytest.mark.django_db

STEPS = {"steps": [{"weight": 5, "bake_s": 0}, {"weight": 50, "bake_s": 0}]}
FASTAPI = {
    "url": "http://fastapi:80/predict",
    "protocol": "json",
    "request": {"x": "$x"},
    "response": {"y": "y"},
}


def stands(model: Model) -> tuple[list[int], int, dict[str, float]]:
    """The newest release: its versions, the one that answers, the shares. Its text lies on disk."""
    release = newest_release(model)
    assert on_disk(model.name).text == release.text
    assert bool(release.traffic) == (release.document.traffic is not None)
    return release.versions, release.answers, release.traffic


def start(model: Model, actor: Actor, **more: Any) -> Rollout:
    return rollout_start(model=model, actor=actor, **{"candidate": 2, "plan": STEPS, **more})


def test_a_canary_goes_step_by_step_to_its_promotion_and_the_old_version_leaves_last(model: Model, actor: Actor):
    rollout = start(model, actor)
    assert stands(model) == ([1, 2], 1, {"1": 95, "2": 5})
    assert newest_release(model).rollout == rollout
    assert newest_release(model).kind == "rollout"
    rollout = rollout_advance(rollout=rollout, actor=actor)
    assert stands(model) == ([1, 2], 1, {"1": 50, "2": 50})
    assert (rollout.state, rollout.step) == ("running", 1)
    with pytest.raises(Conflict, match="at its last step: promote it, or abort it"):
        rollout_advance(rollout=rollout, actor=actor)
    rollout = rollout_promote(rollout=rollout, actor=actor)
    assert stands(model) == ([1, 2], 2, {})
    assert rollout.state == "holding"
    assert 6 < (rollout.hold_until - timezone.now()).total_seconds() / 86400 < 7.01
    rollout = rollout_keep_old(rollout=rollout, actor=actor, days=30)
    assert (rollout.hold_until - timezone.now()).days in (29, 30)
    rollout = rollout_unload_old(rollout=rollout, actor=actor)
    assert stands(model) == ([2], 2, {})
    assert (rollout.state, rollout.reason) == ("done", "Version 1 was unloaded.")
    done = AuditEntry.objects.filter(action__startswith="rollout.").order_by("pk").values_list("action", flat=True)
    assert list(done) == [f"rollout.{verb}" for verb in ("start", "advance", "promote", "keep_old", "unload_old")]


@pytest.mark.parametrize("until", ["running", "paused", "holding"])
def test_aborting_brings_back_the_text_of_before(model: Model, actor: Actor, until: str):
    before = Document.read(newest_release(model).text).text
    rollout = start(model, actor)
    if until == "paused":
        rollout_pause(rollout=rollout, actor=actor)
    if until == "holding":
        rollout_promote(rollout=rollout, actor=actor)
    rollout = rollout_abort(rollout=rollout, actor=actor)
    assert Document.read(newest_release(model).text).text == before
    assert stands(model) == ([1], 1, {})
    assert (rollout.state, rollout.reason, rollout.ended_by_name) == ("aborted", "Aborted by olga.", "olga")


def test_a_breach_rolls_back_with_its_reason(model: Model, actor: Actor):
    rollout = rollout_roll_back(
        rollout=start(model, actor), reason="12 % of its answers are errors, of version 1 0.1 %"
    )
    assert stands(model) == ([1], 1, {})
    assert (rollout.state, rollout.reason) == ("rolled_back", "12 % of its answers are errors, of version 1 0.1 %.")
    assert newest_release(model).summary.startswith("Rolled back to version 1: 12 % of its")


def test_an_edit_keeps_to_the_rollout_and_stays_when_that_is_aborted(model: Model, actor: Actor):
    rollout, base = start(model, actor), newest_release(model)
    edited = current_document(model).text + "dynamic_batching { }\n"
    rollout = rollout_advance(rollout=rollout, actor=actor)  # meanwhile: a step is no edit of somebody else
    config_apply(model=model, document=Document.read(edited), actor=actor, base_release=base.number)
    assert stands(model) == ([1, 2], 1, {"1": 50, "2": 50})
    assert newest_release(model).rollout == rollout
    rollout_abort(rollout=rollout, actor=actor)
    assert stands(model) == ([1], 1, {})
    assert "dynamic_batching" in current_document(model).text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text.replace(r"\"weight\": 5", r"\"weight\": 50"), "is decided by rollout r-"),
        (lambda text: text.replace("slipway.traffic", "slipway.other"), "is decided by rollout r-"),
        (
            lambda text: text.replace(r"\"candidate\": 2", r"\"candidate\": 3"),
            "which the version policy does not serve",
        ),
        (lambda text: text.replace(r"\"default\": 1", r"\"default\": 2"), "which the alias 'default' means"),
    ],
)
def test_an_edit_does_not_change_what_a_rollout_decides(model: Model, actor: Actor, change: Any, sentence: str):
    start(model, actor)
    text = change(current_document(model).text)
    assert text != current_document(model).text
    with pytest.raises((Conflict, Invalid), match=sentence):
        config_apply(model=model, document=Document.read(text), actor=actor)


def test_making_another_version_live_or_going_back_ends_the_rollout(
    model: Model, actor: Actor, published: Callable[..., Version], server: Server
):
    third = published()
    rollout = start(model, actor)
    served(model, server)
    release_promote(version=third, actor=actor)
    rollout.refresh_from_db()
    assert stands(model) == ([3], 3, {})
    assert (rollout.state, rollout.ended_by_name) == ("aborted", "olga")
    assert rollout.reason == f"olga made release {newest_release(model).number}: Made version 3 live."
    another = start(model, actor)
    assert way_back(model).traffic == {}
    release_go_back(model=model, actor=actor)
    another.refresh_from_db()
    assert another.state == "aborted"
    assert newest_release(model).traffic == {}


def test_what_is_made_live_after_a_promotion_ends_the_hold_and_takes_nothing_back(
    model: Model, actor: Actor, published: Callable[..., Version]
):
    rollout = rollout_promote(rollout=start(model, actor), actor=actor)
    release_promote(version=published(), actor=actor)
    rollout.refresh_from_db()
    assert (rollout.state, stands(model)) == ("done", ([3], 3, {}))
    assert rollout.reason.endswith("Made version 3 live; version 1 is not held any more.")
    rollout = rollout_promote(rollout=start(model, actor), actor=actor)
    release_promote(version=model.versions.get(number=3), actor=actor)
    rollout.refresh_from_db()
    assert rollout.state == "aborted"


def test_making_the_candidate_live_finishes_the_rollout(model: Model, actor: Actor):
    rollout = start(model, actor)
    release_promote(version=model.versions.get(number=2), actor=actor)
    rollout.refresh_from_db()
    assert (rollout.state, stands(model)) == ("done", ([2], 2, {}))


def test_going_back_to_a_step_of_a_rollout_brings_no_share_back(model: Model, actor: Actor, server: Server):
    rollout = start(model, actor)
    step = newest_release(model)
    served(model, server)
    rollout_abort(rollout=rollout, actor=actor)
    release_go_back(model=model, actor=actor, release=step)
    assert stands(model) == ([1, 2], 1, {})
    assert Rollout.objects.get().state == "aborted"


def test_the_way_back_leads_to_what_was_before_the_rollout(model: Model, actor: Actor, server: Server):
    before = wanted_release(model)
    rollout = start(model, actor)
    for act in (
        lambda: rollout_advance(rollout=rollout, actor=actor),
        lambda: rollout_promote(rollout=rollout, actor=actor),
    ):
        served(model, server)
        assert way_back(model) == before
        act()
    served(model, server)
    assert way_back(model) == before


def test_no_way_back_leads_to_a_version_that_was_taken_out_since(model: Model, actor: Actor, server: Server):
    release_promote(version=model.versions.get(number=2), actor=actor)
    served(model, server)
    bad = newest_release(model)
    release_promote(version=model.versions.get(number=1), actor=actor)
    served(model, server)
    assert way_back(model) == bad
    rollout_roll_back(rollout=start(model, actor), reason="it fails")
    served(model, server)
    assert way_back(model) is None
    with pytest.raises(Conflict, match="no earlier release to go back to"):
        release_go_back(model=model, actor=actor)
    release_promote(version=model.versions.get(number=2), actor=actor)  # somebody knows better
    served(model, server)
    release_promote(version=model.versions.get(number=1), actor=actor)
    assert way_back(model).versions == [2]


def test_the_default_name_stays_where_it_is_while_others_move(model: Model, actor: Actor):
    start(model, actor)
    with pytest.raises(Conflict, match="version 1 is the stable one of rollout r-"):
        aliases_set(model=model, aliases={"default": 2}, actor=actor)
    aliases_set(model=model, aliases={"champion": 2}, actor=actor)
    assert stands(model) == ([1, 2], 1, {"1": 95, "2": 5})
    assert Rollout.objects.get().state == "running"


def test_arms_and_what_is_held_are_not_archived(model: Model, actor: Actor):
    rollout = start(model, actor)
    first, second = (model.versions.get(number=number) for number in (1, 2))
    assert "the stable one of rollout" in protected_versions(model)[1]
    with pytest.raises(Conflict, match=r"is the candidate of rollout r-.*promote or abort the rollout first"):
        version_archive(version=second, actor=actor)
    rollout_promote(rollout=rollout, actor=actor)
    with pytest.raises(Conflict, match="version 1 of 'relu' is held to roll back to; unload it first"):
        version_archive(version=first, actor=actor)


def test_what_has_a_name_stays_loaded_after_its_time(model: Model, actor: Actor):
    aliases_set(model=model, aliases={"champion": 1}, actor=actor)
    rollout = rollout_promote(rollout=start(model, actor), actor=actor)
    rollout = rollout_unload_old(rollout=rollout, actor=SYSTEM)
    assert (rollout.state, rollout.reason) == ("done", "Version 1 stays loaded, for it is called 'champion'.")
    assert newest_release(model).versions == [1, 2]


def test_nothing_is_held_where_the_plan_says_so(model: Model, actor: Actor):
    rollout = rollout_promote(rollout=start(model, actor, plan={**STEPS, "hold_days": 0}), actor=actor)
    assert (rollout.state, stands(model)) == ("done", ([2], 2, {}))


def test_another_rollout_lets_go_what_the_last_one_held(model: Model, actor: Actor, published: Callable[..., Version]):
    published()
    first = rollout_promote(rollout=start(model, actor), actor=actor)
    start(model, actor, candidate=3)
    first.refresh_from_db()
    assert (first.state, stands(model)) == ("done", ([2, 3], 2, {"2": 95, "3": 5}))


def test_a_paused_rollout_takes_no_step_until_it_is_resumed(model: Model, actor: Actor):
    rollout = rollout_pause(rollout=start(model, actor), actor=actor)
    with pytest.raises(WrongState, match=r"is paused at 5 % of requests by now"):
        rollout_advance(rollout=rollout, actor=actor)
    rollout = rollout_resume(rollout=rollout, actor=actor)
    assert rollout_advance(rollout=rollout, actor=actor).step == 1


def test_of_two_who_take_the_same_step_one_does(model: Model, actor: Actor):
    rollout = start(model, actor, plan=None)
    rollout_advance(rollout=rollout, actor=actor, step=0)
    with pytest.raises(WrongState, match=r"running at 25 % of requests by now: look at it again"):
        rollout_advance(rollout=rollout, actor=SYSTEM, step=0)
    assert newest_release(model).traffic == {"1": 75, "2": 25}


def test_a_shadow_answers_nobody_and_is_stopped_in_the_end(model: Model, actor: Actor):
    rollout = start(model, actor, kind="shadow", plan={"shadow": {"share": 20, "keep": False}})
    assert stands(model) == ([1, 2], 1, {"1": 100, "2": 0})
    assert current_document(model).traffic["shadow"] == {"share": 20, "keep": False}
    rollout = rollout_abort(rollout=rollout, actor=actor)
    assert (rollout.state, rollout.reason, stands(model)) == ("done", "Stopped by olga.", ([1], 1, {}))


def test_a_version_that_clients_could_ask_stays_live_while_it_is_shadowed(model: Model, actor: Actor, server: Server):
    pinned = current_document(model).pinned([1, 2], model.published_numbers())
    both = pinned.with_aliases({"champion": 2, "default": 1})
    config_apply(model=model, document=both, actor=actor)
    served(model, server)
    assert model_summary(model).wanted_versions == [1, 2]
    start(model, actor, kind="shadow", plan={"shadow": {"share": 20, "keep": False}})
    served(model, server)
    assert model_summary(model).rollout is not None
    assert model_summary(model).wanted_versions == [1, 2]


def test_a_shadow_is_no_wanted_version_before_it_serves_and_while_its_server_is_down(
    model: Model, actor: Actor, server: Server, as_person: Callable[..., Client]
):
    start(model, actor, kind="shadow", plan={"shadow": {"share": 20, "keep": False}})
    assert model_summary(model).wanted_versions == [1], "it is being loaded"
    served(model, server)
    ModelState.objects.create(server=server, model_name="relu", version=2, state="READY")
    assert model_summary(model).live_versions == [1]
    life.lost(server=server, at=timezone.now())
    server_lost(server=server, reason="it ended")
    summary = model_summary(model)
    assert (summary.live_versions, summary.wanted_versions, summary.rollout) == ([], [1], None)
    page = text_of(as_person("operate"), "/models/relu/")
    assert "Nothing live, 1 wanted since" in page
    assert "requests are also asked" not in page
    assert "Roll out…" not in text_of(as_person("operate"), "/models/relu/versions")


def test_another_server_can_be_the_candidate_or_the_stable_one(model: Model, actor: Actor, remotes: Path):
    rollout = start(model, actor, candidate=FASTAPI)
    assert stands(model) == ([1], 1, {"1": 95, FASTAPI["url"]: 5})
    with pytest.raises(Conflict, match="is on another server: publish it here first"):
        rollout_promote(rollout=rollout, actor=actor)
    rollout_abort(rollout=rollout, actor=actor)
    rollout = start(model, actor, stable=FASTAPI)
    assert stands(model) == ([1, 2], 1, {FASTAPI["url"]: 95, "2": 5})
    rollout_abort(rollout=rollout, actor=actor)  # back is where it came from: the other server answers
    assert stands(model) == ([1, 2], 1, {FASTAPI["url"]: 100, "2": 0})
    rollout = rollout_promote(rollout=start(model, actor, stable=FASTAPI, candidate=1), actor=actor)
    assert (rollout.state, stands(model)) == ("done", ([1, 2], 1, {}))


@pytest.mark.parametrize(
    ("given", "field", "sentence"),
    [
        ({"candidate": 7}, "candidate", "there is no published version 7 of 'relu': publish or restore it first"),
        ({"candidate": 1}, "candidate", "version 1 answers already: choose another version"),
        ({"kind": "blue"}, "kind", "expected 'kind' to be one of shadow, canary, ab"),
        ({"plan": {"step": []}}, "step", "expected steps, promote, "),
        ({"plan": {"steps": []}}, "steps", "a list of 1 to 50 steps such as"),
        ({"plan": {"steps": [{"weight": 50}, {"weight": 5}]}}, "steps", "grow from step to step"),
        ({"plan": {"steps": [{"weight": 500}]}}, "steps[0].weight", "per cent of the requests, from 0 to 100 with"),
        ({"plan": {"steps": [{"weight": 99.99999}]}}, "steps[0].weight", "at most 4 digits behind the point"),
        ({"plan": {"hold_days": -1}}, "hold_days", "from 0 (unload immediately) to 365"),
        ({"plan": {"promote": "later"}}, "promote", "'auto', or 'hand'"),
        ({"plan": {"guardrails": [{"metric": "errors", "margin": 3}]}}, "guardrails", "expected 'margin' to be"),
        ({"plan": {"sticky": {"cookie": "x"}}}, "sticky", "expected 'sticky' to be"),
        ({"kind": "shadow", "plan": {"shadow": {"share": 500}}}, "shadow", "expected 'share' to be"),
        ({"kind": "ab", "plan": {"steps": [{"weight": 100}]}}, "steps", "needs both arms"),
        (
            {"candidate": {"url": "http://x:1/a"}},
            "candidate",
            'is not listed in the file of SLIPWAY_TRAFFIC_REMOTES: add "http',
        ),
        ({"stable": {"url": "http://x:1"}}, "stable", "is not listed"),
        ({"candidate": {"url": "http://host:8000/../a"}}, "candidate", "expected each part of the path to be a name"),
        (
            {"plan": {"guardrails": [{"metric": "prometheus", "url": "http://x", "stable": "a", "candidate": "b"}]}},
            "guardrails[0]",
            "is not listed",
        ),
    ],
)
def test_a_wrong_plan_is_refused_with_its_field_and_the_remedy(
    model: Model, actor: Actor, remotes: Path, given: dict[str, Any], field: str, sentence: str
):
    with pytest.raises(Invalid) as raised:
        start(model, actor, **given)
    assert sentence in raised.value.message
    assert [problem.field for problem in raised.value.problems] == [field]
    assert not Rollout.objects.exists()


def test_no_other_server_is_named_while_none_is_listed(model: Model, actor: Actor):
    with pytest.raises(Invalid, match="none may be called: start the dashboard with SLIPWAY_TRAFFIC_REMOTES=FILE"):
        start(model, actor, candidate=FASTAPI)


def test_a_version_that_refuses_what_the_live_one_answers_is_no_candidate(model: Model, actor: Actor):
    row = Version.objects.get(model=model, number=2)
    known = Version.objects.get(model=model, number=1).signature
    changed = {
        "it has no input 'x'; it needs the input 'z' too": {**known, "inputs": [{**known["inputs"][0], "name": "z"}]},
        "its input 'x' is INT64, not FP32": {**known, "inputs": [{**known["inputs"][0], "datatype": "INT64"}]},
        "it has no output 'y'": {**known, "outputs": [{**known["outputs"][0], "name": "score"}]},
    }
    for clause, signature in changed.items():
        row.signature = signature  # type: ignore[assignment]  # as a file of another make has it
        row.save()
        with pytest.raises(Invalid, match="would refuse requests that version 1 answers") as raised:
            start(model, actor)
        assert clause in raised.value.message
    more = [*known["inputs"], {**known["inputs"][0], "name": "threshold", "optional": True}]
    row.signature = {**known, "inputs": more, "outputs": []}  # type: ignore[typeddict-item]
    row.save()
    start(model, actor)


def test_a_rollout_begins_only_where_something_serves_and_no_other_is_under_way(
    model: Model, actor: Actor, person: Any
):
    with pytest.raises(Forbidden):
        start(model, Actor(user=person()))
    start(model, actor)
    with pytest.raises(Conflict, match="is under way: promote or abort it first"):
        start(model, actor)
    rollout_abort(rollout=Rollout.objects.get(), actor=actor)
    model_unload(model=model, actor=actor)
    with pytest.raises(Conflict, match="load it, so that there is a stable version"):
        start(model, actor)


def _acts(rollout: Rollout, actor: Actor) -> dict[str, Callable[[], object]]:
    return {
        "advance": lambda: rollout_advance(rollout=rollout, actor=actor),
        "promote": lambda: rollout_promote(rollout=rollout, actor=actor),
        "abort": lambda: rollout_abort(rollout=rollout, actor=actor),
        "roll_back": lambda: rollout_roll_back(rollout=rollout, reason="why"),
        "unload_old": lambda: rollout_unload_old(rollout=rollout, actor=actor),
    }


@pytest.mark.parametrize("act", ["start", "advance", "promote", "abort", "roll_back", "unload_old"])
def test_a_process_killed_between_text_and_commit_has_done_nothing(
    model: Model, actor: Actor, act: str, monkeypatch: pytest.MonkeyPatch
):
    """The text is on disk, and the transaction never ended: what comes next takes it back and does the whole."""
    rollout = None if act == "start" else start(model, actor)
    if act == "unload_old":
        rollout = rollout_promote(rollout=rollout, actor=actor)
    before, state = newest_release(model), rollout and rollout.state

    def do() -> object:
        return start(model, actor) if rollout is None else _acts(rollout, actor)[act]()

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("dashboard.releases.services.generation_bump", killed)
        with pytest.raises(Killed):
            do()
    assert newest_release(model) == before
    assert on_disk(model.name).text != before.text
    assert [row.state for row in Rollout.objects.all()] == ([state] if state else [])
    do()
    assert on_disk(model.name).text == newest_release(model).text
    assert newest_release(model).number == before.number + 1
    assert AuditEntry.objects.filter(action="release.take_back").count() == 1


@pytest.mark.parametrize(
    ("policy", "default", "state", "shares"),
    [
        ({"weight": 77, "min_samples": 1}, 1, "running", {"1": 95, "2": 5}),  # the rollout decides its policy
        (None, 1, "aborted", {}),
        ({"rollout": "mine", "weight": 20}, 1, "aborted", {"1": 80, "2": 20}),
        ({"candidate": 1}, 2, "done", {}),  # the candidate answers by default
    ],
)
def test_a_text_that_is_adopted_in_the_middle_leaves_rollout_and_release_alike(
    model: Model, actor: Actor, policy: dict[str, Any] | None, default: int, state: str, shares: dict[str, float]
):
    rollout = start(model, actor)
    now = on_disk(model.name).document
    edited = now.with_traffic({**(now.traffic or {}), **policy} if policy is not None else None)
    managed_repository().config_path(model.name).write_text(edited.with_aliases({"default": default}).text)
    release = drift_adopt(model=model, actor=actor)
    rollout.refresh_from_db()
    assert (rollout.state, release.traffic) == (state, shares)
    assert (release.rollout == rollout) == (state == "running")
    assert on_disk(model.name).text == release.text


def test_a_file_that_was_changed_by_hand_stops_a_rollout_with_a_sentence(model: Model, actor: Actor, data_folder: Any):
    rollout = start(model, actor)
    (data_folder / "models" / "relu" / "config.pbtxt").write_text("max_batch_size: 1\n")
    with pytest.raises(DashboardError, match="changed on disk"):
        rollout_advance(rollout=rollout, actor=actor)
    assert Release.objects.filter(model=model).count() == newest_release(model).number


def test_aborting_writes_over_what_was_changed_by_hand_and_keeps_it_in_the_audit_trail(
    model: Model, actor: Actor, data_folder: Path
):
    before = Document.read(newest_release(model).text).text
    rollout = start(model, actor)
    (data_folder / "models" / "relu" / "config.pbtxt").write_text("max_batch_size: 1\n")
    assert rollout_abort(rollout=rollout, actor=actor).state == "aborted"
    assert Document.read(on_disk("relu").text or "").text == before
    entry = AuditEntry.objects.get(action="drift.overwrite")
    assert (entry.before, entry.actor_name) == ({"text": "max_batch_size: 1\n"}, "olga")


def test_no_step_leads_to_a_candidate_whose_files_are_gone(model: Model, actor: Actor, data_folder: Path):
    rollout = start(model, actor)
    (data_folder / "models" / "relu" / "2" / "model.onnx").unlink()
    for step in (rollout_advance, rollout_promote):
        with pytest.raises(Conflict, match=r"version 2 of 'relu' lacks 2/model.onnx on disk: put it back, or abort"):
            step(rollout=rollout, actor=actor)
    assert rollout_abort(rollout=rollout, actor=actor).state == "aborted"
    with pytest.raises(Invalid, match=r"lacks 2/model.onnx on disk: put it back, or choose another one"):
        start(model, actor)


def test_the_timeline_says_which_share_of_the_requests_each_version_had(model: Model, actor: Actor, server: Server):
    rollout = start(model, actor)
    served(model, server)
    rollout_promote(rollout=rollout, actor=actor)
    served(model, server)
    rows = {row.version: [(bar.shares, bar.rollout) for bar in row.bars] for row in timeline(model)[0].rows}
    assert rows == {2: [("5 %, 100 %", rollout.name)], 1: [("100 %", ""), ("95 %, 0 %", rollout.name)]}


def test_of_two_who_read_the_same_step_one_takes_it(model: Model, actor: Actor):
    rollout = rollout_start(model=model, actor=actor, candidate=2)
    one, other = Rollout.objects.get(pk=rollout.pk), Rollout.objects.get(pk=rollout.pk)
    release = newest_release(model)
    states.advance(one, release)
    with pytest.raises(WrongState, match="not running at that step any more"):
        states.advance(other, release)
    assert Rollout.objects.get().step == 1


def test_the_smallest_share_and_the_largest_are_said_as_they_are(model: Model, actor: Actor):
    steps = [{"weight": 0.0001}, {"weight": 99.9999}]
    rollout = start(model, actor, plan={"steps": steps})
    assert rollout.in_words.startswith("0.0001 % of requests")
    assert stands(model)[2] == {"1": 99.9999, "2": 0.0001}
    rollout = rollout_advance(rollout=rollout, actor=actor)
    assert rollout.in_words.startswith("99.9999 % of requests")
    assert stands(model)[2] == {"1": 0.0001, "2": 99.9999}
