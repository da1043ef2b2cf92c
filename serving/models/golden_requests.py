"""Golden requests: example requests with expected answers, sent to a model before it takes the requests of clients.

Golden requests run one after another through the model's scheduler and instances, count in no statistics, and neither read nor
fill the response cache. However, models that already serve count them: the models of an ensemble's steps, and models that a
Python model calls.

A serving version that gets a change without a new model keeps its answers. Such a version gets only the golden requests that it
has not passed yet, and counts them like requests of clients.

A golden request to a model with a sequence batcher has to both begin and end its sequence. A decoupled model has to answer a
golden request with exactly one response, because nothing says which of several responses is the expected one.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from repository.core.golden import GoldenRequest, compare
from repository.core.tensors import Tensor as ExampleTensor
from serving.core.datatypes import Tensor, datatype_of
from serving.core.errors import ServingError, unexpected, without_traceback
from serving.core.example_tensors import from_array
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.core.request import InferenceRequest
from serving.core.response import Answer, InferenceResponse
from serving.models.load_report import GoldenResult
from serving.models.model import Model
from serving.resources.runtime import Runtime

_PASSED = "the loaded model keeps serving and passed it before"


@dataclass(frozen=True, slots=True)
class GoldenCheck:
    """A golden request, and the inference request that is made from it."""

    golden: GoldenRequest
    asked: InferenceRequest

    @property
    def digest(self) -> str:
        return self.golden.digest


async def run(model: Model, check: GoldenCheck, runtime: Runtime) -> GoldenResult:
    """Send the request and compare the answer with the expected one. An error or a missing answer fails the check."""
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
    """Return the result of a golden request that is not sent again."""
    return GoldenResult(check.golden.name, version, True, _PASSED, 0.0)


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
        request.cancel()  # does nothing if the request has its final answer
    if answers.count != 1:
        return (
            False,
            f"the model is decoupled and gave {answers.count} responses: a golden request of it has to get exactly one",
        )
    return await runtime.in_thread(_compare, check.golden, answers.outputs)


def _compare(golden: GoldenRequest, outputs: Mapping[str, Tensor]) -> tuple[bool, str]:
    """Compare by the rule that the dashboard uses too. Elements are compared only if a tensor has the expected shape."""
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
    """The responses to one request. Awaiting `ended` raises the error of a request that failed."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outputs: dict[str, Tensor] = {}  # the outputs of the first response
        self.count = 0

    def take(self, answer: Answer, final: bool) -> None:
        """Keep a copy of the outputs of the first response, because the model may write to their memory again."""
        if self.ended.done():
            return
        if isinstance(answer, ServingError):
            self.ended.set_exception(without_traceback(answer))
            return
        if isinstance(answer, InferenceResponse):
            self.count += 1
            if self.count == 1:
                self.outputs = {name: np.array(tensor) for name, tensor in answer.outputs.items()}
        if final:
            self.ended.set_result(None)
