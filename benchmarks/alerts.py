"""Simulates 90 days of traffic of 200 models with planted faults, minute by minute, through the code that evaluates alerts.

`windows_of` decides which rules burn, `next_move` and `tells_already` which alerts fire; the kinds are those of the table. The
traffic is random, with a day's rhythm and failures that the objective allows. The same seed gives the same figures.
`alert_kinds` simulates the kinds of alert that are not about an objective.

    python -m benchmarks.alerts [--days 90] [--models 200] [--write]
"""

import argparse
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
MARKS = re.compile(r"(<!-- alerts -->\n).*?(<!-- end of alerts -->)", re.DOTALL)
PERCENT = 99.9
URGENCY = ("burn_fast", "burn", "burn_slow")
MINUTES_A_DAY = 1440
WARM_UP_DAYS = 4  # the longest window is full before the first fault
GAP_DAYS = 10  # between two faults of a model
# A fault is told by what it does to the requests, so an alert this long after its end still belongs to it.
AFTER_MINUTES = 360


class Fault(NamedTuple):
    """A kind of planted fault: the share of requests that fail while it lasts. told: whether the rules promise to tell it."""

    name: str
    share: float
    minutes: int
    told: bool = True


FAULTS = (
    Fault("all requests fail for 20 min", 1.0, 20),
    Fault("20 % fail for 40 min", 0.2, 40),
    Fault("5 % fail for 2 h", 0.05, 120),
    Fault("1 % fail for 12 h", 0.01, 720),
    Fault("0.3 % fail for 4 days", 0.003, 4 * MINUTES_A_DAY),
    Fault("5 % fail for 3 min, which the budget allows", 0.05, 3, told=False),
)


class Fired(NamedTuple):
    kind: str
    minute: int


@dataclass
class Outcome:
    """What was found. delays: minutes from the begin of a fault to its first alert.

    urgent: later alerts of the same fault by a more urgent rule. again: those by a rule that had told it, or a slower one.
    """

    planted: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    urgent: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    delays: dict[str, list[int]] = field(default_factory=dict)
    false: int = 0
    evaluations: int = 0
    requests: int = 0

    def add(self, other: "Outcome") -> None:
        self.planted += other.planted
        self.found += other.found
        self.urgent += other.urgent
        self.again += other.again
        for name, delays in other.delays.items():
            self.delays.setdefault(name, []).extend(delays)
        self.false += other.false
        self.evaluations += other.evaluations
        self.requests += other.requests


def schedule(chance: np.random.Generator, days: int) -> list[tuple[Fault, int]]:
    """Choose the faults of a model, each with the minute of its begin."""
    found, day = [], WARM_UP_DAYS + float(chance.uniform(0, GAP_DAYS))
    while day < days - GAP_DAYS:
        found.append((FAULTS[int(chance.integers(len(FAULTS)))], int(day * MINUTES_A_DAY)))
        day += GAP_DAYS + float(chance.uniform(0, GAP_DAYS))
    return found


def traffic(
    chance: np.random.Generator, days: int, faults: Sequence[tuple[Fault, int]]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the requests of each minute, and the bad ones: 0.1 to 100 requests a second, of which 0.005 to 0.05 % are bad."""
    minutes = np.arange(days * MINUTES_A_DAY)
    rhythm = 1 + 0.7 * np.sin(2 * math.pi * (minutes / MINUTES_A_DAY + chance.uniform()))
    requests = chance.poisson(60 * 10 ** chance.uniform(-1, 2) * rhythm)
    share = np.full(len(minutes), 10 ** chance.uniform(math.log10(5e-5), math.log10(5e-4)))
    for fault, begin in faults:
        share[begin : begin + fault.minutes] = np.maximum(share[begin : begin + fault.minutes], fault.share)
    return requests.tolist(), chance.binomial(requests, share).tolist()


def alerts_of(requests: Sequence[int], bad: Sequence[int]) -> Iterator[Fired]:
    """Yield the alerts that fire for one model, evaluated each minute."""
    from dashboard.alerts.life import Episode, Move, next_move, tells_already
    from dashboard.alerts.table import BY_NAME
    from dashboard.objectives.burn import MINUTE, RULES, Series, Span, windows_of

    series = Series(Span(at * MINUTE, *counts) for at, counts in enumerate(zip(requests, bad, strict=True)))
    kinds = [BY_NAME[rule.kind] for rule in RULES]
    open_alerts: dict[str, tuple[str, float, float]] = {}  # kind -> state, since, seen_at
    ended: dict[str, float] = {}
    masks = long_windows_burn(requests, bad)
    some = np.flatnonzero(np.any(masks, axis=0)).tolist()
    may_burn = {minute: [bool(mask[minute]) for mask in masks] for minute in some}
    for minute in range(len(requests)):
        may = may_burn.get(minute)
        if may is None and not open_alerts:
            continue
        now = float(minute * MINUTE)
        chosen = [rule for rule, yes in zip(RULES, may, strict=True) if yes] if may else []
        rules = [windows_of(rule, series, now + MINUTE, PERCENT) for rule in chosen]
        opens = {one.rule.kind for one in rules if one.burns}
        goes_on = {one.rule.kind for one in rules if one.goes_on}
        if not goes_on and not open_alerts:
            continue
        for kind in kinds:
            if kind.name not in goes_on and kind.name not in open_alerts:
                continue
            state, since, seen_at = open_alerts.get(kind.name, (None, now, now))
            found = kind.name in (opens if state is None else goes_on)
            firing = [Episode(name, None) for name, row in open_alerts.items() if row[0] == "firing"]
            episodes = [*firing, *(Episode(name, at) for name, at in ended.items())]
            if found and state != "firing" and tells_already(kind.unless, episodes, now):
                continue
            seen_at = now if found else seen_at
            given = partial(
                next_move,
                found=found,
                now=now,
                since=since,
                seen_at=seen_at,
                hold_s=kind.hold_s,
                clear_s=kind.clear_s,
            )
            move = given(state)
            if move == Move.OPEN:
                state = "pending"
                move = given(state)
            if move == Move.FIRE:
                state = "firing"
                yield Fired(kind.name, minute)
            if move in (Move.DISCARD, Move.RESOLVE):
                open_alerts.pop(kind.name)
                if move == Move.RESOLVE:
                    ended[kind.name] = now
            elif state is not None:
                open_alerts[kind.name] = (state, since, seen_at)


def long_windows_burn(requests: Sequence[int], bad: Sequence[int]) -> list[np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return for each rule the minutes in which it may burn, by its long window alone: most need no closer look."""
    from dashboard.objectives.burn import GOES_ON, MINUTE, RULES

    totals = [np.concatenate([[0], np.cumsum(counts)]) for counts in (requests, bad)]
    last, found = np.arange(1, len(requests) + 1), []
    for rule in RULES:
        first = np.maximum(last - rule.long_s // MINUTE, 0)
        in_window = [total[last] - total[first] for total in totals]
        found.append(in_window[1] >= 0.999 * GOES_ON * rule.factor * (1 - PERCENT / 100) * in_window[0])
    return found


def simulate(days: int, number: int) -> Outcome:
    """Simulate one model. number: of the model, which is the seed."""
    chance = np.random.default_rng(number)
    faults = schedule(chance, days)
    requests, bad = traffic(chance, days, faults)
    outcome = Outcome(evaluations=len(requests), requests=sum(requests))
    outcome.planted.update(fault.name for fault, _ in faults)
    told: dict[int, list[Fired]] = {}
    for fired in alerts_of(requests, bad):
        owner = next(
            (
                place
                for place, (fault, begin) in enumerate(faults)
                if begin <= fired.minute <= begin + fault.minutes + AFTER_MINUTES
            ),
            None,
        )
        if owner is None or not faults[owner][0].told:
            outcome.false += 1
        else:
            told.setdefault(owner, []).append(fired)
    for place, alerts in told.items():
        fault, begin = faults[place]
        outcome.found[fault.name] += 1
        outcome.delays.setdefault(fault.name, []).append(alerts[0].minute - begin)
        ranks = [URGENCY.index(one.kind) for one in alerts]
        urgent = sum(rank < min(ranks[:number]) for number, rank in enumerate(ranks) if number)
        outcome.urgent[fault.name] += urgent
        outcome.again[fault.name] += len(alerts) - 1 - urgent
    return outcome


def simulate_all(days: int, models: int, workers: int) -> Outcome:
    whole = Outcome()
    if workers == 1:
        for number in range(models):
            whole.add(simulate(days, number))
        return whole
    with ProcessPoolExecutor(workers, initializer=_set_up) as pool:
        for outcome in pool.map(partial(simulate, days), range(models), chunksize=4):
            whole.add(outcome)
    return whole


def table(outcome: Outcome, days: int, models: int) -> str:
    rows = [
        f"{models} models, {days} days, {outcome.requests:,} requests, {outcome.evaluations:,} evaluations, one a minute",
        f"for each model; the objective is {PERCENT} %. False alarms: **{outcome.false}**.",
        "",
        "| fault | planted | found | then told as more urgent | told again | minutes to the alert: least | median | longest |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for fault in FAULTS:
        delays = outcome.delays.get(fault.name, [])
        found = str(outcome.found[fault.name]) if fault.told else "none should be"
        times = f"{min(delays)} | {median(delays):.0f} | {max(delays)}" if delays else "– | – | –"
        counts = f"{outcome.planted[fault.name]} | {found} | {outcome.urgent[fault.name]} | {outcome.again[fault.name]}"
        rows.append(f"| {fault.name} | {counts} | {times} |")
    return "\n".join(rows) + "\n"


def _set_up() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="write the table to docs/performance.md")
    given = parser.parse_args()
    _set_up()
    text = table(simulate_all(given.days, given.models, given.workers), given.days, given.models)
    print(text)
    if given.write:
        PAGE.write_text(MARKS.sub(lambda found: found[1] + text + found[2], PAGE.read_text()))


if __name__ == "__main__":
    main()
