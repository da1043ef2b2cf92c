"""Three shapes of traffic, and the statistics that a server would report of them."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from dashboard.advice.simulation import ServiceTime, Setting, simulate
from dashboard.advice.traffic import Traffic
from dashboard.metrics.usage import Usage
from repository.core.histogram import Counts, bucket_of, merge

REST_NS = 300_000  # of each request, outside of the queue and the model


def steady(rate: float, count: int) -> list[int]:
    """Requests at equal distances. rate: per second. Like the other shapes: times in ns, ascending."""
    return [int(number / rate * 1e9) + 1 for number in range(count)]


def poisson(rate: float, count: int, seed: int = 3) -> list[int]:
    random = Random(seed)
    found, now = [], 1
    for _ in range(count):
        now += int(random.expovariate(rate) * 1e9)
        found.append(now)
    return found


def bursts(rate: float, count: int, length: int = 12, within_ns: int = 500_000) -> list[int]:
    """Bursts of `length` requests, with a gap of within_ns in a burst."""
    period = int(length / rate * 1e9)
    return [number // length * period + number % length * within_ns + 1 for number in range(count)]


SHAPES = {"steady": steady, "poisson": poisson, "bursts": bursts}


def histogram(durations: Sequence[int]) -> Counts:
    return merge({bucket_of(nanoseconds // 1000): 1} for nanoseconds in durations)


def traffic(times: Sequence[int], setting: Setting, service: ServiceTime, *, rows: int = 1, seed: int = 5) -> Traffic:
    """Return what a server with two cores would report, if its model had such times of executions."""
    random = Random(seed)
    outcome = simulate(times, rows, setting, service, random)
    took = [one + REST_NS for one in outcome.took_ns]
    executions = [(size, service.draw(size, random)) for size, count in outcome.batches.items() for _ in range(count)]
    usage = Usage(
        success=len(times),
        success_ns=sum(took),
        queue_count=len(times),
        queue_ns=sum(outcome.waited_ns),
        compute_count=len(times),
        compute_ns=sum(outcome.took_ns) - sum(outcome.waited_ns),
        inferences=len(times) * rows,
        executions=len(executions),
        batches=dict(outcome.batches),
        batch_ns={size: sum(ns for one, ns in executions if one == size) for size in outcome.batches},
        request=histogram(took),
        queue=histogram(outcome.waited_ns),
        compute=histogram([ns for _, ns in executions]),
        gaps=histogram([after - before for before, after in pairwise(times)]),
    )
    return Traffic(usage, outcome.span_ns / 1e9, cpu=0.2, cores=2)
