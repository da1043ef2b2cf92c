"""How one model answers its requests: from batches, an ensemble's steps, a stream of responses, or the cache.

A request gets one final answer. Each callback counts the answer, gives it the form that the client asked for, and sends it.
An error that is raised meanwhile becomes the request's answer.
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from serving.backends.base.backend import ModelSpec
from serving.core.batch import Batch
from serving.core.datatypes import Tensor
from serving.core.errors import Code, ServingError, internal, safely, unexpected
from serving.core.in_flight import InFlightRequest
from serving.core.response import Answer, InferenceResponse
from serving.core.tensor_check import TensorCheck
from serving.extensions.classification import Labels
from serving.extensions.tensor_parameters import apply_targets
from serving.resources.response_cache import ModelCache
from serving.telemetry.statistics import ModelStatistics, Phases

# With this parameter, a response also has the time that the request spent in the queue and in its batch.
TIMING = "slipway_timing"


P = ParamSpec("P")


def _fails_the_request(
    callback: "Callable[Concatenate[ModelResponses, InFlightRequest, P], None]",
) -> "Callable[Concatenate[ModelResponses, InFlightRequest, P], None]":
    """Decorate a callback for one request: an error that the callback raises becomes the answer of the request."""

    @wraps(callback)
    def guarded(
        responses: "ModelResponses", request: InFlightRequest, /, *arguments: P.args, **named: P.kwargs
    ) -> None:
        try:
            callback(responses, request, *arguments, **named)
        except Exception as error:
            responses.fail(request, error)

    return guarded


class ModelResponses:
    """Callbacks of a model's scheduler and instances. All callbacks run on the event loop's thread."""

    def __init__(
        self,
        spec: ModelSpec,
        statistics: ModelStatistics,
        check: TensorCheck,
        labels: Callable[[], Labels],
        withdraw: Callable[[InFlightRequest], None],
    ) -> None:
        """labels: returns the model's labels. withdraw: removes a failed request from the scheduler."""
        self._spec = spec
        self._statistics = statistics
        self._cache: ModelCache | None = None
        self._check = check
        self._labels = labels
        self._withdraw = withdraw
        self._decoupled = spec.config.model_transaction_policy.decoupled
        self._batches = spec.config.max_batch_size > 0

    def enter_service(self, statistics: ModelStatistics, cache: ModelCache | None) -> None:
        """From now on, count answers in `statistics`, and keep them in `cache`, the model's part of the response cache."""
        self._statistics, self._cache = statistics, cache

    def reconfigure(self, check: TensorCheck) -> None:
        self._check = check

    @_fails_the_request
    def rejected(self, request: InFlightRequest, error: ServingError) -> None:
        """Answer a request that the scheduler has accepted but will not execute with an error."""
        self.count_refusal(request, error)
        request.respond(error)

    def count_refusal(self, request: InFlightRequest, error: ServingError) -> None:
        reason = "REJECTED" if error.code is Code.UNAVAILABLE else "OTHER"
        safely("counting a refusal", self._statistics.count_failure, request, reason, error)

    def fail(self, request: InFlightRequest, error: Exception) -> None:
        """Answer a request with an error that was raised, unless it already has an answer."""
        failure = unexpected(error, f"answering a request of '{self._spec.name}'")
        if not request.finished:
            safely("dropping a request", self._withdraw, request)
            safely("counting a failure", self._statistics.count_failure, request, "OTHER", failure)
            request.respond(failure)

    @_fails_the_request
    def cache_hit(self, request: InFlightRequest, outputs: dict[str, Tensor]) -> None:
        """Answer with outputs from the response cache."""
        if request.finished:
            return
        response = InferenceResponse(self._spec.name, self._spec.version, request.asked.id, outputs)
        answer = self._finish(request, response)
        self._statistics.count_success(request, time.monotonic_ns())
        request.respond(answer)

    @_fails_the_request
    def ensemble_answered(self, request: InFlightRequest, answer: Answer, steps: Phases) -> None:
        """Answer the request to an ensemble that is done. answer: its last response, or None if that was already sent. steps:
        the durations of the steps."""
        if isinstance(answer, ServingError):
            reason = "CANCELED" if answer.code is Code.CANCELLED else "OTHER"
            self._statistics.count_failure(request, reason, answer)
            request.respond(answer)
            return
        self._statistics.count_execution(request.batch_size, steps)
        self._statistics.count_computed(request.batch_size, steps)
        self._statistics.count_queued(0)
        if answer is None or request.stream is not None:
            self.streamed(request, answer, final=True)
            return
        self._succeed(request, answer)

    @_fails_the_request
    def streamed(self, request: InFlightRequest, response: Answer, final: bool) -> None:
        """Send a response of a decoupled model."""
        flow, stream = request.responder.flow, request.stream
        if request.finished:
            if isinstance(response, InferenceResponse) and flow is not None:
                flow.note_taken(response.size)
            return
        computed_ns = time.monotonic_ns()
        counted = self._statistics.responses_of(request)
        if response is not None:
            self._statistics.count_first_response(request, computed_ns)
            if stream is not None:
                stream.responses += 1
        answer = None if response is None else self._finish(request, response)
        if final and isinstance(response, ServingError):
            self._statistics.count_failure(request, "BACKEND", response)
        elif final:
            self._statistics.count_success(request, computed_ns)
        if answer is not response and isinstance(response, InferenceResponse) and flow is not None:
            flow.note_taken(response.size)  # the response was replaced by an error
        request.respond(answer, final)
        now = time.monotonic_ns()
        began_ns = (stream.from_ns if stream is not None else 0) or request.queued_ns
        counted.count(answer, computed_ns - began_ns, now - computed_ns)
        if stream is not None:
            stream.from_ns = now

    @_fails_the_request
    def answered_late(self, request: InFlightRequest, answer: Answer, _: bool) -> None:
        """Send the one response that a model which is not decoupled has given after its batch."""
        if request.finished or answer is None:
            return
        if isinstance(answer, ServingError):
            self._statistics.count_failure(request, "BACKEND", answer)
            request.respond(answer)
            return
        self._succeed(request, answer)

    def _succeed(self, request: InFlightRequest, answer: InferenceResponse) -> None:
        """Answer with the model's one response, and keep it in the response cache."""
        self._keep(request, answer.outputs)
        finished = self._finish(request, answer)
        self._statistics.count_success(request, time.monotonic_ns())
        request.respond(finished)

    def batch_done(self, batch: Batch) -> None:
        """Answer the requests of a batch that has run, and count them. If one answer fails, the others are still sent."""
        started, ended = batch.started_ns, batch.ended_ns
        waited: list[int] = []
        took: list[int] = []
        rows = 0
        for request, answer in zip(batch.requests, batch.responses, strict=True):
            try:
                if request.observers or request.stream is not None:
                    self._executed(batch, request)
                    if request.mirrored and self._mirror_done(batch, request, answer):
                        waited.append(started - request.queued_ns)
                        rows += request.batch_size
                        continue
                again = batch.rescheduled and request in batch.rescheduled
                if type(answer) is not InferenceResponse or request.finished or again:
                    if self._computed(batch, request, answer):
                        waited.append(started - request.queued_ns)
                        rows += request.batch_size
                    continue
                if self._cache is not None:
                    self._keep(request, answer.outputs)
                asked = request.asked
                if asked.parameters and asked.parameters.get(TIMING):
                    answer.parameters |= batch.timing(started - request.queued_ns)
                finished: Answer = answer
                if asked.output_targets or self._check.reshapes_outputs:
                    finished = self._finish(request, answer)
                waited.append(started - request.queued_ns)
                took.append(ended - request.arrival_ns)
                rows += request.batch_size
                request.respond(finished)
            except Exception as error:
                self.fail(request, error)
        if took:
            noted = self._statistics.noted
            if ended >= noted.until_ns or max(took) > noted.floor_ns:
                safely("noting slow requests", noted.batch_done, batch)
        try:
            self._statistics.count_batch(batch, waited, took, rows)
        except Exception as error:
            unexpected(error, "counting a batch")

    def _mirror_done(self, batch: Batch, request: InFlightRequest, answer: Answer) -> bool:
        """Answer a mirrored request, which is counted separately.

        Return False, without answering, if the batch gave no response for the request, or if the request has ended or runs
        again.
        """
        if type(answer) is not InferenceResponse or request.finished or request in batch.rescheduled:
            return False
        if self._cache is not None:
            self._keep(request, answer.outputs)
        finished = self._finish(request, answer)
        self._statistics.count_mirrored(batch.ended_ns - request.arrival_ns)
        request.respond(finished)
        return True

    def _executed(self, batch: Batch, request: InFlightRequest) -> None:
        """Notify a request's observers that its batch has run."""
        if request.stream is not None:
            request.stream.executing = False
        for observer in request.observers:
            safely("observing an execution", observer.executed, request, batch)

    def _computed(self, batch: Batch, request: InFlightRequest, answer: Answer) -> bool:
        """Handle a request that its batch's response cannot answer. Return whether the request counts as computed."""
        if request in batch.rescheduled:
            return False
        if answer is None and (self._decoupled or request in batch.later):
            return not request.cancelled  # its responses come separately from the batch
        if not request.finished:  # a finished request was cancelled, or only fills a slot of the batch
            error = (
                answer
                if isinstance(answer, ServingError)
                else internal("the backend gave no response for this request")
            )
            self._statistics.count_failure(request, "BACKEND", error, batch)
            request.respond(error)
        return False

    def _finish(
        self, request: InFlightRequest, answer: InferenceResponse | ServingError
    ) -> InferenceResponse | ServingError:
        """Return the answer in the form that the client wants: shapes of the protocol, classes, outputs in shared memory."""
        answer = self._check.response(answer)
        targets = request.asked.output_targets
        if targets and isinstance(answer, InferenceResponse):
            return apply_targets(answer, targets, self._labels(), self._batches)
        return answer

    def _keep(self, request: InFlightRequest, outputs: dict[str, Tensor]) -> None:
        if self._cache is None:
            return
        took = safely("keeping an answer in the response cache", self._cache.keep, request, outputs)
        if took:
            self._statistics.count_miss(took)
