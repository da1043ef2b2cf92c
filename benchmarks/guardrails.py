"""Simulates how soon the usual guardrails find a fault, and how often they raise a false alarm.

`python -m benchmarks.guardrails` prints the table of docs/server.md. `python -m benchmarks.guardrails --quiet-hours 4`
simulates 4 hours of each candidate in QUIET, which are no worse than stable. Time is simulated: nothing waits.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from repository.config.traffic import Guardrail, TrafficPolicy
from serving.traffic.figures import ArmFigures
from serving.traffic.guardrails import BREACHED, Guardrails

USUAL = (
    Guardrail(metric="errors", margin=0.01),
    Guardrail(metric="latency", quantile=0.5, ratio=1.5),
    Guardrail(metric="latency", quantile=0.99, ratio=1.5),
)
WINDOW_S, PATIENCE_S, LATER_S = 300, 600, 400
SECOND_NS, MS = 1_000_000_000, 1_000_000
TRAFFIC = ((10, 50), (100, 5), (100, 50), (1000, 5))  # requests a second, and per cent of them for the candidate


class Answer(NamedTuple):
    ms: float
    failed: bool = False


# Arguments: a random generator, the second, whether the candidate answers.
Behaviour = Callable[[random.Random, int, bool], Answer]


def usual(chance: random.Random) -> float:
    """Return a latency in milliseconds, distributed as in a web service: the p99 is five times the p50."""
    return chance.lognormvariate(1.6, 0.69)


def failing(share: float) -> Behaviour:
    return lambda chance, second, candidate: Answer(usual(chance), candidate and chance.random() < share)


def slower(times: float) -> Behaviour:
    return lambda chance, second, candidate: Answer(usual(chance) * (times if candidate else 1.0))


FAULTS: dict[str, Behaviour] = {
    "every request fails": failing(1.0),
    "half of the requests fail": failing(0.5),
    "17 % fail": failing(0.17),
    "5 % fail (the limit is 1 %)": failing(0.05),
    "2 % fail": failing(0.02),
    "latencies 20 times as long": slower(20),
    "5 times": slower(5),
    "3 times (the limit is 1.5)": slower(3),
    "2 times": slower(2),
}


# -- candidates that are no worse ----------------------------------------------------------------------------------------
def _errors(chance: random.Random, second: int, candidate: bool) -> Answer:
    return Answer(usual(chance), chance.random() < 0.2)


def _both_out(chance: random.Random, second: int, candidate: bool) -> Answer:
    return Answer(usual(chance), second % 600 < 5)


def _pauses(chance: random.Random, second: int, candidate: bool) -> Answer:
    paused = candidate and second % 300 in (100, 101)
    return Answer(usual(chance) + (2000 if paused else 0))


def _heavy(chance: random.Random, second: int, candidate: bool) -> Answer:
    return Answer(min(30_000, 4 * chance.paretovariate(1.1)))


def _wandering(chance: random.Random, second: int, candidate: bool) -> Answer:
    wanders = 1.0 + (0.33 if candidate and (second // 60) % 2 else 0.0)
    return Answer(usual(chance) * wanders)


def _plain(chance: random.Random, second: int, candidate: bool) -> Answer:
    return Answer(usual(chance), chance.random() < 0.001)


QUIET: dict[str, Behaviour] = {
    "errors of 20 %": _errors,
    "outages of 5 s of both arms": _both_out,
    "pauses of 2 s of one arm": _pauses,
    "heavy tails": _heavy,
    "latencies of one arm that wander by a third": _wandering,
    "one error in a thousand": _plain,
}


class Simulation:
    """Both arms of a rollout whose clients send `rate` requests a second, evenly spread."""

    def __init__(self, rate: float, weight: float, seed: int, guardrails: tuple[Guardrail, ...] = USUAL) -> None:
        self._chance = random.Random(seed)
        self._rates = rate * (100 - weight) / 100, rate * weight / 100
        self.arms = ArmFigures(WINDOW_S), ArmFigures(WINDOW_S)
        policy = TrafficPolicy(rollout="r", candidate=2, weight=weight, guardrails=guardrails, window_s=WINDOW_S)
        self._guardrails = Guardrails(policy, *self.arms, None, {})
        self._due = [0.0, 0.0]

    def second(self, second: int, behaviour: Behaviour, batch: int = 1) -> bool:
        """Simulate a second. Return whether a guardrail is then breached. batch: how many requests fail together."""
        for candidate, (arm, rate) in enumerate(zip(self.arms, self._rates, strict=True)):
            self._due[candidate] += rate
            requests = int(self._due[candidate])
            self._due[candidate] -= requests
            failed = False
            for place in range(requests):
                answer = behaviour(self._chance, second, bool(candidate))
                failed = answer.failed if place % batch == 0 else failed
                at_ns = SECOND_NS * (second + 1) + (place - place % batch) * SECOND_NS // requests
                arm.begin()
                arm.count(int(answer.ms * MS), failed if batch > 1 else answer.failed, at_ns)
            arm.tick()
        return any(one.state == BREACHED for one in self._guardrails.evaluate())


def seconds_to_find(fault: Behaviour, rate: float, weight: float, seed: int, after_s: int = 0) -> int | None:
    """Return the seconds from the fault until the candidate is taken out; None if that takes longer than PATIENCE_S."""
    simulation = Simulation(rate, weight, seed)
    for second in range(after_s + PATIENCE_S):
        if simulation.second(second, fault if second >= after_s else _plain):
            return second + 1 - after_s
    return None


def accused(behaviour: Behaviour, rate: float, weight: float, seed: int, seconds: int, batch: int = 1) -> int:
    """Return how many false alarms a candidate that is no worse causes in `seconds`."""
    times, simulation = 0, Simulation(rate, weight, seed)
    for second in range(seconds):
        if simulation.second(second, behaviour, batch):
            times += 1
            simulation = Simulation(rate, weight, seed + times)
    return times


def _cell(fault: str, rate: float, weight: float, runs_each: int) -> str:
    found = []
    for after_s in (0, LATER_S):
        runs = [seconds_to_find(FAULTS[fault], rate, weight, seed, after_s) for seed in range(runs_each)]
        middle = sorted(PATIENCE_S + 1 if run is None else run for run in runs)[runs_each // 2]
        found.append(str(middle) if middle <= PATIENCE_S else f"not in {PATIENCE_S}")
    return found[0] if found[0] == found[1] and not found[0].isdigit() else ", ".join(found)


def _row(fault: str, runs_each: int) -> str:
    return f"| {fault} | " + " | ".join(_cell(fault, rate, weight, runs_each) for rate, weight in TRAFFIC) + " |"


def _quiet(name: str, rate: float, weight: float, seconds: int, batch: int) -> str:
    case = f"{name}, batches of {batch}" if batch > 1 else name
    times = accused(QUIET[name], rate, weight, 7, seconds, batch)
    return f"{case} ({rate:g}/s, weight {weight:g}): {times} in {seconds / 3600:g} h"


def lines(hours: float, runs_each: int) -> Iterator[str]:
    with ProcessPoolExecutor(2) as pool:
        if not hours:
            yield from pool.map(partial(_row, runs_each=runs_each), FAULTS)
            return
        seconds = int(hours * 3600)
        kinds = [(name, *traffic, seconds, 1) for name in QUIET for traffic in ((4, 50), (20, 50), (100, 5))]
        kinds += [("errors of 20 %", *traffic, seconds, 32) for traffic in ((64, 50), (640, 5))]
        yield from pool.map(_quiet, *zip(*kinds, strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quiet-hours", type=float, default=0.0)
    parser.add_argument("--runs", type=int, default=3, help="of each cell, of which the middle one is told")
    asked = parser.parse_args()
    for line in lines(asked.quiet_hours, asked.runs):
        print(line, flush=True)
