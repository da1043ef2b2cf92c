"""Golden requests: examples with the answers that are expected, asked of a model before it takes the requests of clients.

They run one after another through the model's scheduler and instances, count in no statistics, and neither read nor fill the
response cache. The steps of an ensemble, and models that a Python model calls, do serve: they count what they do for it.

A version that goes on serving, because a change is taken in place, is asked only what it has not passed yet: such a change
leaves its answers as they are. What it is asked is a request of its traffic like any other.

A request of a model with a sequence batcher has to begin and end its sequence itself, and a decoupled model has to answer it
exactly once: other answers cannot be told apart from the first of many.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from repository.core.golden import GoldenRequest, compare
from repository.core.tensors import Tensor as ExampleTensor
from serving.core.datatypes import Tensor, datatype_of
from serving.core.errors import ServingError, unexpected, unraised
from serving.core.example_tensors import from_array
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.core.request import InferenceRequest
from serving.core.response import Answer, InferenceResponse
from serving.models.load_report import GoldenResult
from serving.models.model import Model
from serving.resources.runtime import Runtime

_STANDS = "the loaded model goes on and passed it before"


@dataclass(frozen=True, slots=True)
class GoldenCheck:
    """A golden request, and what is asked of the model for it."""

    golden: GoldenRequest
    asked: InferenceRequest

    @property
    def digest(self) -> str:
        return self.golden.digest


async def run(model: Model, check: GoldenCheck, runtime: Runtime) -> GoldenResult:
    """Ask the model, and hold its answer against the expected one. Whatever is raised, or does not come, is a failed check."""
    golden = check.golden
    began = time.monotonic()
    passed, detail = False, ""
    try:
        async with asyncio.timeout(golden.seconds):
            passed, detail = await _ask(model, check, runtime)
    except TimeoutError:
        detail = f"no answer came within {golden.seconds:g} s"
    except ServingError as error:
        detail = f"the answer was an error: {error.message}"
    except Exception as error:
        detail = unexpected(error, "a golden request").message
    ms = round((time.monotonic() - began) * 1000, 1)
    return GoldenResult(golden.name, model.spec.version, passed, detail, ms)


def passed_before(version: int, check: GoldenCheck) -> GoldenResult:
    """Return the result of a golden request that need not be asked again."""
    return GoldenResult(check.golden.name, version, True, _STANDS, 0.0)


async def _ask(model: Model, check: GoldenCheck, runtime: Runtime) -> tuple[bool, str]:
    """Return whether the answer is as expected, and a sentence about it."""
    asked = check.asked
    if model.config.HasField("sequence_batching") and not (asked.sequence.start and asked.sequence.end):
        return (
            False,
            "the model keeps sequences: a golden request of it has to begin and end its own, with sequence_id, "
            "sequence_start and sequence_end among its parameters",
        )
    answers = _Answers()
    request = InFlightRequest(asked, CallbackResponder(answers.take))
    model.submit(request)
    try:
        await answers.ended
    finally:
        request.cancel()  # where it has no final answer yet
    if answers.count != 1:
        return (
            False,
            f"the model is decoupled and gave {answers.count} responses: of such a model only a request can be checked that it "
            "answers exactly once",
        )
    return await runtime.in_thread(_compare, check.golden, answers.outputs)


def _compare(golden: GoldenRequest, outputs: Mapping[str, Tensor]) -> tuple[bool, str]:
    """Compare by the rule that the dashboard has too. Elements that need not be looked at are left out."""
    shapes = {tensor.name: tensor.shape for tensor in golden.expected}
    answered = {
        name: from_array(name, array)
        if shapes.get(name) == array.shape
        else ExampleTensor(name, datatype_of(array).name, array.shape, ())
        for name, array in outputs.items()
    }
    verdict = compare(golden.expected, answered, golden.tolerance, private=golden.private)
    return verdict.passed, verdict.clause


class _Answers:
    """What a model answers to one request. `ended` raises the error that was answered."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outputs: dict[str, Tensor] = {}  # of the first response
        self.count = 0

    def take(self, answer: Answer, final: bool) -> None:
        """Keep the first outputs; they are copied, for they may be views of what the model writes anew."""
        if self.ended.done():
            return
        if isinstance(answer, ServingError):
            self.ended.set_exception(unraised(answer))
            return
        if isinstance(answer, InferenceResponse):
            self.count += 1
            if self.count == 1:
                self.outputs = {name: np.array(tensor) for name, tensor in answer.outputs.items()}
        if final:
            self.ended.set_result(None)
