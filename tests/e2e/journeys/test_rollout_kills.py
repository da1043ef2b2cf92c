"""Any process is killed at any step of a rollout: nothing is lost or half done, the server keeps to the last decided policy,
and the page tells the truth afterwards."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from threading import Thread

import httpx
import pytest

from tests.support.rollout_house import PARTS, RolloutHouse
from tests.support.serving_process import wait_until

pytestmark = pytest.mark.long
NOT_BY_ITSELF = 24 * 3600.0
STEPS = [{"weight": weight, "bake_s": NOT_BY_ITSELF} for weight in (30, 70)]
GUARDED = {"guardrails": [{"metric": "errors"}], "min_samples": 20, "window_s": 60}
# What may be asked for in each state of a rollout; else another one is started.
ACTS = {
    "running": ["advance", "advance", "pause", "promote", "abort", "breach"],
    "paused": ["resume", "promote", "abort"],
    "holding": ["keep_old", "unload_old", "abort", "start"],
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutHouse]:
    with RolloutHouse(tmp_path_factory.mktemp("kills")) as house:
        yield house


def test_a_kill_at_each_step_loses_nothing_and_leaves_nothing_half_done(house: RolloutHouse):
    with house.asking():
        _begins(house)
        _goes_back_by_a_breach(house)
        house.start(2, steps=STEPS, hold_days=1)
        house.act("advance")
        house.act("promote")
        house.kill("up")
        house.holds()
        assert house.rollout()["rollout"]["state"] == "holding"
        house.act("keep_old", days=2)
        house.kill("server")
        house.holds()
        house.act("unload_old")
        house.kill("watch")
        house.holds()
        assert house.newest()[2] == [2]
        house.start(1, steps=STEPS)
        house.act("abort")
        house.kill("server")
        house.holds()
        assert (house.rollout()["rollout"]["state"], house.newest()[2]) == ("aborted", [2])
    for reason in house.failures:
        gone = ("RemoteProtocolError", "ConnectError", "ReadError", "ConnectTimeout", "WriteError", "503 ")
        assert reason.startswith(gone) or "its weights are gone" in reason, reason


def test_a_candidate_whose_process_hangs_is_taken_out(house: RolloutHouse):
    """Its clients give up sooner than anything else notices, which is no mistake of theirs."""
    [stable] = house.newest()[2]
    candidate = 3 - stable
    house.start(candidate, steps=STEPS, min_samples=20, window_s=60, guardrails=[{"metric": "latency"}])
    house.holds()
    with house.asking(patience_s=0.3), house.asking(patience_s=0.3), house.asking(patience_s=0.3):
        wait_until(lambda: _requests_of_each_arm(house) >= 40, what="samples")
        os.kill(house.process_of(candidate), signal.SIGSTOP)
        wait_until(lambda: house.rollout()["rollout"]["state"] == "rolled_back", what="the candidate was taken out")
    house.holds()
    os.kill(house.process_of(candidate), signal.SIGCONT)
    assert "clients gave up" in house.rollout()["rollout"]["reason"]
    assert house.ask(20) == {str(stable): 20}


def test_a_restart_at_the_last_step_leaves_the_guardrails_what_they_knew_of_stable(house: RolloutHouse):
    """At 100 % stable gets no more requests: the server keeps its earlier figures, or never judges the candidate."""
    [stable] = house.newest()[2]
    candidate = 3 - stable
    steps = [{"weight": weight, "bake_s": NOT_BY_ITSELF} for weight in (50, 100)]
    house.start(candidate, steps=steps, **GUARDED)
    house.holds()
    with house.asking():
        wait_until(lambda: _holds(house), what="both arms are known")
        house.act("advance")
        wait_until(lambda: house.rollout().get("in_force") == 100, what="the last step")
        house.kill("server")
        house.holds()
        wait_until(lambda: _holds(house), what="the candidate is judged")
        assert "too few since" in house.report()["guardrails"][0]["detail"]
        house.misbehave(candidate, "fails")
        wait_until(lambda: house.rollout()["rollout"]["state"] == "rolled_back", what="the candidate was taken out")
    house.misbehave(candidate, "fails", False)
    house.holds()


def _requests_of_each_arm(house: RolloutHouse) -> int:
    """Return how many requests the arm has had that had fewer; 0 while the server does not answer."""
    return min((arm["requests"] for arm in house.report().get("arms", {}).values()), default=0)


def _holds(house: RolloutHouse) -> bool:
    """A server that has just begun has judged none in its first second."""
    return any(one["state"] == "holds" for one in house.report().get("guardrails", ()))


def _begins(house: RolloutHouse) -> None:
    house.misbehave(2, "loads")
    house.start(2, steps=STEPS, **GUARDED)
    wait_until(lambda: house.up.query("SELECT 1 FROM dashboard_releasecheck WHERE state = 'running'"), what="it loads")
    house.kill("server")
    house.misbehave(2, "loads", False)
    house.holds()
    assert house.rollout()["in_force"] == 30
    house.act("advance")
    house.kill("watch")
    house.holds()
    assert house.rollout()["in_force"] == 70
    house.act("pause")
    house.kill("dashboard")
    house.holds()
    assert house.rollout()["rollout"]["state"] == "paused"
    house.act("resume")
    house.kill("worker")
    house.holds()
    assert (house.rollout()["rollout"]["state"], house.rollout()["in_force"]) == ("running", 70)


def _goes_back_by_a_breach(house: RolloutHouse) -> None:
    """With `watch` stopped, so that nobody has written another text when the server comes back."""
    house.hang("watch")
    house.misbehave(2, "fails")
    wait_until(lambda: house.report().get("breach"), what="the breach")
    house.kill("server")
    wait_until(lambda: house.pid("server"), what="another server")
    house.misbehave(2, "fails", False)  # so that nothing but what is remembered keeps it out
    house.answers.clear()
    house.kill("watch")
    wait_until(
        lambda: (house.rollout() or {"rollout": {}})["rollout"].get("state") == "rolled_back", what="the page says so"
    )
    house.holds()
    assert "requests failed" in house.rollout()["rollout"]["reason"]
    assert set(house.answers) == {"1"}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_what_is_killed_at_any_moment_of_anything_that_is_done_comes_to_one_truth(house: RolloutHouse, seed: int):
    """A process is killed or stopped while something is asked for, which may be done then, or not, but never half."""
    chance = random.Random(seed)
    for _ in range(60):
        shown = house.rollout()
        state = shown["rollout"]["state"] if shown else "none"
        act = chance.choice(ACTS.get(state, ["start"]))
        part = chance.choice([*PARTS, "up"])
        asked = Thread(target=_ask, args=(house, act, chance.random()))
        asked.start()
        time.sleep(chance.choice([0, 0.005, 0.02, 0.1, 0.5, 2]))
        if part != "up" and chance.random() < 0.2 and (pid := house.hang(part)):
            time.sleep(chance.random())
            os.kill(pid, signal.SIGCONT)
        else:
            house.kill(part)
        asked.join()
        house.holds()


def _ask(house: RolloutHouse, act: str, chance: float) -> None:
    """Ask for something; whether it was done is seen from what is there afterwards."""
    try:
        if act == "start":
            house.start(2 if chance < 0.5 else 1, steps=STEPS, **GUARDED)
        elif act == "breach":
            version = house.rollout()["rollout"]["candidate"]
            house.misbehave(version, "fails")
            with contextlib.suppress(AssertionError, httpx.HTTPError), house.asking():
                wait_until(lambda: house.report().get("rollout") is None or house.report().get("breach"), 5)
            house.misbehave(version, "fails", False)
        else:
            house.act(act, **({"days": 3} if act == "keep_old" else {}))
    except (AssertionError, KeyError, httpx.HTTPError) as error:
        print(f"{act}: {error}"[:200])
