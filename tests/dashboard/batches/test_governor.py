"""A batch job sends more while live traffic does not suffer, and less as soon as it does."""

import asyncio

from dashboard.batches.sending.governor import ENOUGH, FRESH_TICKS, Governor, OwnRequests, without
from dashboard.batches.sending.pace import FIRST_ROWS, Pace
from dashboard.metrics.feed import Tick
from dashboard.metrics.usage import Usage
from repository.core.histogram import bucket_of

MOST = 64


class Second:
    """One second of a server, as its feed reports it: live requests of a duration in us, and the job's own."""

    def __init__(self) -> None:
        self.own = OwnRequests()
        self.pace = Pace(MOST)
        self.governor = Governor(self.pace, self.own, "model")

    def passes(self, live: int = 0, us: int = 1000, own: int = 0, own_us: int = 5000, queue_us: int = 0) -> None:
        counts: dict[int, int] = {}
        for number, duration in ((live, us), (own, own_us)):
            counts[bucket_of(duration)] = counts.get(bucket_of(duration), 0) + number
        for _ in range(own):
            self.own.add(own_us / 1e6)
        total = live + own
        usage = Usage(request=counts, queue_count=total, queue_ns=total * queue_us * 1000)
        self.governor.see(Tick(0.0, 1.0, {("model", 1): usage}, {"rss": 0, "cpu": 0.0, "threads": 1, "gpus": []}))


def with_baseline(live: int = ENOUGH) -> Second:
    second = Second()
    second.passes(live=live)  # live traffic is noticed
    assert second.pace.held
    second.passes(live=live)  # and measured alone
    assert not second.pace.held
    return second


def test_without_live_traffic_the_limit_grows_to_its_most() -> None:
    second = Second()
    assert second.pace.limit == FIRST_ROWS
    for _ in range(6):
        second.passes(own=100)
    assert second.pace.limit == MOST
    assert not second.pace.held


def test_the_limit_grows_slowly_beside_live_traffic_that_does_not_suffer() -> None:
    second = with_baseline()
    second.passes(live=ENOUGH, own=20)
    assert FIRST_ROWS < second.pace.limit < 2 * FIRST_ROWS


def test_a_slower_p99_of_live_traffic_halves_the_limit() -> None:
    second = with_baseline()
    second.passes(live=ENOUGH, us=1200, own=20)
    assert second.pace.limit == FIRST_ROWS // 2


def test_a_longer_queue_halves_the_limit_before_the_p99_is_known() -> None:
    second = with_baseline()
    second.passes(live=20, own=20, queue_us=200)
    assert second.pace.limit == FIRST_ROWS // 2


def test_the_jobs_own_slow_requests_do_not_count() -> None:
    second = with_baseline()
    second.passes(live=ENOUGH, own=50, own_us=400_000)
    assert second.pace.limit > FIRST_ROWS


def test_at_one_row_the_job_waits_between_requests_and_recovers() -> None:
    second = with_baseline()
    for _ in range(6):
        second.passes(live=ENOUGH, us=2000, own=5)
    assert second.pace.limit == 1
    assert second.pace.pause_s > 0
    second.passes(live=ENOUGH, own=5)
    assert second.pace.pause_s == 0


def test_live_traffic_is_measured_alone_again_from_time_to_time() -> None:
    second = with_baseline()
    held = 0
    for _ in range(FRESH_TICKS + 2):
        second.passes(live=ENOUGH, own=5)
        held += second.pace.held
    assert held == 1


def test_models_that_only_the_job_uses_do_not_stop_it_again_and_again() -> None:
    """The steps of an ensemble have requests whenever the job sends, and none while it is held."""
    second = Second()
    step = Usage(request={bucket_of(1000): 50})
    process = {"rss": 0, "cpu": 0.0, "threads": 1, "gpus": []}
    second.governor.see(Tick(0.0, 1.0, {("step", 1): step}, process))  # type: ignore[arg-type]
    assert second.pace.held
    second.governor.see(Tick(0.0, 1.0, {}, process))  # type: ignore[arg-type]
    for _ in range(20):
        second.governor.see(Tick(0.0, 1.0, {("step", 1): step}, process))  # type: ignore[arg-type]
        assert not second.pace.held
    assert second.pace.limit > FIRST_ROWS


def test_own_requests_are_taken_from_the_bucket_below_their_duration() -> None:
    counts = {bucket_of(900): 10, bucket_of(4000): 2}
    assert without(counts, [4200, 4300, 950]) == {bucket_of(900): 9}


def test_a_lost_request_makes_all_wait_for_each_other() -> None:
    async def granted() -> list[int]:
        pace = Pace(MOST)
        order = [await pace.take(4)]
        pace.suspects += 1
        waiting = asyncio.create_task(pace.take(4))
        await asyncio.sleep(0)
        assert not waiting.done()
        pace.give(4)
        order.append(await waiting)
        return order

    assert asyncio.run(granted()) == [4, 4]
