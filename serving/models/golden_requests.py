"""Golden requests: examples with the answers that are expected, asked of a model before it takes the requests of clients.

They run one after another through the model's scheduler and instances, count in no statistics, and neither read nor fill the
response cache. The steps of an ensemble, and models that a Python model calls, do serve: they count what they do for it.

A request of a model with a sequence batcher has to begin and end its sequence itself, and a decoupled model has to answer it
exactly once: other answers cannot be told apart from the first of many.
"""

import asyncio
import time
from dataclasses import dataclass

import numpy as np

from serving.core.datatypes import Tensor
from serving.core.errors import ServingError, unexpected
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.core.request import InferenceRequest
from serving.core.response import Answer, InferenceResponse
from serving.core.tensor_comparison import USUAL, Comparison, Tolerance, compare_outputs
from serving.models.load_report import GoldenResult
from serving.models.model import Model
from serving.resources.runtime import Runtime

SECONDS = 30.0  # how long one may take, unless it says otherwise


@dataclass(frozen=True, slots=True)
class GoldenRequest:
    """expected: the outputs that are compared. seconds: how long the answer may take."""

    name: str
    asked: InferenceRequest
    expected: dict[str, Tensor]
    tolerance: Tolerance = USUAL
    seconds: float = SECONDS


async def check(model: Model, golden: GoldenRequest, runtime: Runtime) -> GoldenResult:
    """Ask the model, and compare its answer. Whatever is raised, or does not come, is a failed check."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(golden.seconds):
            comparison = await _ask(model, golden, runtime)
    except TimeoutError:
        comparison = Comparison(False, f"no answer came within {golden.seconds:g} s")
    except ServingError as error:
        comparison = Comparison(False, f"the answer was an error: {error.message}")
    except Exception as error:
        comparison = Comparison(False, unexpected(error, "a golden request").message)
    ms = round((time.monotonic() - began) * 1000, 1)
    return GoldenResult(golden.name, model.spec.version, comparison.equal, comparison.detail, ms)


async def _ask(model: Model, golden: GoldenRequest, runtime: Runtime) -> Comparison:
    if model.config.HasField("sequence_batching") and not (golden.asked.sequence.start and golden.asked.sequence.end):
        return Comparison(
            False,
            "the model keeps sequences: a golden request of it has to begin and end its own, with sequence_id, "
            "sequence_start and sequence_end among its parameters",
        )
    answers = _Answers()
    request = InFlightRequest(golden.asked, CallbackResponder(answers.take))
    model.submit(request)
    try:
        await answers.ended
    finally:
        request.cancel()  # where it has no final answer yet
    if answers.count != 1:
        return Comparison(
            False,
            f"the model is decoupled and gave {answers.count} responses: of such a model only a request can be checked that it "
            "answers exactly once",
        )
    return await runtime.in_thread(compare_outputs, golden.expected, answers.outputs, golden.tolerance)


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
            self.ended.set_exception(answer)
            return
        if isinstance(answer, InferenceResponse):
            self.count += 1
            if self.count == 1:
                self.outputs = {name: np.array(tensor) for name, tensor in answer.outputs.items()}
        if final:
            self.ended.set_result(None)
