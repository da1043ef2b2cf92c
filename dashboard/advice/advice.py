"""Advice on a model's batching and instances: a setting that simulations prefer to the present one, and how certain that is.

The present setting is simulated, too. If the result differs much from the measured one, something else than batching decides
how long requests take, and there is no advice. A request's p99 and the busy time of an execution are predicted with the process
of arrivals that explains the present queue best, and with every time of an execution that the statistics allow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from dashboard.advice.candidates import (
    Change,
    batching_around,
    changes,
    instances_around,
    setting_of,
    unfit,
    with_setting,
)
from dashboard.advice.simulation import Arrivals, Outcome, ServiceTime, Setting, simulate
from dashboard.advice.traffic import ServiceRange, Traffic, possible_arrivals, service_times
from repository.config.document import Document
from repository.config.lines import unified
from repository.core.histogram import Counts, bucket_of, merge

MATTERS = 0.1  # a gain below this share is not worth a change
MOST_UNEXPLAINED = 0.3  # of the measured p99
LEAST_SAVED = 0.05  # busy instances; saving less does not matter, whatever share it is
COST_ALLOWED = 0.25  # of p99, for a saving of a busy model; COST_ALLOWED_IDLE for one that has room
COST_ALLOWED_IDLE = 0.05
BUSY_FROM = 0.5  # of the instances

_FIRST_LOOK = 800  # requests of a simulation that compares all candidates
_SECOND_LOOK = 3000  # requests of a simulation that compares the best ones
_SEEDS = (1, 2)
_FINALISTS = 3
_SLIGHT = 0.02  # a smaller change is not mentioned
_SHORT_US = 200  # waits below this are not told apart: the loop of the server needs such times


class Estimate(NamedTuple):
    """A predicted number with its uncertainty."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """p50, p95 and p99 in ms. rows: the mean rows of a batch. busy: the mean number of instances that execute a batch. room:
    the number of requests that the instances can execute at least, divided by the present number."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    rows: float
    busy: float
    room: float


@dataclass(frozen=True, slots=True)
class Advice:
    """A better configuration. now: measured. then: predicted. p99_ms, p50_ms, rows, busy: with their uncertainty. why: one
    sentence."""

    document: Document
    difference: str
    changes: list[Change]
    now: Figures
    then: Figures
    p99_ms: Estimate
    p50_ms: Estimate
    rows: Estimate
    busy: Estimate
    why: str

    @property
    def p99_change(self) -> float:
        """The relative change of p99; negative for a gain."""
        return self.p99_ms.value / self.now.p99_ms - 1

    @property
    def busy_change(self) -> float:
        return self.busy.value / self.now.busy - 1

    @property
    def effect(self) -> str:
        """The gains and costs as one sentence."""
        p99 = _changed(self.p99_change, "shorter", "longer", "stays as it is")
        busy = _changed(self.busy_change, "less", "more", "as much as now")
        verb = "becomes " if abs(self.p99_change) >= _SLIGHT else ""
        return f"p99 {verb}{p99}, and the instances work {busy} for each request."

    @property
    def summary(self) -> str:
        """The changes as one line, such as for the history of the configuration."""
        return ", ".join(f"{one.field}: {one.before} -> {one.after}" for one in self.changes)


@dataclass(frozen=True, slots=True)
class Finding:
    """An advice, or the reason for none, as a sentence."""

    advice: Advice | None
    reason: str = ""


def _changed(change: float, less: str, more: str, same: str) -> str:
    if abs(change) < _SLIGHT:
        return same
    return f"{abs(change) * 100:.0f} % {less if change < 0 else more}"


class _Model(NamedTuple):
    """A process of arrivals and the times of executions, which explain the traffic."""

    arrivals: Arrivals
    rows: int
    service: ServiceRange


class _Case(NamedTuple):
    """One simulation of the second look: a seed, and a time of an execution that the statistics allow. optimistic: whether more
    instances do not slow each other down."""

    seed: int
    service: ServiceTime
    optimistic: bool


@dataclass(frozen=True, slots=True)
class _Judged:
    """A candidate after the second look."""

    setting: Setting
    figures: Figures
    p99_ms: Estimate
    p50_ms: Estimate
    rows: Estimate
    busy: Estimate
    worth: float


def advise(traffic: Traffic, document: Document, *, gpus: int = 0) -> Finding:
    """Return the advice for a model with this traffic and this configuration. gpus: the number of GPUs of the server."""
    if clause := unfit(document):
        return Finding(None, f"There is no advice for this model: {clause}.")
    if traffic.shortage:
        return Finding(None, f"There is too little traffic for advice: {traffic.shortage}.")
    present = setting_of(document, gpus)
    service = service_times(traffic)
    model = _explain(traffic, present, service)
    judge = _Judge(traffic, present, model)
    if judge.unexplained > MOST_UNEXPLAINED:
        return Finding(
            None,
            f"There is no advice: a simulation of the present configuration gives a p99 of {judge.simulated_p99_ms:.3g} ms, but"
            f" {judge.now.p99_ms:.3g} ms were measured. Something else than batching decides how long requests take.",
        )
    finalists = _finalists(document, traffic, present, judge, gpus)
    best = max(judge.judged(finalists), key=lambda one: one.worth, default=None)
    if best is None or best.worth <= 0:
        return Finding(None, _nothing_better(service))
    changed = with_setting(document, present, best.setting)
    return Finding(
        Advice(
            document=changed,
            difference=unified(document.text, changed.text, old_name="now", new_name="advised"),
            changes=changes(present, best.setting),
            now=judge.now,
            then=best.figures,
            p99_ms=best.p99_ms,
            p50_ms=best.p50_ms,
            rows=best.rows,
            busy=best.busy,
            why=_why(traffic, present, best),
        )
    )


def _nothing_better(service: ServiceRange) -> str:
    if service.one_size:
        return (
            "No other setting is certain to be better. All batches had the same size, so the time of a larger batch is not"
            " known."
        )
    return "No other setting is better by more than a tenth, beyond the uncertainty."


# -- explaining the traffic ------------------------------------------------------------------------------------------
def _explain(traffic: Traffic, present: Setting, service: ServiceRange) -> _Model:
    """Return the process of arrivals whose simulation resembles the measured queue and batches most."""
    models = [_Model(arrivals, traffic.rows, service) for arrivals in possible_arrivals(traffic.usage.gaps)]
    if len(models) == 1:
        return models[0]
    return min(models, key=lambda one: _distance(traffic, _run(one, present, service.likely, 1, _SECOND_LOOK)))


def _distance(traffic: Traffic, outcome: Outcome) -> float:
    """Return how much a simulation differs from the measurements, from 0 to 2: the largest difference of the distributions of
    waits, and the share of requests in batches of other sizes."""
    waits = merge({bucket_of(one // 1000): 1} for one in outcome.waited_ns)
    return _largest_difference(traffic.usage.queue, waits) + _other_sizes(traffic.usage.batches, outcome.batches)


def _largest_difference(one: Counts, other: Counts) -> float:
    short = bucket_of(_SHORT_US)
    totals = sum(one.values()) or 1, sum(other.values()) or 1
    sums = [0.0, 0.0]
    largest = 0.0
    for bucket in sorted({*one, *other}):
        sums[0] += one.get(bucket, 0) / totals[0]
        sums[1] += other.get(bucket, 0) / totals[1]
        if bucket > short:
            largest = max(largest, abs(sums[0] - sums[1]))
    return largest


def _other_sizes(one: Counts, other: Counts) -> float:
    totals = [sum(rows * count for rows, count in batches.items()) for batches in (one, other)]
    return (
        sum(abs(rows * one.get(rows, 0) / totals[0] - rows * other.get(rows, 0) / totals[1]) for rows in {*one, *other})
        / 2
    )


def _run(model: _Model, setting: Setting, service: ServiceTime, seed: int, requests: int) -> Outcome:
    random = Random(seed)
    return simulate(model.arrivals.times(requests, random), model.rows, setting, service, random)


# -- choosing a setting ----------------------------------------------------------------------------------------------
def _finalists(document: Document, traffic: Traffic, present: Setting, judge: "_Judge", gpus: int) -> list[Setting]:
    """Return the candidates that are best in short simulations."""
    batches = traffic.usage.batches
    full_share = batches.get(present.max_rows, 0) / sum(batches.values())
    batching = batching_around(document, present, traffic.gap_ms, full_share)
    best = sorted(batching, key=judge.first_look, reverse=True)[:_FINALISTS]
    more = [one for setting in (present, *best[:1]) for one in instances_around(document, setting, gpus)]
    return best + sorted(more, key=judge.first_look, reverse=True)[:_FINALISTS]


class _Judge:
    """Compares settings with the present one. The same arrivals are simulated for both.

    now: the measured figures. unexplained: the part of the measured p99 that the simulation does not explain, from 0.
    """

    def __init__(self, traffic: Traffic, present: Setting, model: _Model) -> None:
        self._traffic, self._present, self._model = traffic, present, model
        likely, flat, steep = model.service.likely, model.service.flat, model.service.steep
        self._cases = [
            _Case(seed, service, optimistic)
            for seed in _SEEDS
            for service, optimistic in ((likely, False), (flat, True), (steep, False))
        ]
        self._before = [self._simulated(present, case, _SECOND_LOOK) for case in self._cases]
        self._first = self._simulated(present, self._cases[0], _FIRST_LOOK)
        self.simulated_p99_ms = _mean([self._p99_ms(one) for one in self._before])
        measured = traffic.took_ms(0.99)
        self._residual_ms = measured - self.simulated_p99_ms
        self.unexplained = abs(self._residual_ms) / measured
        busy = _mean([one.busy_ns_of_request for one in self._before])
        self._busy_error = abs(busy / traffic.busy_ns_of_request - 1)
        self.now = Figures(
            traffic.took_ms(0.5),
            traffic.took_ms(0.95),
            measured,
            traffic.rows_of_batch,
            traffic.busy_instances,
            self._room(present),
        )

    def first_look(self, setting: Setting) -> float:
        """Return the worth of a setting by one short simulation."""
        outcome = self._simulated(setting, self._cases[0], _FIRST_LOOK)
        p99 = self._p99_ms(outcome) / self._p99_ms(self._first)
        busy = outcome.busy_ns_of_request / self._first.busy_ns_of_request
        return self._worth(setting, p99, busy)

    def judged(self, settings: Sequence[Setting]) -> list[_Judged]:
        """Return those of the settings that matter."""
        return [one for setting in settings if (one := self._judged(setting)) is not None]

    def _judged(self, setting: Setting) -> _Judged | None:
        after = [self._simulated(setting, case, _SECOND_LOOK) for case in self._cases]
        p99 = self._p99_after(after)
        ratios = [
            one.busy_ns_of_request / before.busy_ns_of_request for one, before in zip(after, self._before, strict=True)
        ]
        ratio = Estimate(_mean(ratios), min(ratios) - self._busy_error, max(ratios) + self._busy_error)
        now = self.now
        quicker = p99.high < (1 - MATTERS) * now.p99_ms
        saves = ratio.high < 1 - MATTERS and now.busy * (1 - ratio.high) >= LEAST_SAVED
        use = now.busy / self._present.instances
        cost = COST_ALLOWED if use >= BUSY_FROM else COST_ALLOWED_IDLE
        too_busy = ratio.high * now.busy > 0.8 * setting.instances and ratio.value > 1
        if not (quicker or (saves and p99.value <= (1 + cost) * now.p99_ms)) or too_busy:
            return None
        p50, p95 = (
            _estimate([one.took_ms(quantile) + self._traffic.rest_ms for one in after]) for quantile in (0.5, 0.95)
        )
        rows = _estimate([one.rows_of_batch for one in after])
        figures = Figures(
            p50.value,
            p95.value,
            p99.value,
            rows.value,
            now.busy * ratio.value,
            self._room(setting),
        )
        busy = Estimate(*(now.busy * one for one in ratio))
        worth = self._worth(setting, p99.high / now.p99_ms, ratio.high)
        return _Judged(setting, figures, p99, p50, rows, busy, worth)

    def _p99_after(self, after: list[Outcome]) -> Estimate:
        """Predict p99: the unexplained part stays as it is, and counts as uncertainty."""
        changed = [self._p99_ms(one) - self._p99_ms(before) for one, before in zip(after, self._before, strict=True)]
        least = _mean([self._p99_ms(one) for one in after]) + min(0.0, self._residual_ms)
        measured, unsure = self.now.p99_ms, abs(self._residual_ms)
        value = max(measured + _mean(changed), least, 0.0)
        return Estimate(value, max(0.0, measured + min(changed) - unsure), max(value, measured + max(changed)) + unsure)

    def _worth(self, setting: Setting, p99_ratio: float, busy_ratio: float) -> float:
        """Return how much better a setting is: a shorter p99, less work if the instances are busy, and no more instances."""
        use = min(1.0, self._traffic.busy_instances / self._present.instances)
        more = setting.instances - self._present.instances
        return -math.log(max(p99_ratio, 1e-3)) - use * math.log(max(busy_ratio, 1e-3)) - 0.05 * more

    def _simulated(self, setting: Setting, case: _Case, requests: int) -> Outcome:
        return _run(self._model, setting, self._slowed(setting, case), case.seed, requests)

    def _slowed(self, setting: Setting, case: _Case) -> ServiceTime:
        """Return the times of executions if more instances than now share the machine's cores.

        Each instance needs at most the cores that the server used while one was busy. If that is not known, the pessimistic
        case is that more instances are no faster.
        """
        more = setting.instances / self._present.instances
        if case.optimistic or more <= 1:
            return case.service
        traffic = self._traffic
        if traffic.cores is None or not traffic.busy_instances:
            return case.service.stretched(more)
        each = traffic.cpu / traffic.busy_instances
        before, after = (
            max(1.0, each * count / traffic.cores) for count in (self._present.instances, setting.instances)
        )
        return case.service.stretched(after / before)

    def _room(self, setting: Setting) -> float:
        """Return the room, with the longest times that the statistics allow."""
        service = self._slowed(setting, _Case(0, self._model.service.steep, optimistic=False))
        rows = self._traffic.rows
        largest = setting.preferred[-1] if setting.preferred and not setting.delay_ns else setting.max_rows
        most = max(1, largest // rows) if setting.merges else 1
        quickest = min(service.mean_ns(count * rows) / count for count in range(1, most + 1))
        return setting.instances / (quickest / 1e9) / self._traffic.rate

    def _p99_ms(self, outcome: Outcome) -> float:
        return outcome.took_ms(0.99) + self._traffic.rest_ms


def _estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of the cases, and the range of all."""
    return Estimate(_mean(values), min(values), max(values))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _why(traffic: Traffic, present: Setting, best: _Judged) -> str:
    wanted, rows = best.setting, best.figures.rows
    share = round(100 * min(1.0, traffic.queue_share))
    reasons = []
    if wanted.delay_ns < present.delay_ns:
        reasons.append("the queue delay is a part of that wait and saves little")
    if rows > traffic.rows_of_batch * 1.1:
        reasons.append(f"batches of {rows:.2g} rows take less of the instances’ time for each request")
    if wanted.instances > present.instances:
        reasons.append(f"with {wanted.instances} instances, fewer requests wait for a busy one")
    return (
        f"A request comes every {traffic.gap_ms:.3g} ms, a batch has {traffic.rows_of_batch:.2g} rows, and {share} % of a"
        f" request’s time is in the queue: {', and '.join(reasons) or 'other batch sizes fit these arrivals better'}."
    )
