"""The ensemble scheduler: runs the steps of a DAG, and passes tensors by reference.

A step starts as soon as each of its inputs exists or is known to be absent: a client may omit an optional input of the
ensemble, and a step may omit an output. The step's model decides whether it runs without an absent input. A tensor is released
when its last reader has it. If one step fails, the request fails with the name of that step, and the other steps are cancelled.
An ensemble with a decoupled step is decoupled itself (serving.configuration.ensemble_check).
Source: Triton, docs/user_guide/ensemble_models.md.
"""

from collections.abc import Callable

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.device_tensor import host_array
from serving.core.errors import ServingError, unexpected
from serving.core.in_flight import InFlightRequest
from serving.core.response import Answer, InferenceResponse
from serving.scheduling.base import Scheduler
from serving.scheduling.ensemble_graph import EnsembleGraph, StepLimits
from serving.scheduling.ensemble_run import EnsembleOutputs, EnsembleRequest, Infer
from serving.telemetry.statistics import Phases

# Ends a request. Parameters: the request; its answer, or None after a stream of responses; the total times of its steps.
OnAnswer = Callable[[InFlightRequest, Answer, Phases], None]
# Sends one response of a decoupled ensemble, before other responses or the end.
OnResponse = Callable[[InFlightRequest, InferenceResponse], None]


class EnsembleScheduler(Scheduler):
    """Runs ensembles without a queue, because the steps wait in their models' schedulers."""

    def __init__(
        self, config: ModelConfig, version: int, infer: Infer, on_answer: OnAnswer, on_response: OnResponse
    ) -> None:
        self._version = version
        self._infer = infer
        self._on_answer = on_answer
        self._on_response = on_response
        self._under_way: dict[InFlightRequest, EnsembleRequest] = {}
        self._limits = StepLimits()
        self.configure(config)

    def configure(self, config: ModelConfig) -> None:
        self._graph = EnsembleGraph(config)
        self._limits.configure(config.ensemble_scheduling.max_inflight_requests)

    @property
    def pending(self) -> int:
        return 0

    def submit(self, request: InFlightRequest) -> None:
        if request.stream is not None:
            request.stream.from_ns = request.queued_ns
        under_way = EnsembleRequest(self._graph, self._limits, request, self._infer, self._answered)
        self._under_way[request] = under_way
        under_way.begin()

    def remove(self, request: InFlightRequest) -> bool:
        under_way = self._under_way.pop(request, None)
        if under_way is not None:
            under_way.abandon()
        return under_way is not None

    def _answered(self, under_way: EnsembleRequest, answer: EnsembleOutputs | ServingError | None, final: bool) -> None:
        request = under_way.request
        if not final:
            assert isinstance(answer, EnsembleOutputs)
            self._on_response(request, self._response(under_way, answer))
        elif self._under_way.pop(request, None) is not None:
            last: Answer
            try:
                last = self._response(under_way, answer) if isinstance(answer, EnsembleOutputs) else answer
            except Exception as error:
                last = unexpected(error, f"answering a request of '{self._graph.name}'")
            self._on_answer(request, last, under_way.steps_took())

    def _response(self, under_way: EnsembleRequest, answer: EnsembleOutputs) -> InferenceResponse:
        asked, outputs = under_way.request.asked, answer.outputs
        if not asked.device_outputs:
            outputs = {name: host_array(tensor) for name, tensor in outputs.items()}
        outputs = self._graph.with_own_ranks(outputs)
        parameters = answer.position.as_parameters() | under_way.timing()
        return InferenceResponse(self._graph.name, self._version, asked.id, outputs, parameters, answer.size)
