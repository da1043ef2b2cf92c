"""The simulation forms the batches that the rules of the real scheduler form."""

from collections import Counter
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from dashboard.advice.simulation import Outcome, ServiceTime, Setting, simulate
from serving.core.in_flight import InFlightRequest
from serving.scheduling.batch_rules import BatchRules, FormingBatch
from tests.dashboard.advice.shapes import SHAPES
from tests.serving.requests import in_flight

SERVICE = ServiceTime(fixed_ns=4_000_000, row_ns=300_000)
NEVER = 1 << 62


def scheduled(times: list[int], rows: int, setting: Setting) -> Outcome:
    """Run requests through BatchRules, on a clock of its own, as DynamicBatchScheduler does."""
    rules = BatchRules(setting.max_rows, setting.preferred, setting.delay_ns)
    coming = [request_at(at, rows) for at in reversed(times)]
    queue: list[InFlightRequest] = []
    running: list[int] = []
    waited: list[int] = []
    batches: Counter[int] = Counter()
    busy = last = 0
    due = NEVER
    while coming or queue:
        now = min(coming[-1].queued_ns if coming else NEVER, running[0] if running else NEVER, due)
        while running and running[0] <= now:
            heappop(running)
        while coming and coming[-1].queued_ns <= now:
            queue.append(coming.pop())
        due = NEVER
        while queue and len(running) < setting.instances:
            if setting.merges:
                forming = FormingBatch(rules)
                forming.add(queue)
                chosen, _, wait_ns = forming.choose(now)
            else:
                chosen, wait_ns = queue[:1], 0
            if not chosen:
                due = now + wait_ns
                break
            del queue[: len(chosen)]
            size = sum(one.batch_size for one in chosen)
            took = int(SERVICE.mean_ns(size))
            waited += [now - one.queued_ns for one in chosen]
            batches[size] += 1
            busy += took
            last = max(last, now + took)
            heappush(running, now + took)
    return Outcome(waited, [], batches, busy, last - times[0])


def request_at(queued_ns: int, rows: int) -> InFlightRequest:
    request = in_flight("m", {}, batch_size=rows)
    request.queued_ns = queued_ns
    return request


def agree(times: list[int], rows: int, setting: Setting) -> None:
    expected = scheduled(times, rows, setting)
    found = simulate(times, rows, setting, SERVICE, Random(0))
    assert found.waited_ns == expected.waited_ns
    assert found.batches == expected.batches
    assert (found.busy_ns, found.span_ns) == (expected.busy_ns, expected.span_ns)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "setting",
    [
        Setting(False, 8),
        Setting(False, 8, instances=3),
        Setting(True, 8),
        Setting(True, 8, delay_ns=15_000_000),
        Setting(True, 16, (4, 8), 15_000_000),
        Setting(True, 16, (4,)),
        Setting(True, 16, (8,), 3_000_000, 2),
    ],
    ids=str,
)
def test_three_shapes_of_traffic_form_the_batches_of_the_real_rules(shape: str, setting: Setting) -> None:
    for rate in (50, 200, 600):
        agree(SHAPES[shape](rate, 400), 1, setting)


@settings(max_examples=60)
@given(
    gaps=some.lists(some.integers(0, 20_000_000), min_size=1, max_size=60),
    rows=some.integers(1, 5),
    merges=some.booleans(),
    max_rows=some.integers(1, 12),
    preferred=some.lists(some.integers(1, 12), max_size=3, unique=True),
    delay_ns=some.sampled_from([0, 1, 1_000_000, 30_000_000]),
    instances=some.integers(1, 3),
)
def test_any_setting_forms_the_batches_of_the_real_rules(
    gaps: list[int], rows: int, merges: bool, max_rows: int, preferred: list[int], delay_ns: int, instances: int
) -> None:
    times = [sum(gaps[: end + 1]) for end in range(len(gaps))]
    fitting = tuple(sorted(size for size in preferred if size <= max_rows))
    agree(times, min(rows, max_rows), Setting(merges, max_rows, fitting, delay_ns, instances))


def test_more_instances_than_requests_at_once_leave_nobody_waiting() -> None:
    outcome = simulate(SHAPES["steady"](200, 100), 1, Setting(False, 1, instances=2), SERVICE, Random(0))
    assert set(outcome.waited_ns) == {0}
    assert outcome.took_ms(0.99) == pytest.approx(4.3)
    assert outcome.busy_instances == pytest.approx(0.86, rel=0.02)
