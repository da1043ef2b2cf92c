"""Short executions run on the event loop's own thread: when that begins, when it stops, and that nothing else changes."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from serving.core.in_flight import InFlightRequest
from serving.execution.execution_times import ALWAYS, FIRST_LOOK, LONE, NEVER, WHEN_ALONE, ExecutionTimes
from serving.models.model import Model
from serving.resources.loop_time import BURST_NS, SHARE, LoopTime
from serving.resources.runtime import Runtime
from tests.serving.gate import Call, GateBackend, gated_model, ignore
from tests.serving.requests import in_flight

US = 1000


def _times(*took_us: int, inline: bool = False, times: ExecutionTimes | None = None) -> ExecutionTimes:
    times = times or ExecutionTimes(100 * US)
    for one in took_us:
        times.add(1, one * US, inline)
    return times


# -- which executions are short ----------------------------------------------------------------------------------------
def test_a_few_short_executions_bring_a_size_to_the_loop():
    times = _times(*[20] * (FIRST_LOOK - 1))
    assert times.on_loop(1) == NEVER
    assert _times(20, times=times).on_loop(1) == ALWAYS


def test_waiting_for_the_interpreter_does_not_make_an_execution_long():
    assert _times(900, 700, 20, 5000).on_loop(1) == ALWAYS


def test_a_longer_execution_runs_there_only_when_no_other_request_waits():
    assert _times(*[300] * FIRST_LOOK).on_loop(1) == WHEN_ALONE
    assert _times(*[100 * LONE + 1] * FIRST_LOOK).on_loop(1) == NEVER


def test_one_size_of_batches_says_nothing_of_another():
    times = _times(*[20] * FIRST_LOOK)
    assert [times.on_loop(rows) for rows in (1, 2, 64)] == [ALWAYS, NEVER, NEVER]


@pytest.mark.interpreted
def test_a_size_whose_executions_grow_longer_leaves_the_loop(monkeypatch):
    times = _times(*[20] * FIRST_LOOK)
    monkeypatch.setattr(ExecutionTimes, "_interrupted", lambda self: True)
    assert _times(90, 110, 90, 110, inline=True, times=times).on_loop(1) == ALWAYS
    assert _times(*[200] * 20, inline=True, times=times).on_loop(1) != ALWAYS


@pytest.mark.interpreted
def test_one_execution_of_several_times_the_bound_is_enough(monkeypatch):
    times = _times(*[20] * FIRST_LOOK)
    monkeypatch.setattr(ExecutionTimes, "_interrupted", lambda self: False)
    assert _times(401, inline=True, times=times).on_loop(1) == NEVER


@pytest.mark.interpreted
def test_a_size_that_left_has_to_be_short_for_longer(monkeypatch):
    monkeypatch.setattr(ExecutionTimes, "_interrupted", lambda self: False)
    times = _times(*[20] * FIRST_LOOK)
    _times(401, inline=True, times=times)
    assert _times(*[20] * FIRST_LOOK, times=times).on_loop(1) == NEVER
    assert _times(*[20] * 3 * FIRST_LOOK, times=times).on_loop(1) == ALWAYS


def test_a_bound_of_zero_keeps_every_execution_on_its_thread():
    times = ExecutionTimes(0)
    assert _times(*[0] * 10 * FIRST_LOOK, times=times).on_loop(1) == NEVER


def test_executions_get_a_burst_and_then_their_share_of_the_loops_time():
    loop_time = LoopTime()
    now = time.monotonic_ns()
    burst = int(BURST_NS)
    loop_time.spend(now, now + burst)
    assert loop_time.left_ns <= 0
    loop_time.spend(now + 2 * burst, now + 2 * burst)
    assert loop_time.left_ns == pytest.approx(2 * burst * SHARE)


# -- in a model --------------------------------------------------------------------------------------------------------
class _AnyThread(threading.Event):
    """The gate of a model that may run on any thread; it notes on which one each execution came by."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []
        self.set()

    def wait(self, timeout: float | None = None) -> bool:
        self.threads.append(threading.current_thread().name)
        return super().wait(timeout)


@contextlib.asynccontextmanager
async def _model(
    monkeypatch: pytest.MonkeyPatch, settings: str = "", any_thread: bool = True
) -> AsyncIterator[tuple[Model, list[str]]]:
    monkeypatch.setattr("tests.serving.gate._GateInstance.any_thread", any_thread)
    with ThreadPoolExecutor(1) as executor:
        runtime = Runtime(asyncio.get_running_loop(), executor, ignore, ignore)
        async with gated_model(settings, runtime=runtime) as (model, backend):
            backend.gate = gate = _AnyThread()
            yield model, gate.threads


def _bound(microseconds: int) -> str:
    return f'parameters {{ key: "slipway.inline_below_us" value {{ string_value: "{microseconds}" }} }}'


LONG = 10_000  # us: what no machine takes for adding one, however busy it is with others


async def _infer_one_by_one(model: Model, count: int) -> None:
    for value in range(count):
        assert await Call(model, [value]).answer() == [value + 1]


@pytest.mark.asyncio
async def test_a_quick_model_moves_to_the_loop_and_is_counted(monkeypatch):
    async with _model(monkeypatch, _bound(LONG)) as (model, threads):
        await _infer_one_by_one(model, FIRST_LOOK + 4)
        assert threads[:FIRST_LOOK] == ["gated_0_0"] * FIRST_LOOK
        assert "MainThread" in threads[FIRST_LOOK:]
        assert model.statistics.inline_count == threads.count("MainThread")
        assert model.statistics.execution_count == len(threads)


@pytest.mark.asyncio
@pytest.mark.parametrize(("bound_us", "any_thread"), [(0, True), (LONG, False)])
async def test_a_model_that_may_not_stays_on_its_thread(monkeypatch, bound_us, any_thread):
    async with _model(monkeypatch, _bound(bound_us), any_thread) as (model, threads):
        await _infer_one_by_one(model, FIRST_LOOK + 4)
        assert set(threads) == {"gated_0_0"}


@pytest.mark.asyncio
async def test_another_bound_is_taken_while_the_model_serves(monkeypatch):
    async with _model(monkeypatch, _bound(LONG)) as (model, threads):
        await _infer_one_by_one(model, FIRST_LOOK + 4)
        config = type(model.config)()
        config.CopyFrom(model.config)
        config.parameters["slipway.inline_below_us"].string_value = "0"
        await model.reconfigure(config)
        before = len(threads)
        await _infer_one_by_one(model, FIRST_LOOK + 4)
        assert set(threads[before:]) == {"gated_0_0"}


@pytest.mark.asyncio
async def test_nothing_is_answered_while_a_request_is_submitted(monkeypatch):
    async with _model(monkeypatch, _bound(LONG)) as (model, threads):
        await _infer_one_by_one(model, FIRST_LOOK + 4)
        inside: list[int] = []
        answered: list[object] = []

        def submit() -> InFlightRequest:
            request = in_flight(
                "gated", {"IN": np.zeros((1, 1), np.float32)}, lambda answer, _: answered.append(len(inside))
            )
            inside.append(1)
            model.submit(request)
            inside.pop()
            return request

        for _ in range(3):
            submit()
        while len(answered) < 3:
            await asyncio.sleep(0)
        assert answered == [0, 0, 0]
        assert "MainThread" in threads


@pytest.mark.asyncio
async def test_a_cancelled_request_never_runs(monkeypatch):
    async with _model(monkeypatch, _bound(LONG)) as (model, _):
        await _infer_one_by_one(model, FIRST_LOOK + 4)
        calls = [Call(model, [value]) for value in (50, 51, 52)]
        calls[1].request.cancel()
        assert [await calls[0].answer(), await calls[2].answer()] == [[51.0], [53.0]]
        assert [51.0] not in GateBackend.latest.log


@pytest.mark.asyncio
async def test_a_model_that_raises_on_the_loop_fails_its_request_alone(monkeypatch):
    async with _model(monkeypatch, _bound(LONG)) as (model, _):
        await _infer_one_by_one(model, FIRST_LOOK + 4)
        refused, taken = Call(model, [-1]), Call(model, [1])
        with pytest.raises(Exception, match="does not like -1"):
            await refused.answer()
        assert await taken.answer() == [2.0]


@pytest.mark.asyncio
async def test_with_preserved_ordering_answers_come_in_order(monkeypatch):
    settings = "dynamic_batching { preserve_ordering: true } instance_group { count: 2 kind: KIND_CPU }" + _bound(LONG)
    async with _model(monkeypatch, settings) as (model, _):
        order: list[float] = []
        requests = []
        for number in range(60):
            array = np.full((8, 1), number, np.float32)
            request = in_flight("gated", {"IN": array}, lambda answer, _, number=number: order.append(number))
            requests.append(request)
            model.submit(request)
            if number % 7 == 0:
                await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while len(order) < len(requests):
                await asyncio.sleep(0.001)
        assert order == sorted(order)


class _Watched(_AnyThread):
    """It also notes the executions that began while another one was under way."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = 0
        self.overlapping: list[str] = []

    def wait(self, timeout: float | None = None) -> bool:
        if self.under_way:
            self.overlapping.append(threading.current_thread().name)
        self.under_way += 1
        time.sleep(0.002)  # the interpreter's lock is let go, as by a backend
        self.under_way -= 1
        return super().wait(timeout)


@pytest.mark.asyncio
async def test_an_instance_executes_one_batch_at_a_time(monkeypatch):
    async with _model(monkeypatch, _bound(LONG)) as (model, _):
        gate = GateBackend.latest.gate = _Watched()
        calls = [Call(model, [value]) for value in range(8 * FIRST_LOOK)]
        assert [await call.answer() for call in calls] == [[value + 1] for value in range(8 * FIRST_LOOK)]
        assert "MainThread" in gate.threads
        assert "gated_0_0" in gate.threads
        assert gate.overlapping == []
