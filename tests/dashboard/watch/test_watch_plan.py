"""What `watch` decides to load and unload, from what is wanted and what is there."""

from collections import defaultdict

from dashboard.servers.server_state import VersionStatus
from dashboard.shared.choices import version_word
from dashboard.watch.plan import CRASH_RETRY_S, RETRY_S, Attempts, DesiredModel, Plan, make_plan
from dashboard.watch.reconciler import state_for_plan


def wanted(name: str, *, loaded: bool = True, generation: int = 1, applied: int = -1) -> DesiredModel:
    return DesiredModel(hash(name), name, loaded, generation, applied)


def plan(models: list[DesiredModel], *, ready: set[str] = frozenset(), now: float = 100.0, **known: Attempts) -> Plan:
    attempts = defaultdict(Attempts, known)
    return make_plan(models, {name: {"READY"} for name in ready}, attempts, set(), now)


def test_a_model_that_sleeps_until_its_first_request_counts_as_there():
    status = VersionStatus("napping", 1, "UNAVAILABLE", "in words", "asleep")
    assert state_for_plan(VersionStatus("napping", 1, "UNAVAILABLE", "no such operator", "asleep", True)) == "READY"
    assert state_for_plan(status) == "READY"
    assert state_for_plan(VersionStatus("broken", 1, "UNAVAILABLE", "no such file")) == "UNAVAILABLE"


def test_an_ensemble_that_waits_for_a_step_is_not_loaded_which_would_bring_the_step_back():
    status = VersionStatus("pipeline", 1, "UNAVAILABLE", "its step 'double' is not ready: unloaded", "stepless")
    assert state_for_plan(status) == "READY"
    assert version_word(status.state, status.condition, status.failed) == "failed"


def names(models: list[DesiredModel]) -> list[str]:
    return [one.name for one in models]


def test_a_wanted_model_that_is_not_ready_is_loaded_whatever_was_applied():
    made = plan([wanted("new"), wanted("lost", applied=1), wanted("fine", applied=1)], ready={"fine"})
    assert names(made.load) == ["new", "lost"]


def test_a_ready_model_is_loaded_again_when_its_generation_has_grown():
    assert names(plan([wanted("grown", generation=2, applied=1)], ready={"grown"}).load) == ["grown"]


def test_an_unwanted_model_is_unloaded_only_while_it_is_there():
    made = plan([wanted("there", loaded=False), wanted("gone", loaded=False)], ready={"there"})
    assert names(made.unload) == ["there"]
    assert not made.load


def test_a_failing_model_waits_longer_each_time_and_does_not_keep_the_server_from_being_ready():
    attempts = Attempts(generation=1)
    waits = []
    for _ in range(len(RETRY_S) + 2):
        attempts.failed(1, 100.0, "broken")
        waits.append(attempts.next_at - 100.0)
    assert waits == sorted(waits)
    assert waits[-1] == max(RETRY_S)
    made = plan([wanted("broken")], broken=attempts)
    assert made == Plan([], [], pending=False, meanwhile=[wanted("broken")])
    assert names(plan([wanted("broken")], now=attempts.next_at, broken=attempts).load) == ["broken"]


def test_a_new_generation_forgets_earlier_failures():
    attempts = Attempts(generation=1)
    attempts.failed(1, 100.0, "broken")
    attempts.renew(2)
    assert names(plan([wanted("fixed", generation=2)], fixed=attempts).load) == ["fixed"]


def test_a_load_of_an_older_generation_that_fails_late_does_not_count():
    attempts = Attempts(generation=2)
    attempts.failed(1, 100.0, "broken")
    attempts.good_failed(1, 100.0, crashed=True)
    assert attempts == Attempts(generation=2)


def test_models_under_whose_load_the_server_died_come_last_and_alone():
    suspects = {name: Attempts(generation=1, crashes=count) for name, count in (("guilty", 2), ("bystander", 1))}
    models = [wanted("guilty"), wanted("bystander"), wanted("innocent")]
    assert names(plan(models, **suspects).load) == ["innocent"]
    assert names(plan(models[:2], **suspects).load) == ["bystander"]


def test_a_load_that_hangs_keeps_no_other_model_away_and_what_served_does_not_wait_for_its_turn():
    suspects, attempts = [wanted("a"), wanted("b"), wanted("hangs")], defaultdict(Attempts)
    for name in ("a", "b"):
        attempts[name].crashed(90.0)
    behind = make_plan(suspects, {}, attempts, {"hangs"}, 100.0)
    assert (names(behind.load), names(behind.meanwhile)) == ([], ["a", "b"])
    past = make_plan(suspects, {}, attempts, {"hangs"}, 100.0, long={"hangs"})
    assert (names(past.load), names(past.meanwhile)) == (["a"], ["b"])


def test_a_model_that_keeps_killing_the_server_is_held_until_a_person_acts():
    attempts = Attempts(generation=1)
    for _ in range(len(CRASH_RETRY_S) + 1):
        attempts.crashed(100.0)
    assert attempts.held
    made = plan([wanted("guilty")], now=1e9, guilty=attempts)
    assert (made.load, names(made.meanwhile)) == ([], ["guilty"])  # what served before does not wait with it
    attempts.renew(2)
    assert names(plan([wanted("guilty", generation=2)], guilty=attempts).load) == ["guilty"]


def test_the_last_good_release_comes_only_where_nothing_serves_and_not_again_and_again():
    attempts = Attempts(generation=1)
    attempts.failed(1, 100.0, "broken")
    assert names(plan([wanted("broken")], broken=attempts).meanwhile) == ["broken"]
    assert not plan([wanted("broken")], ready={"broken"}, broken=attempts).meanwhile
    attempts.good_failed(1, 100.0)
    assert not plan([wanted("broken")], broken=attempts).meanwhile
    attempts.next_at = float("inf")
    assert names(plan([wanted("broken")], now=attempts.good_next_at, broken=attempts).meanwhile) == ["broken"]
    attempts.good_failed(1, 100.0, crashed=True)
    assert not plan([wanted("broken")], now=1e9, broken=attempts).meanwhile
    attempts.renew(2)
    assert attempts.good_next_at == 0.0
