"""A guardrail compares the candidate with the stable version of the same time, waits for samples, and explains its finding."""

import random
from dataclasses import replace

import pytest

from repository.config.traffic import Guardrail, TrafficPolicy
from serving.traffic.figures import MOMENT_NS, ArmFigures, ShadowFigures
from serving.traffic.guardrails import METRICS, Guardrails, GuardrailState
from serving.traffic.prometheus_values import Readings

MS = 1_000_000
ERRORS = Guardrail(metric="errors", margin=0.01)
LATENCY = Guardrail(metric="latency", quantile=0.99, ratio=1.5)
DISAGREEMENT = Guardrail(metric="disagreement", limit=0.02)
PROMETHEUS = Guardrail(metric="prometheus", name="unsafe_total", ratio=1.2)


class Arms:
    """Both arms of a rollout, and its guardrails."""

    def __init__(
        self, *guardrails: Guardrail, min_samples: int = 200, window_s: int = 300, shadow: bool = False
    ) -> None:
        self.policy = TrafficPolicy(
            rollout="r", candidate=2, weight=5, guardrails=guardrails, min_samples=min_samples, window_s=window_s
        )
        self.stable, self.candidate = ArmFigures(window_s), ArmFigures(window_s)
        self.shadow = ShadowFigures(window_s) if shadow else None
        self.readings = Readings(window_s)
        values = {place: self.readings for place, one in enumerate(guardrails) if one.metric == "prometheus"}
        self.guardrails = Guardrails(self.policy, self.stable, self.candidate, self.shadow, values)

    def tick(self, seconds: int = 1) -> GuardrailState:
        for _ in range(seconds):
            self.stable.tick()
            self.candidate.tick()
            if self.shadow is not None:
                self.shadow.tick()
            found = self.guardrails.evaluate()
        return found[0]


def serve(arm: ArmFigures, requests: int, *, failed: int = 0, ms: float = 5.0) -> None:
    for place in range(requests):
        arm.begin()
        arm.count(int(ms * MS), place < failed)


def give_up(arm: ArmFigures, requests: int, *, ms: float) -> None:
    for _ in range(requests):
        arm.begin()
        arm.give_up(int(ms * MS))


def test_a_failing_candidate_is_found_with_its_figures() -> None:
    arms = Arms(ERRORS)
    for second in range(20):
        serve(arms.stable, 200, failed=second % 5 == 0)
        serve(arms.candidate, 11, failed=2)
        found = arms.tick()
    assert found.state == "breached"
    assert found.samples == (4000, 220)
    assert found.candidate == pytest.approx(40 / 220)
    assert found.limit == pytest.approx(0.011)
    assert found.detail == (
        "18.2 % of 220 requests failed in the last 20 s; the limit is 1.1 %, stable had 0.1 % of 4000"
    )


def test_errors_of_both_arms_breach_no_guardrail() -> None:
    arms = Arms(ERRORS)
    serve(arms.stable, 4000, failed=600)
    serve(arms.candidate, 210, failed=30)
    assert arms.tick().state == "holds"


def test_a_candidate_that_refuses_requests_which_stable_answers_is_found() -> None:
    """The candidate was made for other inputs, so that each request looks like the client's mistake."""
    arms = Arms(ERRORS)
    for _ in range(10):
        serve(arms.stable, 400)
        for arm, mistakes in ((arms.stable, 4), (arms.candidate, 21)):
            for _ in range(mistakes):
                arm.begin()
                arm.refuse()
        found = arms.tick()
    assert found.state == "breached"
    assert found.detail.startswith(
        "100 % of 210 requests failed in the last 10 s (210 refused as the client's mistake)"
    )


def test_a_few_refused_requests_breach_no_guardrail() -> None:
    """They may all be those of one client, which is sent to the candidate each time."""
    arms = Arms(ERRORS)
    serve(arms.stable, 4000)
    for _ in range(10):
        serve(arms.candidate, 2)
        arms.candidate.begin()
        arms.candidate.refuse()
        arms.candidate._failed_ns -= MOMENT_NS  # a moment later
        found = arms.tick()
    assert (found.state, found.samples) == ("waiting", (4000, 30))


def test_a_few_failed_requests_breach_a_guardrail_beside_refused_ones() -> None:
    arms = Arms(ERRORS)
    serve(arms.stable, 4000)
    for _ in range(10):
        serve(arms.candidate, 1, failed=1)
        arms.candidate.begin()
        arms.candidate.refuse()
        arms.candidate._failed_ns -= MOMENT_NS
        found = arms.tick()
    assert (found.state, found.samples) == ("breached", (4000, 10))
    assert found.detail.startswith("100 % of 10 requests failed in the last 10 s; the limit is 1 %")


def test_few_samples_are_waited_for() -> None:
    arms = Arms(ERRORS, LATENCY)
    serve(arms.stable, 4000)
    serve(arms.candidate, 199, failed=199)
    found = arms.tick()
    assert (found.state, found.p) == ("waiting", None)
    assert found.detail == "199 of 200 requests to the candidate in 10 s"
    assert arms.tick() == found, "what changes every second is told every second"


def test_a_candidate_that_does_not_answer_at_all_is_found() -> None:
    arms = Arms(ERRORS, LATENCY, min_samples=50)
    serve(arms.stable, 4000)
    for _ in range(60):
        arms.candidate.begin()
    for _ in range(12):
        serve(arms.stable, 100)
        errors, latency = arms.tick(), arms.guardrails.evaluate()[1]
    assert errors.state == "breached"
    assert latency.state == "breached"
    assert latency.detail.startswith("60 of 60 requests had no answer after 1 s in the last 20 s; the limit is 7.")


@pytest.mark.parametrize("stable", ["answers", "has nothing to do", "stands still too"])
def test_a_candidate_that_stops_answering_is_found_though_few_clients_wait(stable: str) -> None:
    """Each asks again when it is answered: all that is seen of a standstill are a dozen requests of one moment."""
    arms = Arms(ERRORS, LATENCY)
    for _ in range(60):
        serve(arms.stable, 200)
        serve(arms.candidate, 100)
        arms.tick()
    for _ in range(12):
        arms.candidate.begin()
        if stable == "stands still too":
            arms.stable.begin()
    states = []
    for _ in range(12):
        serve(arms.stable, 200 * (stable == "answers"))
        states.append((arms.tick().state, arms.guardrails.evaluate()[1].state))
    if stable == "stands still too":
        assert set(states) == {("holds", "holds")}
        return
    assert states[3] == ("holds", "holds")  # a pause
    assert states[5] == ("holds", "breached")
    assert states[11] == ("breached", "breached")
    detail = "nothing was answered in the last 11 s while 12 requests waited"
    detail += "; stable answered 2200 meanwhile" if stable == "answers" else ""
    assert arms.guardrails.evaluate()[1].detail == detail


def test_a_candidate_that_hangs_from_its_first_requests_on_is_found() -> None:
    arms = Arms(ERRORS, LATENCY)
    for _ in range(10):
        serve(arms.stable, 50)
        arms.tick()
    for _ in range(8):
        arms.candidate.begin()
    for _ in range(11):
        arms.tick()
    errors, latency = arms.guardrails.evaluate()
    assert latency.state == "breached"
    assert errors.state == "breached"
    assert errors.detail == "nothing was answered in the last 10 s while 8 requests waited"


def test_one_request_that_takes_long_is_no_standstill() -> None:
    arms = Arms(ERRORS, LATENCY)
    for second in range(300):
        serve(arms.stable, 20)
        serve(arms.candidate, second % 3 == 0)
        arms.tick()
    arms.candidate.begin()
    for _ in range(30):
        serve(arms.stable, 20)
        arms.tick()
        assert all(one.state != "breached" for one in arms.guardrails.evaluate())


def test_a_candidate_whose_clients_give_up_before_it_answers_is_found() -> None:
    """The candidate hangs, and its latency is unknown, because no client waits for its answer."""
    arms = Arms(ERRORS, LATENCY)
    serve(arms.stable, 4000)
    give_up(arms.stable, 40, ms=3)  # as clients do for reasons of their own
    for _ in range(8):
        give_up(arms.candidate, 30, ms=100)
        serve(arms.candidate, 1)
        errors, latency = arms.tick(), arms.guardrails.evaluate()[1]
    assert errors.state == "waiting", "who gave up at once may not have wanted the answer any more"
    assert latency.state == "breached"
    assert "clients gave up 240 slower ones" in latency.detail
    for _ in range(8):
        give_up(arms.candidate, 30, ms=2500)
        errors = arms.tick()
    assert errors.state == "breached"


def test_clients_that_give_up_on_both_arms_breach_no_guardrail() -> None:
    arms = Arms(ERRORS, LATENCY)
    for arm, requests in ((arms.stable, 4000), (arms.candidate, 400)):
        serve(arm, requests)
        give_up(arm, requests // 10, ms=20_000)  # longer than any answer takes
    assert [arms.tick().state, arms.guardrails.evaluate()[1].state] == ["holds", "holds"]


def test_a_slow_candidate_is_found_by_its_quantile() -> None:
    chance = random.Random(3)
    arms = Arms(LATENCY)
    for _ in range(20):
        for _ in range(400):
            serve(arms.stable, 1, ms=chance.uniform(4, 10))
        for place in range(30):
            serve(arms.candidate, 1, ms=chance.uniform(4, 10) + (30 if place % 10 == 0 else 0))
        found = arms.tick()
    assert found.state == "breached"
    assert found.stable == pytest.approx(9.9, rel=0.1)
    assert found.limit == pytest.approx(1.5 * found.stable)
    assert found.detail.startswith("the p99 of 600 requests was ")


def test_one_bad_moment_of_the_machine_breaches_no_guardrail() -> None:
    arms = Arms(LATENCY)
    for second in range(30):
        serve(arms.stable, 400, ms=5)
        serve(arms.candidate, 20, ms=5)
        if second == 12:
            serve(arms.stable, 40, ms=300)
            serve(arms.candidate, 12, ms=300)
        found = arms.tick()
        assert found.state in ("waiting", "holds"), found
    assert found.candidate is not None
    assert found.limit is not None
    assert found.candidate > found.limit, "counted one by one it would be accused"


def test_a_candidate_as_fast_as_the_stable_version_holds() -> None:
    chance = random.Random(4)
    arms = Arms(LATENCY)
    for _ in range(600):
        for arm, requests in ((arms.stable, 19), (arms.candidate, 1)):
            for _ in range(requests):
                serve(arm, 1, ms=chance.lognormvariate(1.5, 0.5))
        assert arms.tick().state in ("waiting", "holds")
    assert arms.tick().state == "holds"


def test_the_stable_version_is_remembered_where_it_gets_no_requests_any_more() -> None:
    arms = Arms(ERRORS, window_s=60)
    serve(arms.stable, 1000)
    arms.tick()
    arms.tick(90)
    for _ in range(20):
        serve(arms.candidate, 25, failed=3)
        found = arms.tick()
    assert found.state == "breached"
    assert "UTC: too few since)" in found.detail


def compare(arms: Arms, seconds: int, compared: int, disagreed: int, failed: int = 0) -> GuardrailState:
    """Compare so many mirrored answers in each second."""
    assert arms.shadow is not None
    for _ in range(seconds):
        arms.shadow.compared += compared
        arms.shadow.disagreed += disagreed
        arms.shadow.failed += failed
        found = arms.tick()
    return found


def test_answers_that_differ_too_often_are_found() -> None:
    assert compare(Arms(DISAGREEMENT, shadow=True), 19, 10, 8).state == "waiting"
    assert compare(Arms(DISAGREEMENT, shadow=True), 20, 49, 1).state == "holds", "one more than the limit is chance"
    found = compare(Arms(DISAGREEMENT, shadow=True), 20, 50, 5)
    assert found.state == "breached"
    assert found.detail == (
        "10 % of 1000 mirrored requests were answered differently or failed in the last 20 s; the limit is 2 %"
    )


def test_comparisons_are_remembered_once_nothing_is_mirrored() -> None:
    arms = Arms(DISAGREEMENT, shadow=True, window_s=10)
    compare(arms, 10, 50, 0)
    assert compare(arms, 20, 0, 0).state == "waiting", "requests may come"
    compare(arms, 10, 50, 0)
    arms.guardrails.configure(replace(arms.policy, weight=100), {})
    found = compare(arms, 20, 0, 0)
    assert found.state == "holds"
    assert "UTC: too few since)" in found.detail


def test_a_weight_of_all_requests_leaves_nothing_to_compare_with_and_says_so() -> None:
    arms = Arms(ERRORS)
    arms.guardrails.configure(replace(arms.policy, weight=100), {})
    serve(arms.candidate, 500)
    assert arms.tick().detail.startswith("0 of 200 requests to stable in 10 s, and at 100 % no more come")


def test_a_candidate_that_fails_mirrored_requests_is_found() -> None:
    assert compare(Arms(DISAGREEMENT, shadow=True), 10, 10, 0, failed=20).state == "breached"


def test_without_a_shadow_disagreement_waits_and_says_so() -> None:
    assert Arms(DISAGREEMENT).tick().detail == "no answers are compared: give the policy a shadow"


def test_a_metric_is_judged_by_its_readings() -> None:
    chance = random.Random(8)
    arms = Arms(PROMETHEUS)
    arms.readings.problem = "the server's metrics have no 'unsafe_total'"
    assert arms.tick().detail == "the server's metrics have no 'unsafe_total'"
    for _ in range(30):
        arms.readings.add((chance.gauss(10, 1), 1.0), (chance.gauss(11, 1), 1.0))
    assert arms.tick().state == "holds"
    for _ in range(300):
        arms.readings.add((chance.gauss(10, 1), 1.0), (chance.gauss(16, 1), 1.0))
    found = arms.tick()
    assert found.state == "breached"
    assert found.detail.startswith("unsafe_total was 15.9 on average of 300 readings; the limit is 11.9")
    arms.readings.miss("the server's metrics have no 'unsafe_total'")
    assert arms.tick().state == "waiting", "what cannot be read any more does not hold"


def test_a_metric_below_zero_may_be_as_far_below_as_the_stable_versions() -> None:
    chance = random.Random(9)
    for value, state in ((-10, "holds"), (-5, "breached")):
        arms = Arms(PROMETHEUS)
        for _ in range(60):
            arms.readings.add((chance.gauss(-10, 0.1), 1.0), (chance.gauss(value, 0.1), 1.0))
        found = arms.tick()
        assert (found.state, found.limit) == (state, pytest.approx(-8, abs=0.1))


def test_a_new_policy_is_judged_by_the_present_figures() -> None:
    arms = Arms(ERRORS)
    for _ in range(40):
        serve(arms.stable, 100)
        serve(arms.candidate, 50, failed=1)
        found = arms.tick()
    assert found.state == "holds"
    arms.guardrails.configure(replace(arms.policy, guardrails=(replace(ERRORS, margin=0.0),), alpha=0.01), {})
    assert arms.tick().state == "breached"


def test_a_guardrail_that_cannot_be_judged_waits_and_the_others_are_judged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRICS, "latency", lambda guardrail, sample: 1 / 0)
    arms = Arms(LATENCY, ERRORS)
    for _ in range(10):
        serve(arms.stable, 400)
        serve(arms.candidate, 40, failed=20)
        arms.tick()
    latency, errors = arms.guardrails.evaluate()
    assert (latency.state, errors.state) == ("waiting", "breached")
    assert latency.detail.startswith("it cannot be judged (ZeroDivisionError)")
    assert len(caplog.records) == 1
