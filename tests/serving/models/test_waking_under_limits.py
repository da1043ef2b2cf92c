"""Models that wake while memory, room at a step of an ensemble, or resources of the rate limiter are scarce."""

import asyncio
import contextlib

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from serving.resources import memory
from serving.scheduling.ensemble_run import Run
from tests.serving.gate import GateBackend, until, write_gated
from tests.serving.in_process import core, index, infer
from tests.serving.models.test_residency import asking_for, asleep
from tests.serving.requests import in_flight
from tests.support.pipelines import ensemble, step

pytestmark = pytest.mark.asyncio
MB = 1 << 20
ONE = {"IN": np.ones((1, 1), np.float32)}
CPU = "instance_group { kind: KIND_CPU "
LIMITED = CPU + 'rate_limiter { resources { name: "R" count: 1 } } }'


@pytest.fixture
def backends(monkeypatch):
    """Each model's backend by its name, the one that was made last. Its gate is open, unless the test closes it."""
    made, begin = {}, GateBackend.__init__

    def note(backend, spec):
        begin(backend, spec)
        backend.gate.set()
        made[spec.name] = backend

    monkeypatch.setattr(GateBackend, "__init__", note)
    monkeypatch.setattr(memory, "resident_bytes", lambda: 0)  # each model holds what its files do, on every run
    return made


class Asked:
    """A request under way."""

    def __init__(self, server, model):
        self.answers = []
        inputs = {"X": ONE["IN"]} if model == "pipeline" else ONE
        self.request = in_flight(model, inputs, lambda answer, final: self.answers.append(answer))
        server.infer(self.request)

    async def answer(self):
        """The value of its output; raises the error that it was answered with."""
        await until(lambda: self.answers, "an answer")
        [answer] = self.answers
        if isinstance(answer, ServingError):
            raise answer
        return next(iter(answer.outputs.values())).item()


@contextlib.asynccontextmanager
async def pipeline(folder, first, second, limit=0, **options):
    """Y = (X + 1) + 1, by two gated models with what is added to their configurations."""
    for name, extra in (("first", first), ("second", second)):
        write_gated(folder, name, CPU + "} " + extra if "kind" not in extra else extra, size=10 * MB)
    steps = step("first", {"IN": "X"}, {"OUT": "m"}) + step("second", {"IN": "m"}, {"OUT": "Y"})
    ensemble(folder, f"max_inflight_requests: {limit} {steps}", max_batch_size=4)
    async with core(folder, load_model=("pipeline",), **options) as server:
        yield server


async def test_room_in_memory_is_not_waited_for_behind_requests_that_wait_for_the_woken_model(tmp_path, backends):
    """The requests of what a reload has replaced may be calls of the very model that wakes."""
    write_gated(tmp_path, "reloaded", asking_for("evictable"), size=10 * MB)
    write_gated(tmp_path, "wakes", asking_for("on_demand"), size=10 * MB)
    async with core(tmp_path, load_model=("*",), memory_budget=25 * MB) as server:
        old = backends["reloaded"]
        old.gate.clear()
        under_way = Asked(server, "reloaded")
        await until(lambda: old.log, "the execution")
        write_gated(tmp_path, "reloaded", asking_for("evictable"), size=11 * MB)
        await server.load_model("reloaded")
        assert (await infer(server, "wakes", ONE))["OUT"] == 2
        assert asleep(server, "reloaded")
        assert not under_way.answers
        old.gate.set()
        assert await under_way.answer() == 2
        assert (await infer(server, "reloaded", ONE))["OUT"] == 2


async def test_a_model_wakes_under_a_budget_while_another_is_unloaded_and_still_answers(tmp_path, backends):
    write_gated(tmp_path, "unloaded", size=10 * MB)
    write_gated(tmp_path, "wakes", asking_for("on_demand"), size=10 * MB)
    async with core(tmp_path, load_model=("*",), memory_budget=15 * MB) as server:
        backends["unloaded"].gate.clear()
        under_way = Asked(server, "unloaded")
        await until(lambda: backends["unloaded"].log, "the execution")
        await server.unload_model("unloaded")
        assert (await infer(server, "wakes", ONE))["OUT"] == 2, "it goes over the budget: no other model may go"
        assert index(server)["unloaded", "1"][0] == "UNLOADING"
        backends["unloaded"].gate.set()
        assert await under_way.answer() == 2


async def test_nothing_is_loaded_for_requests_that_were_cancelled_while_they_waited(tmp_path, backends):
    write_gated(tmp_path, extra=asking_for("on_demand"))
    async with core(tmp_path, load_model=("gated",)) as server:
        (lifecycle,) = server._manager._models
        async with lifecycle.lock:
            requests = [Asked(server, "gated") for _ in range(2)]
            await asyncio.sleep(0)
            for one in requests:
                one.request.cancel()
        await lifecycle.versions[1].model.drain()
        assert not backends
        assert asleep(server, "gated")
        assert {one.answers[0].code for one in requests} == {Code.CANCELLED}
        assert (await infer(server, "gated", ONE))["OUT"] == 2


async def test_the_others_go_on_when_a_request_is_cancelled_whose_step_wakes_under_a_limit(tmp_path, backends):
    async with pipeline(tmp_path, asking_for("on_demand"), "", limit=1) as server:
        requests = [Asked(server, "pipeline") for _ in range(4)]
        await asyncio.sleep(0)
        requests[0].request.cancel()  # at the step, which loads
        requests[2].request.cancel()  # waits for room there
        assert [await requests[number].answer() for number in (1, 3)] == [3, 3]
        assert (await infer(server, "pipeline", {"X": ONE["IN"]}))["Y"] == 3


async def test_a_request_that_waited_for_room_and_cannot_begin_leaves_it_to_the_next(tmp_path, backends, monkeypatch):
    async with pipeline(tmp_path, "", "", limit=1) as server:
        backends["first"].gate.clear()
        requests = [Asked(server, "pipeline") for _ in range(3)]
        await until(lambda: backends["first"].log, "the execution")
        begin, tried = Run._start, []

        def fail_once(run, *arguments):
            tried.append(run)
            if len(tried) == 1:
                raise ZeroDivisionError
            begin(run, *arguments)

        monkeypatch.setattr(Run, "_start", fail_once)
        backends["first"].gate.set()
        with pytest.raises(ServingError, match="running the steps"):
            await requests[1].answer()
        assert [await requests[number].answer() for number in (0, 2)] == [3, 3]


async def test_a_server_that_ends_while_a_model_wakes_answers_the_requests_that_wait_for_it(tmp_path, backends):
    write_gated(tmp_path, extra=asking_for("on_demand"))
    async with core(tmp_path, load_model=("gated",)) as server:
        requests = [Asked(server, "gated") for _ in range(3)]
        (lifecycle,) = server._manager._models
        await until(lambda: lifecycle.versions[1].state.name == "LOADING", "the load for them")
    assert [one.answers[0].outputs["OUT"].item() for one in requests] == [2, 2, 2]
    assert backends["gated"].closed


async def test_a_step_that_cannot_be_loaded_keeps_no_room(tmp_path, backends, monkeypatch):
    monkeypatch.setattr("serving.models.sleeping_model.RETRY_S", 0)
    async with pipeline(tmp_path, asking_for("on_demand"), "", limit=1) as server:
        with monkeypatch.context() as broken:
            broken.setattr(GateBackend, "create_instance", lambda *_: 1 / 0)
            requests = [Asked(server, "pipeline") for _ in range(4)]
            for one in requests:
                with pytest.raises(ServingError, match="could not be loaded for its first request"):
                    await one.answer()
        assert (await infer(server, "pipeline", {"X": ONE["IN"]}))["Y"] == 3


async def test_steps_that_have_no_room_in_memory_together_answer_in_turns(tmp_path, backends):
    text = asking_for("evictable")
    async with pipeline(tmp_path, text, text, limit=1, memory_budget=15 * MB) as server:
        requests = [Asked(server, "pipeline") for _ in range(6)]
        assert [await one.answer() for one in requests] == [3] * 6


async def test_a_step_wakes_while_its_resources_are_another_models(tmp_path, backends):
    """Its instances wait for the resource that the other step holds; clients that go leave it to those that stay."""
    limits = {"rate_limit": "execution_count", "rate_limit_resource": (("R", 1, None),)}
    async with pipeline(tmp_path, LIMITED, LIMITED + asking_for("on_demand"), **limits) as server:
        backends["first"].gate.clear()
        holding = Asked(server, "first")
        await until(lambda: backends["first"].log, "the execution")
        waiting = [Asked(server, "second") for _ in range(2)]
        behind = Asked(server, "pipeline")
        await until(lambda: index(server)["second", "1"][0] == "READY", "the model to wake")
        for one in waiting:
            one.request.cancel()
        backends["first"].gate.set()
        assert await holding.answer() == 2
        assert await behind.answer() == 3
        assert backends["second"].log == [[2.0]]
