"""Many good requests at a time, of any kind and in any order; some clients leave: each of the others gets its own answer."""

import asyncio
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.e2e.fuzzing.inputs import KEPT, fuzzed
from tests.serving.frontends.raw_http import samples
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

# What a request that is in itself good may be refused with, by how it was queued or in what state its sequence was.
REFUSALS = (
    "timeout",
    "timed out",
    "maximum queue size",
    "START",
    "start",
    "sequence",
    "doesn't support models with decoupled",
)
EMPTY_FINAL = "triton_enable_empty_final_response"
SEQUENCES = ("sequence", "counted", "oldest", "named", "summed")


@dataclass(frozen=True)
class Good:
    """A request that its model can answer. `leaves`: the client cancels after so many milliseconds."""

    model: str
    rows: int
    width: int
    value: int
    sequence: int
    start: bool
    end: bool
    priority: int
    timeout_us: int
    leaves: int | None

    def arrays(self) -> dict[str, Any]:
        """Input name -> FP32 array."""
        rows, width, model = self.rows, self.width, self.model
        if model in SEQUENCES:
            return {"INPUT0": self._full(1, 1)}
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            "add_sub": {"INPUT0": (rows, 4), "INPUT1": (rows, 4)},
            "optional": {"INPUT0": (rows, width), **({"INPUT1": (rows, width)} if self.end else {})},
            "variable": {"INPUT0": (rows, width, 2)},
            "reshaped": {"INPUT0": (rows, width, 2)},
            "ragged": {"IN": (1, width), "ROWS": (1, 1)},
            "pipeline": {"X": (rows, 1)},
            "plain": {"INPUT0": (width,)},
            "decoupled": {"INPUT0": (1,)},
            "decoupled_both": {"INPUT0": (1,)},
        }
        return {name: self._full(*shape) for name, shape in shapes.get(model, {"INPUT0": (rows, 1)}).items()}

    def _full(self, *shape: int) -> Any:
        return np.full(shape, self.value, np.float32)

    def first_value(self) -> float | None:
        """What every element of the first output is; None where it depends on other requests."""
        if self.model in (*SEQUENCES, "decoupled", "decoupled_both"):
            return None
        factor = {"add_sub": 2, "pipeline": 4, "optional": 2 if self.end else 1}
        doubling = ("cached", "python", "both", "lazy", "prioritised", "ordered")
        return self.value * factor.get(self.model, 2 if self.model in doubling else 1)


def models() -> list[str]:
    single = [
        "add_sub",
        "optional",
        "variable",
        "reshaped",
        "scalar",
        "ragged",
        "pipeline",
        "plain",
        "cached",
        "python",
    ]
    return [*single, "both", "lazy", "prioritised", "ordered", "decoupled", "decoupled_both", *SEQUENCES]


small = st.integers(1, 4)
goods = st.builds(
    Good,
    model=st.sampled_from(models()),
    rows=small,
    width=small,
    value=st.integers(0, 5),
    sequence=st.integers(1, 6) | st.sampled_from([2**31 - 1, 2**31, 2**63 - 1]),
    start=st.booleans(),
    end=st.booleans(),
    priority=st.integers(0, 3),
    timeout_us=st.sampled_from([0, 0, 1, 1000, 10_000_000]),
    leaves=st.none() | st.integers(0, 5),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fuzzed(tmp_path_factory.mktemp("fuzz")) as server:
        yield server


def inputs(good: Good) -> list[Any]:
    made = []
    for name, array in good.arrays().items():
        made.append(tritonclient.grpc.InferInput(name, array.shape, "FP32"))
        made[-1].set_data_from_numpy(array)
    return made


def fields(good: Good) -> dict[str, Any]:
    found: dict[str, Any] = {"priority": good.priority, "timeout": good.timeout_us or None}
    if good.model in SEQUENCES:
        found |= {"sequence_id": good.sequence, "sequence_start": good.start, "sequence_end": good.end}
    return found


async def ask(client: Any, good: Good) -> str | None:
    """None for an answer as it must be, else what was said."""
    call = asyncio.ensure_future(client.infer(good.model, inputs(good), client_timeout=PATIENCE_S, **fields(good)))
    if good.leaves is not None:
        await asyncio.sleep(good.leaves / 1000)
        call.cancel()
        with suppress(asyncio.CancelledError, tritonclient.grpc.InferenceServerException):
            await call
        return None
    try:
        answer = await call
    except tritonclient.grpc.InferenceServerException as error:
        return f"{error.status()}: {error.message()}"
    expected = good.first_value()
    found = answer.as_numpy("VALUES" if good.model == "ragged" else "OUTPUT0")
    return None if expected is None or np.all(found == expected) else f"{found.tolist()} instead of {expected}"


async def burst(server: ServerProcess, requests: list[Good]) -> list[str]:
    async with tritonclient.grpc.aio.InferenceServerClient(server.grpc) as client:
        said = await asyncio.gather(*(ask(client, good) for good in requests))
        kept = Good("add_sub", 1, 1, 1, 0, False, False, 0, 0, None)
        answer = await client.infer(KEPT, inputs(kept), client_timeout=PATIENCE_S)
        assert answer.as_numpy("OUTPUT0").tolist() == [[2.0] * 4]
    return [f"{good}: {text}" for good, text in zip(requests, said, strict=True) if text and not refused(good, text)]


def refused(good: Good, text: str) -> bool:
    """Whether a model's queue or sequence refused; not that something failed or hung.

    Who leaves a sequence ends it, for the requests behind it too.
    """
    if good.model in SEQUENCES and "the request was cancelled" in text:
        return True
    return any(reason in text for reason in REFUSALS) and "DEADLINE" not in text and "INTERNAL" not in text


@settings(max_examples=80)
@given(requests=st.lists(goods, min_size=1, max_size=24))
def test_every_request_of_a_burst_is_answered_and_right(server: ServerProcess, requests: list[Good]) -> None:
    assert asyncio.run(burst(server, requests)) == []
    wait_until(lambda: waiting(server) == {}, what="the end of every request")


def message(good: Good, number: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=good.model, id=str(number))
    for name, array in good.arrays().items():
        request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    parameters = {key: value for key, value in fields(good).items() if value} | {EMPTY_FINAL: True}
    for key, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "uint64_param" if key == "priority" else "int64_param"
        setattr(request.parameters[key], kind, value)
    return request


async def stream(server: ServerProcess, requests: list[Good]) -> dict[int, list[pb.ModelInferResponse]]:
    """The responses to each request of one stream, by its number; refusals under -1."""
    answers: dict[int, list[pb.ModelInferResponse]] = {-1: []}
    bodies = [message(good, number) for number, good in enumerate(requests)]
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        async for answer in stub.ModelStreamInfer(iter(bodies), timeout=PATIENCE_S):
            number = -1 if answer.error_message else int(answer.infer_response.id)
            answers.setdefault(number, []).append(answer.infer_response)
    return answers


@settings(max_examples=60)
@given(requests=st.lists(goods, min_size=1, max_size=12))
def test_every_request_of_a_stream_is_ended_once(server: ServerProcess, requests: list[Good]) -> None:
    answers = asyncio.run(stream(server, requests))
    ends = len(answers[-1])
    for number, good in enumerate(requests):
        final = [answer.parameters["triton_final_response"].bool_param for answer in answers.get(number, [])]
        assert final in ([], [*([False] * (len(final) - 1)), True]), (good, final)
        ends += len(final) > 0
        if final and good.model in ("decoupled", "decoupled_both"):
            values = [answer.raw_output_contents[0] for answer in answers[number] if answer.raw_output_contents]
            assert [struct.unpack("<f", value)[0] for value in values] == list(range(good.value)), good
    assert ends == len(requests), (requests, answers)
    wait_until(lambda: waiting(server) == {}, what="the end of every request")


def waiting(server: ServerProcess) -> dict[str, float]:
    """The models with requests that are not answered."""
    found = {name: value for name, value in samples(server).items() if name.startswith("nv_inference_pending")}
    return {name: value for name, value in found.items() if value}
