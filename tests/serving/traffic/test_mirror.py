"""Mirrors: the requests to the candidate, their order, those dropped under load, and the memory held. Both arms are doubles
that answer when the test says so; real models and servers are in test_shadow.py."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.traffic import Keep, Shadow
from serving.core.datatypes import DATATYPES
from serving.core.errors import NoAnswer, ServingError, internal, invalid, unavailable, unsupported
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.core.output_target import MemoryRange, OutputRule, OutputTarget
from serving.core.request import InferenceRequest, SequencePosition
from serving.core.response import Answer, InferenceResponse
from serving.extensions.shared_memory import SharedMemory
from serving.extensions.tensor_parameters import read_input
from serving.resources.request_memory import RequestMemory
from serving.traffic import mirror as mirrors
from serving.traffic import spare_time
from serving.traffic.figures import ShadowFigures
from serving.traffic.mirror import Mirror, MirroredArm
from serving.traffic.remotes.remote_model import NotAsDeclared
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine under load holds up the loop, which drops mirrors."""
    monkeypatch.setattr(mirrors, "LATE_NS", 10**12)
    monkeypatch.setattr(spare_time, "BUSY", 2)


class Arm:
    """A double of a candidate: it holds what it is asked until `answer`."""

    def __init__(self) -> None:
        self.asked: list[InFlightRequest] = []
        self.waiting = 0
        self.refuses: ServingError | None = None

    def submit(self, request: InFlightRequest) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.asked.append(request)

    def answer(self, values: Any) -> None:
        answer = InferenceResponse("m", 2, "", {"y": np.array([values], np.float32)})
        self.asked.pop(0).respond(answer)


class Client:
    """What happens to requests, in order."""

    def __init__(self, **shadow: Any) -> None:
        self.events: list[str] = []
        self.stable, self.candidate = Arm(), Arm()
        self.memory = RequestMemory(1 << 24)
        self.figures = ShadowFigures(60)
        self.timeout_s = shadow.pop("timeout_s", 600.0)
        config = ModelConfig(name="m", max_batch_size=8)
        config.output.add(name="y", dims=[2])
        config.dynamic_batching.priority_levels = 5
        self.config = config
        self.mirror = self.mirror_of(**shadow)

    def mirror_of(self, **shadow: Any) -> Mirror:
        settings = Shadow(**({"share": 100.0, "absolute": 0.0, "relative": 0.0} | shadow))
        arms = [MirroredArm(one.submit, lambda one=one: one.waiting) for one in (self.stable, self.candidate)]  # type: ignore[misc]
        return Mirror(settings, self.config, *arms, self.figures, self.memory, self.timeout_s)

    def ask(self, x: Any = None, y: tuple[float, ...] = (1.0, 2.0), answer: Answer = None, **fields: Any) -> bool:
        """Answer a request as stable, with the mirror looking on. Return whether the mirror wanted it."""
        wanted = self.mirror.wants()
        inputs = {"x": np.array([[5.0]], np.float32) if x is None else x}
        asked = InferenceRequest("m", inputs, **fields)
        request = InFlightRequest(asked, CallbackResponder(lambda answer, final: self.events.append("client answered")))
        given = answer or InferenceResponse("m", 1, "", {"y": np.array([y], np.float32)})
        if wanted:
            request.observe(_Offers(self.mirror))
        request.respond(given)
        return wanted

    async def wait_until(self, done: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not done():
                await asyncio.sleep(0)


class _Offers:
    """The observer of a rollout's stable arm."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def executed(self, request: InFlightRequest, execution: Any) -> None:
        raise AssertionError

    step = executed

    def context(self) -> str:
        return ""

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        self._mirror.offer(request, answer, 1_000_000)


async def test_the_client_is_answered_before_anything_is_copied_or_asked() -> None:
    client = Client()
    submit = client.candidate.submit
    take = client.mirror.take

    def taken(*arguments: Any) -> None:
        client.events.append("copied")
        take(*arguments)

    def asked(request: InFlightRequest) -> None:
        client.events.append("candidate asked")
        submit(request)

    client.mirror.take = taken  # type: ignore[method-assign]
    client.mirror._candidate = MirroredArm(asked, lambda: 0)
    client.ask()
    assert client.events == ["client answered", "copied"]
    await client.wait_until(lambda: client.candidate.asked)
    assert client.events == ["client answered", "copied", "candidate asked"]
    client.mirror.close()


async def test_the_candidate_is_asked_the_same_at_the_lowest_priority() -> None:
    client = Client()
    given = np.array([[5.0]], np.float32)
    client.ask(given, id="r", parameters={"a": 1}, requested_outputs=("y",), priority=1, timeout_us=7)
    given[:] = -1  # its memory is used again
    await client.wait_until(lambda: client.candidate.asked)
    asked = client.candidate.asked[0].asked
    assert asked.inputs["x"].tolist() == [[5.0]]
    assert (asked.id, asked.parameters, asked.requested_outputs) == ("r", {"a": 1}, ("y",))
    assert (asked.priority, asked.timeout_us, asked.model_version) == (5, 0, "")
    client.mirror.close()


async def test_differences_are_counted_and_latencies_of_the_same_requests() -> None:
    client = Client(absolute=0.25)
    for candidate in ([1.0, 2.0], [1.25, 2.0], [3.0, 2.0]):
        client.ask()
        await client.wait_until(lambda: client.candidate.asked)
        client.candidate.answer(candidate)
    figures = client.figures
    assert (figures.compared, figures.disagreed, figures.mismatched, figures.failed) == (3, 1, 0, 0)
    assert (figures.max_absolute, figures.sum_absolute) == (2.0, 0.125 + 1.0)
    assert (figures.top1_compared, figures.top1_agreed) == (3, 2)
    assert figures.stable_latency.sum_ns == 3_000_000
    assert figures.candidate_latency.total == 3
    assert not figures.dropped
    client.mirror.close()


async def test_a_candidate_that_hangs_holds_no_more_than_the_policy_allows_and_is_given_up() -> None:
    client = Client(max_in_flight=2, timeout_s=0.01)
    wanted = [client.ask() for _ in range(5)]
    assert wanted == [True, True, False, False, False]
    assert client.events == ["client answered"] * 5
    assert client.figures.dropped == {"in_flight": 3}
    await client.wait_until(lambda: client.figures.failed == 2)
    assert [one.cancelled for one in client.candidate.asked] == [True, True]
    assert client.memory.taken == 0
    client.candidate.answer([9.0, 9.0])  # too late
    assert client.figures.compared == 0
    assert client.ask()
    client.mirror.close()
    assert client.memory.taken == 0


async def test_mirrors_are_dropped_where_requests_of_clients_wait_or_memory_is_scarce() -> None:
    client = Client()
    client.stable.waiting = 33  # four batches and one more
    assert not client.ask()
    client.stable.waiting = 0
    client.memory.take(client.memory.limit - 5)
    assert not client.ask()
    client.memory.give(client.memory.limit - 5)
    client.ask()
    client.candidate.waiting = 33
    await client.wait_until(lambda: client.figures.dropped["queue"] == 2)
    client.candidate.waiting = 0
    client.candidate.refuses = unavailable("its queue is full")
    client.ask()
    await client.wait_until(lambda: client.figures.dropped["refused"])
    client.candidate.refuses = internal("it is broken")
    client.ask()
    await client.wait_until(lambda: client.figures.failed)
    assert client.figures.dropped == {"queue": 2, "memory": 1, "refused": 1}
    assert client.memory.taken == 0
    assert client.candidate.asked == []


async def test_a_refusal_of_the_candidate_is_counted_by_its_meaning_and_shown() -> None:
    client = Client()
    for refuses in (unavailable("no room"), NoAnswer("it has not answered"), invalid("7 is no age")):
        client.candidate.refuses = refuses
        client.ask()
        await client.wait_until(
            lambda said=refuses.message: client.figures.trouble and client.figures.trouble[0] == said
        )
    assert (client.figures.failed, client.figures.dropped) == (2, {"refused": 1})
    client.candidate.refuses = unsupported("JSON has no infinities")
    client.ask()
    await client.wait_until(lambda: client.figures.dropped["unfit"])
    client.candidate.refuses = None
    client.ask()
    await client.wait_until(lambda: client.candidate.asked)
    other = {"y": np.array([[1, 2]])}
    client.candidate.asked.pop().respond(NotAsDeclared("output 'y' came as INT64 [1, 2], expected FP32 [1, 2]", other))
    assert (client.figures.compared, client.figures.mismatched, client.figures.failed) == (1, 1, 2)
    assert client.mirror.mismatches.after(0)[0].candidate["y"].dtype == np.int64
    client.mirror.configure(Shadow(share=100.0, keep=None), client.config)
    client.candidate.refuses = invalid("8 is no age")
    client.ask()
    await client.wait_until(lambda: client.figures.failed == 3)
    assert client.figures.trouble is None  # it may quote an input
    client.mirror.close()


async def test_mismatches_are_forgotten_after_their_days(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(keep=Keep(days=2))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    client.ask()
    await client.wait_until(lambda: client.candidate.asked)
    client.candidate.answer([9.0, 9.0])
    now += 2 * 24 * 3600 - 1
    client.mirror.mismatches.tick()
    assert len(client.mirror.mismatches.after(0)) == 1
    now += 2
    client.mirror.mismatches.tick()
    assert (client.mirror.mismatches.after(0), client.memory.taken) == ([], 0)


async def test_a_loop_that_is_behind_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    monkeypatch.setattr(mirrors, "LATE_NS", -1)
    client.ask()
    await client.wait_until(lambda: client.figures.dropped["loop"])
    assert client.candidate.asked == []
    assert client.memory.taken == 0


@contextmanager
def registered_input() -> Iterator[Any]:
    """An input in shared memory that a client has registered."""
    with NamedTemporaryFile(dir="/dev/shm") as owner:
        owner.truncate(4096)
        memory = SharedMemory(True)
        memory.register_system("region", owner.name.removeprefix("/dev/shm"), 0, 4096)
        yield read_input(memory, "m", "x", DATATYPES["FP32"], (1, 1), MemoryRange("region", 64, 4))


async def test_requests_that_cannot_be_repeated_count_as_unfit() -> None:
    client = Client()
    with registered_input() as mapped:
        client.ask(mapped)
        del mapped
    client.ask(sequence=SequencePosition(7, True))
    client.ask(output_targets={"y": OutputTarget(OutputRule(classes=1))})
    client.ask(x=np.full((1, mirrors.MAX_ELEMENTS + 1), b"x", np.object_))
    client.ask(answer=internal("stable has failed"))
    streamed = InFlightRequest(InferenceRequest("m", {}), CallbackResponder(lambda answer, final: None))
    client.mirror.offer(streamed, None, 1)  # a decoupled model has ended its stream
    assert client.figures.dropped == {"unfit": 4, "too_large": 1}
    assert client.events == ["client answered"] * 5
    assert client.memory.taken == 0


async def test_the_worst_mismatches_are_kept_with_their_inputs_within_count_and_bytes() -> None:
    client = Client(keep=Keep(count=2, bytes=10_000, days=1))
    for number, off in enumerate([1.0, 4.0, 0.0, 2.0, 3.0, 0.5]):
        client.ask(np.array([[number]], np.float32), y=(0.0, 0.0))
        await client.wait_until(lambda: client.candidate.asked)
        client.candidate.answer([off, 0.0])
    kept = client.mirror.mismatches.after(0)
    assert [(one.inputs["x"].item(), one.candidate["y"][0, 0], one.max_absolute) for one in kept] == [
        (1, 4, 4),
        (4, 3, 3),
    ]
    assert kept[0].stable["y"].tolist() == [[0.0, 0.0]]
    assert kept[0].detail == "output 'y': 1 of 2 elements are beyond the tolerance"
    assert [one.id for one in client.mirror.mismatches.after(kept[0].id)] == [kept[1].id]
    assert client.memory.taken == sum(one.size for one in kept) == 2 * (4 + 8 + 8)
    client.mirror.configure(Shadow(share=100.0, keep=Keep(count=2, bytes=20)), client.config)
    assert [one.max_absolute for one in client.mirror.mismatches.after(0)] == [4.0]
    client.mirror.configure(Shadow(share=100.0, keep=None), client.config)
    assert client.mirror.mismatches.after(0) == []
    assert client.memory.taken == 0


async def test_private_inputs_are_not_kept() -> None:
    client = Client(keep=None)
    client.ask()
    await client.wait_until(lambda: client.candidate.asked)
    client.candidate.answer([7.0, 7.0])
    assert client.figures.disagreed == 1
    assert client.mirror.mismatches.after(0) == []
    assert client.memory.taken == 0


async def test_large_answers_are_compared_on_another_thread_and_their_memory_is_counted() -> None:
    client = Client(keep=None)
    large = np.ones((1, 100_000), np.float32)
    client.ask(answer=InferenceResponse("m", 1, "", {"y": large}))
    await client.wait_until(lambda: client.candidate.asked)
    other = large.copy()
    other[0, 77_777] = 1.5
    with holding_comparisons() as go_on:
        client.candidate.asked.pop().respond(InferenceResponse("m", 2, "", {"y": other}))
        assert client.memory.taken == 4 + 2 * large.nbytes
        assert client.figures.compared == 0
        go_on()
        await client.wait_until(lambda: client.figures.compared)
    assert client.figures.max_absolute == 0.5
    assert client.memory.taken == 0
    client.mirror.close()


@contextmanager
def holding_comparisons() -> Iterator[Callable[[], None]]:
    """Let comparisons wait until what is given is called."""
    import threading

    event = threading.Event()
    compare = mirrors.compare

    def waiting(*arguments: Any) -> Any:
        event.wait(PATIENCE_S)
        return compare(*arguments)

    mirrors.compare = waiting  # type: ignore[assignment]
    try:
        yield event.set
    finally:
        mirrors.compare = compare
        event.set()


async def test_closing_cancels_mirrors_and_gives_their_memory_back() -> None:
    client = Client()
    client.ask()
    client.ask()
    await client.wait_until(lambda: len(client.candidate.asked) == 2)
    client.candidate.answer([9.0, 9.0])
    assert client.memory.taken > 0
    client.mirror.close()
    assert client.memory.taken == 0
    assert client.candidate.asked[0].cancelled
    assert client.figures.failed == 0
    assert not client.ask()
    assert client.mirror.mismatches.after(0) == []


async def test_the_share_is_that_of_the_policy() -> None:
    client = Client(share=10.0, max_in_flight=1_000_000)
    wanted = sum(client.mirror.wants() for _ in range(20_000))
    assert abs(wanted - 2000) < 6 * (20_000 * 0.1 * 0.9) ** 0.5
