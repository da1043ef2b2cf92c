"""What `watch` does for rollouts by itself, word by word of a server: steps, promotion, breaches, unloading, and what it
keeps."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.models import (
    AuditEntry,
    MetricSample,
    Model,
    ReleaseCheck,
    ReleaseSpan,
    Rollout,
    RolloutFigures,
    RolloutMismatch,
    RolloutSample,
    Server,
    ServerEnvironment,
    ServerEvent,
    ServerState,
)
from dashboard.releases import life
from dashboard.releases.selectors import newest_release
from dashboard.rollouts import figures
from dashboard.rollouts.advance import rollout_look, rollouts_open
from dashboard.rollouts.figures import mismatches_store, rollouts_prune
from dashboard.rollouts.selectors import figures_by_server, history, standing
from dashboard.rollouts.services import (
    mismatches_forget,
    rollout_abort,
    rollout_advance,
    rollout_keep_old,
    rollout_pause,
    rollout_promote,
    rollout_resume,
    rollout_start,
)
from dashboard.shared.exceptions import WrongState
from tests.dashboard.rollouts.conftest import served
from tests.dashboard.rollouts.reports import arm, guardrail, mismatch, rollout_report

pytestmark = pytest.mark.django_db

STEPS = {"steps": [{"weight": 5, "bake_s": 60}, {"weight": 50, "bake_s": 60}]}
BREACH = {"guardrail": 0, "reason": "12 % of version 2's answers are errors", "at": 1.8e9}


@pytest.fixture
def rollout(model: Model, actor: Actor, server: Server) -> Rollout:
    """A canary at its first step, which serves since a moment."""
    rollout = rollout_start(model=model, actor=actor, candidate=2, plan=STEPS)
    served(model, server)
    return rollout


@pytest.fixture
def other(server: Server) -> Server:
    return Server.objects.create(name="other", http_url="http://127.0.0.1:2", grpc_url="", metrics_url="")


def look(server: Server, word: Any = None, instance: str = "a") -> Rollout:
    """`watch` looks, as if it had just started."""
    for rollout in rollouts_open():
        heard = None if word is None else rollout_report(rollout, **word)
        rollout_look(rollout=rollout, server=server, report=heard, instance=instance)
    return Rollout.objects.latest("pk")


def time_passes(model: Model, seconds: float) -> None:
    """Let so many seconds pass, by moving all times back."""
    for span in ReleaseSpan.objects.filter(model=model):
        span.started_at -= timedelta(seconds=seconds)
        span.ended_at = span.ended_at and span.ended_at - timedelta(seconds=seconds)
        span.save()
    for rollout in Rollout.objects.exclude(resumed_at=None):
        Rollout.objects.filter(pk=rollout.pk).update(resumed_at=rollout.resumed_at - timedelta(seconds=seconds))


def test_steps_come_when_their_time_is_over_and_the_last_is_promoted(rollout: Rollout, model: Model, server: Server):
    assert look(server, {"stable": 10}).step == 0
    time_passes(model, 61)
    assert look(server).step == 1
    time_passes(model, 61)
    assert look(server, {}).step == 1  # the new step does not serve yet
    served(model, server)
    time_passes(model, 61)
    assert look(server, {}).state == "holding"
    assert newest_release(model).aliases == {}
    assert look(server).state == "holding"  # for a week
    Rollout.objects.update(hold_until=timezone.now())
    MetricSample.objects.create(server=server, model_name="relu", version=1, resolution=600, at=1.8e9, data=b"")
    done = look(server)
    assert done.state == "done"
    assert done.reason.startswith("Version 1 was unloaded; its last request was at 2027-01-15")
    assert newest_release(model).versions == [2]
    assert set(AuditEntry.objects.filter(actor_name="system").values_list("action", flat=True)) == {
        "rollout.advance",
        "rollout.promote",
        "rollout.unload_old",
    }


def test_a_step_waits_for_the_samples_of_its_guardrails(rollout: Rollout, model: Model, server: Server):
    time_passes(model, 61)
    assert look(server).step == 0  # nothing is told of it
    few = {"guardrails": [guardrail("waiting", samples=12), guardrail(metric="latency"), guardrail(metric="latency")]}
    assert look(server, few).step == 0
    assert standing(rollout).waits_for == "errors (12 of 200 requests to the candidate in 5 min)"
    assert look(server, {"asked_weight": 1}).step == 0  # told of before this step
    assert look(server, {}).step == 1


def test_time_in_which_the_server_was_away_is_no_time_of_a_step(rollout: Rollout, model: Model, server: Server):
    time_passes(model, 30)
    look(server, {})
    life.lost(server=server, at=timezone.now())
    time_passes(model, 3600)
    assert look(server).step == 0
    assert standing(rollout).bake_left is None
    served(model, server)
    assert 25 < standing(rollout).bake_left <= 30
    time_passes(model, 3600)
    ServerState.objects.update_or_create(server=server, defaults={"checked_at": timezone.now() - timedelta(hours=1)})
    assert look(server).step == 0  # nobody looked at it meanwhile


def test_the_time_of_a_step_stands_still_while_it_is_paused(
    rollout: Rollout, model: Model, server: Server, actor: Actor
):
    time_passes(model, 30)
    rollout = rollout_pause(rollout=rollout, actor=actor)
    time_passes(model, 3600)
    assert 25 < standing(rollout).bake_left <= 30
    rollout = rollout_resume(rollout=rollout, actor=actor)
    assert look(server, {}).step == 0
    assert 25 < standing(rollout).bake_left <= 30
    time_passes(model, 31)
    moved = look(server, {})
    assert (moved.step, moved.baked_s, moved.resumed_at) == (1, 0, None)


def test_a_paused_rollout_and_one_that_is_promoted_by_hand_wait_for_a_person(
    rollout: Rollout, model: Model, server: Server, actor: Actor
):
    rollout_pause(rollout=rollout, actor=actor)
    time_passes(model, 3600)
    assert look(server, {}).step == 0
    rollout_abort(rollout=rollout, actor=actor)
    by_hand = rollout_start(model=model, actor=actor, candidate=2, plan={"steps": [{"weight": 50}], "promote": "hand"})
    served(model, server)
    time_passes(model, 3600)
    assert look(server, {}).state == "running"
    rollout_abort(rollout=by_hand, actor=actor)
    rollout_start(model=model, actor=actor, candidate=2, kind="ab")
    served(model, server)
    time_passes(model, 3600)
    assert look(server, {}).state == "running"


@pytest.mark.parametrize("paused", [False, True])
def test_a_breach_on_any_server_ends_the_rollout_with_its_reason(
    rollout: Rollout, model: Model, server: Server, other: Server, actor: Actor, paused: bool
):
    if paused:
        rollout_pause(rollout=rollout, actor=actor)
    look(server, {})
    back = look(other, {"breach": BREACH, "weight": 0})
    assert (back.state, back.reason) == (
        "rolled_back",
        "On server other: 12 % of version 2's answers are errors.",
    )
    assert (newest_release(model).versions, newest_release(model).traffic) == ([1], {})
    event = ServerEvent.objects.get(kind="breached")
    assert (event.server, event.model_name, event.message) == (
        other,
        "relu",
        "Version 2 of relu was taken out: on server other: 12 % of version 2's answers are errors.",
    )
    look(other, {"breach": BREACH, "weight": 0})
    assert ServerEvent.objects.filter(kind="breached").count() == 1


def test_a_step_comes_when_every_server_that_answers_has_served_the_present_one(
    rollout: Rollout, model: Model, server: Server, other: Server
):
    state = ServerState.objects.create(server=other, state="ready")
    time_passes(model, 3600)
    assert look(server, {}).step == 0
    assert standing(rollout).waits_for == "the present one does not serve on other yet"
    served(model, other)
    time_passes(model, 30)
    assert look(server, {}).step == 0
    assert 25 < standing(rollout).bake_left <= 30
    time_passes(model, 31)
    assert look(other, {}).step == 0, "the bundled server is looked at for steps"
    assert look(server, {}).step == 1
    state.state = "unreachable"
    state.save()
    served(model, server)
    time_passes(model, 61)
    assert look(server, {}).state == "holding", "one that is cut off holds up nobody"
    assert [one.name for one, _ in figures_by_server(rollout)] == ["local", "other"]


def test_requests_that_go_to_another_server_are_judged_there(
    rollout: Rollout, model: Model, server: Server, other: Server
):
    time_passes(model, 61)
    assert (
        look(
            server,
            {"guardrails": [guardrail("waiting", samples=0), guardrail(metric="latency"), guardrail(metric="latency")]},
        ).step
        == 0
    )
    look(other, {})
    assert look(server).step == 1
    rollout_promote(rollout=rollout, actor=SYSTEM)
    MetricSample.objects.create(server=server, model_name="relu", version=1, resolution=1, at=1.8e9, data=b"")
    MetricSample.objects.create(server=other, model_name="relu", version=1, resolution=1, at=1.8e9 + 1, data=b"")
    Rollout.objects.update(hold_until=timezone.now())
    assert look(server).reason.endswith("its last request was at 2027-01-15 08:00:01 UTC on server other.")


def test_a_clock_that_is_set_back_does_not_stop_the_history(rollout: Rollout, server: Server):
    look(server, {"stable": 10})
    RolloutSample.objects.update(at=F("at") + 86400)
    look(server, {"stable": 20})
    [sample] = RolloutSample.objects.all()
    assert sample.at <= timezone.now().timestamp()


def test_a_candidate_that_does_not_load_ends_the_rollout(model: Model, actor: Actor, server: Server):
    rollout_start(model=model, actor=actor, candidate=2, plan=STEPS)
    release = newest_release(model)
    life.failed(release=release, server=server, error="version 2: the file is text.")
    assert look(server).state == "running"  # it is tried once more
    life.failed(release=release, server=server, error="version 2: the file is text.")
    back = look(server)
    assert (back.state, back.reason) == ("rolled_back", "Version 2 could not be loaded: version 2: the file is text.")
    assert newest_release(model).versions == [1]
    assert ReleaseCheck.objects.filter(release=release).exists()


def test_a_step_that_a_server_loads_no_more_is_shown_as_trouble(rollout: Rollout, model: Model, server: Server):
    life.lost(server=server, at=timezone.now())
    life.failed(release=newest_release(model), server=server, error="'http://other' is not listed.")
    stuck = look(server)
    assert (stuck.state, stuck.trouble) == ("running", "release 3 could not be loaded: 'http://other' is not listed")
    served(model, server)
    assert look(server).trouble == ""


def test_what_cannot_be_done_is_said_once_and_done_later(
    rollout: Rollout, model: Model, server: Server, data_folder: Any
):
    file = data_folder / "models" / "relu" / "config.pbtxt"
    text = file.read_text()
    file.write_text(text + "max_batch_size: 1\n")
    time_passes(model, 61)
    troubled = look(server, {})
    assert (troubled.step, troubled.state) == (0, "running")
    assert "changed on disk" in troubled.trouble
    file.write_text(text)
    again = look(server)
    assert (again.step, again.trouble) == (1, "")


def test_watch_does_nothing_that_a_person_has_decided_otherwise_since_it_looked(
    rollout: Rollout, model: Model, server: Server, actor: Actor
):
    """Between the moment in which rollouts are read, and the one in which the time of one is found to be over."""

    def look_late() -> Rollout:
        word = None if seen.state == "holding" else rollout_report(seen)
        rollout_look(rollout=seen, server=server, report=word, instance="a")
        return Rollout.objects.get(pk=seen.pk)

    rollout_advance(rollout=rollout, actor=actor)
    served(model, server)
    time_passes(model, 61)
    [seen] = rollouts_open()
    rollout_pause(rollout=rollout, actor=actor)
    assert look_late().state == "paused"
    held = rollout_promote(rollout=rollout, actor=actor)
    Rollout.objects.update(hold_until=timezone.now())
    [seen] = rollouts_open()
    rollout_keep_old(rollout=held, actor=actor, days=3)
    assert look_late().state == "holding"
    rollout_abort(rollout=held, actor=actor)
    shadow = rollout_start(
        model=model, actor=actor, candidate=2, kind="shadow", plan={"steps": [{"weight": 0, "bake_s": 60}]}
    )
    served(model, server)
    time_passes(model, 61)
    [seen] = rollouts_open()
    rollout_promote(rollout=shadow, actor=actor)
    assert look_late().state == "holding"


def test_nobody_promotes_what_a_server_has_just_taken_out(rollout: Rollout, model: Model, server: Server, actor: Actor):
    word = rollout_report(rollout, breach={"guardrail": 0, "reason": "it fails", "at": 1.0})
    figures.figures_store(rollout=rollout, server=server, report=word, instance="a")
    for act in (rollout_advance, rollout_promote):
        with pytest.raises(WrongState, match=r"guardrails have taken version 2 out of rollout r-\w+: it fails"):
            act(rollout=rollout, actor=actor)
    assert look(server).state == "rolled_back"


def test_a_breach_does_not_wait_for_a_person_to_resolve_a_change_by_hand(
    rollout: Rollout, model: Model, server: Server, data_folder: Path
):
    file = data_folder / "models" / "relu" / "config.pbtxt"
    file.write_text("by hand")
    assert look(server, {"breach": {"guardrail": 0, "reason": "it fails", "at": 1.0}}).state == "rolled_back"
    assert file.read_text() == newest_release(model).text
    assert AuditEntry.objects.get(action="drift.overwrite").before == {"text": "by hand"}


def test_a_shadow_with_a_time_is_stopped_after_it(model: Model, actor: Actor, server: Server):
    plan = {"steps": [{"weight": 0, "bake_s": 60}]}
    rollout_start(model=model, actor=actor, candidate=2, kind="shadow", plan=plan)
    served(model, server)
    assert look(server, {}).state == "running"
    time_passes(model, 61)
    stopped = look(server)
    assert (stopped.state, stopped.reason) == ("done", "Stopped by system.")


def test_a_process_killed_between_text_and_commit_of_a_step_takes_it_whole_the_next_time(
    rollout: Rollout, model: Model, server: Server, monkeypatch: pytest.MonkeyPatch
):
    before = newest_release(model)
    for act, state in (({}, "running"), ({"breach": BREACH, "weight": 0}, "rolled_back")):
        time_passes(model, 61)

        class Killed(BaseException):
            pass

        def killed(*_: object, died: type[BaseException] = Killed) -> None:
            raise died

        with monkeypatch.context() as patched:
            patched.setattr("dashboard.releases.services.generation_bump", killed)
            with pytest.raises(Killed):
                look(server, act)
        assert newest_release(model) == before
        assert look(server, act).state == state
        before = newest_release(model)
        served(model, server)


def test_figures_go_on_over_a_restart_of_the_server(rollout: Rollout, server: Server):
    look(server, {"stable": 90, "candidate": 10, "errors": 1})
    look(server, {"stable": 180, "candidate": 20, "errors": 1})
    look(server, {"stable": 9, "candidate": 1}, instance="b")
    look(server, {"stable": 18, "candidate": 2}, instance="b")
    now = standing(rollout)
    assert [(one.requests, one.errors) for one in now.arms] == [(198, 0), (22, 1)]
    assert now.arms[1].share == 0.1
    assert now.arms[1].error_share == pytest.approx(1 / 22)
    assert now.arms[0].p99 == pytest.approx(1.0, rel=0.1)
    assert now.arms[1].p99 == pytest.approx(2.0, rel=0.1)
    look(server, {"stable": 2, "candidate": 1}, instance="b")  # the model was unloaded meanwhile
    assert [(one.requests, one.errors) for one in standing(rollout).arms] == [(200, 0), (23, 1)]


def test_figures_and_history_of_several_servers_add_up(rollout: Rollout, server: Server, other: Server):
    staging = ServerEnvironment.objects.create(name="staging")
    elsewhere = Server.objects.create(name="elsewhere", http_url="http://127.0.0.1:3", environment=staging)
    ServerState.objects.create(server=other, state="ready")
    look(server, {"stable": 90, "candidate": 10, "errors": 1})
    look(
        other,
        {"stable": 900, "candidate": 100, "arms": {"stable": arm("1", 900), "candidate": arm("2", 100, 0, 64_000)}},
    )
    look(elsewhere, {"stable": 7, "candidate": 7, "breach": BREACH})
    now = standing(rollout)
    assert [(one.requests, one.errors) for one in now.arms] == [(990, 0), (110, 1)]
    assert now.arms[1].p50 == pytest.approx(64, rel=0.1), "of the sum, not a mean of 2 and 64"
    assert (now.servers, now.judge, now.rollout.state) == (2, "other", "running")
    first = RolloutSample.objects.earliest("at")
    RolloutSample.objects.exclude(pk=first.pk).delete()
    more = [(server, 10, 190), (other, 10, 900), (other, 20, 1900), (server, 30, 390), (other, 30, 1900)]
    for of, after, stable in more:
        report = rollout_report(rollout, stable=stable, candidate=10)
        data = figures.sums_of(RolloutFigures(report=report))
        RolloutSample.objects.create(rollout=rollout, server=of, at=first.at + after, data=data)
    RolloutFigures.objects.update(every_s=1)
    found: Any = history(rollout)
    assert [at - first.at for at in found["times"]] == [10, 20, 30]
    assert found["arms"]["stable"]["rps"] == [10, 100, 20], "the first sample of `other` is where it begins"
    alone: Any = history(rollout, server)
    assert alone["arms"]["stable"]["rps"] == [10, 10]


def test_without_a_bundled_server_steps_come_too(rollout: Rollout, model: Model, server: Server, other: Server):
    Server.objects.filter(pk=server.pk).delete()
    ServerState.objects.create(server=other, state="ready")
    served(model, other)
    time_passes(model, 61)
    assert look(other, {}).step == 1


def test_the_history_is_bounded_and_loses_resolution_alone(
    rollout: Rollout, server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(figures, "MOST_SAMPLES", 8)
    now = 1_800_000_000
    monkeypatch.setattr(figures.time, "time", lambda: now)
    for second in range(200):
        now += 5
        look(server, {"stable": 9 * second, "candidate": second})
        assert RolloutSample.objects.count() <= 9
    found: Any = history(rollout)
    assert RolloutFigures.objects.get().every_s == 160
    assert found["times"] == sorted(found["times"])
    assert found["arms"]["stable"]["rps"] == pytest.approx([9 / 5] * len(found["times"]), rel=0.1)
    assert set(found["weight"]) == {5}


def test_a_time_of_which_nothing_was_told_is_a_gap_in_the_history(rollout: Rollout, server: Server):
    look(server, {"stable": 1})
    [first] = RolloutSample.objects.all()
    for after in (10, 20, 30, 900, 910):
        RolloutSample.objects.create(rollout=rollout, server=server, at=first.at + after, data=first.data)
    found: Any = history(rollout)
    assert [at - first.at for at in found["times"]] == [10, 20, 30, 40, 900, 910]
    assert found["arms"]["stable"]["rps"] == [0, 0, 0, None, 0, 0]


def test_of_mismatches_the_worst_stay_within_count_bytes_and_days(model: Model, actor: Actor, server: Server):
    keep = {"count": 3, "bytes": 10_000, "days": 1}
    rollout = rollout_start(
        model=model, actor=actor, candidate=2, kind="shadow", plan={"shadow": {"share": 10, "keep": keep}}
    )
    now = timezone.now().timestamp()
    rows = [mismatch(number, score=number, at=now - 100) for number in range(1, 6)]
    mismatches_store(rollout=rollout, server=server, rows=[*rows, mismatch(9, score=99, size=10_000, at=now - 100)])
    mismatches_store(rollout=rollout, server=server, rows=rows)
    assert list(RolloutMismatch.objects.values_list("score", flat=True)) == [5, 4, 3]
    large = [mismatch(number, score=number, size=1000, at=now - 100) for number in (6, 7)]
    mismatches_store(rollout=rollout, server=server, rows=large)
    assert list(RolloutMismatch.objects.values_list("score", flat=True)) == [7, 5, 4]
    RolloutMismatch.objects.filter(score=5).update(at=timezone.now() - timedelta(days=2))
    rollouts_prune()
    assert list(RolloutMismatch.objects.values_list("score", flat=True)) == [7, 4]


def test_what_was_forgotten_does_not_come_back_from_a_server_that_remembers_it(
    model: Model, actor: Actor, server: Server
):
    plan = {"shadow": {"share": 10, "keep": {"days": 1}}}
    rollout = rollout_start(model=model, actor=actor, candidate=2, kind="shadow", plan=plan)
    now = timezone.now().timestamp()
    remembered = [mismatch(1, score=1, at=now - 2 * 86_400), mismatch(2, score=2, at=now - 100)]
    mismatches_store(rollout=rollout, server=server, rows=remembered)
    assert [row.number for row in RolloutMismatch.objects.all()] == [2]
    mismatches_forget(rollout=rollout, actor=actor)
    mismatches_store(rollout=rollout, server=server, rows=[*remembered, mismatch(3, score=3, at=now + 100)])
    assert [row.number for row in RolloutMismatch.objects.all()] == [3]


def test_nothing_is_kept_where_inputs_are_private(model: Model, actor: Actor, server: Server):
    plan = {"shadow": {"share": 10, "keep": False}}
    rollout = rollout_start(model=model, actor=actor, candidate=2, kind="shadow", plan=plan)
    mismatches_store(rollout=rollout, server=server, rows=[mismatch(1, score=1)])
    assert not RolloutMismatch.objects.exists()


def test_the_history_goes_a_month_after_the_end(rollout: Rollout, server: Server, actor: Actor):
    look(server, {"stable": 5})
    rollout_promote(rollout=rollout, actor=actor)
    rollouts_prune()
    assert RolloutSample.objects.exists()
    Rollout.objects.update(ended_at=timezone.now() - timedelta(days=31))
    rollouts_prune()
    assert not RolloutSample.objects.exists()


def test_a_remote_candidate_stays_at_its_last_weight(model: Model, actor: Actor, server: Server, remotes: Path):
    remote = {"url": "http://host:8000", "model": "relu"}
    plan = {"steps": [{"weight": 5, "bake_s": 0}], "guardrails": []}
    rollout_start(model=model, actor=actor, candidate=remote, plan=plan)
    served(model, server)
    assert (
        look(server, {"arms": {"stable": arm("1", 10), "candidate": {**arm("", 1), "remote": remote["url"]}}}).state
        == "running"
    )
    assert standing(Rollout.objects.get()).may_promote is False
