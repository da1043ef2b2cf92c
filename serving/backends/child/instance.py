"""A model instance in a child process: encodes batches into shared memory and decodes the answers.

What comes from the child is checked before use: it runs code of the model's author.
"""

import weakref
from concurrent.futures import Future
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import get_parameter
from repository.config.validation_parameters import EXECUTION_TIMEOUT
from serving.backends.base.backend import BackendInstance, ModelSpec
from serving.backends.channel.channel import ProtocolError, close_all
from serving.backends.channel.messages import Initialize
from serving.backends.channel.messages import TensorRow as Row
from serving.backends.channel.messages import Unchecked as Message
from serving.backends.channel.shared_memory import KEEP_BYTES
from serving.backends.channel.tensors import TensorWriter, type_of
from serving.backends.child.process import ChildDied
from serving.backends.child.supervisor import ChildSupervisor, ModelChild
from serving.backends.child.tensors import COPY_BYTES, error_of, parameters_of, tensor, used_bytes
from serving.backends.environments.interpreter import Interpreter
from serving.core.batch import Batch
from serving.core.device_tensor import host_array
from serving.core.devices import Device
from serving.core.errors import ServingError, internal, invalid
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse


class ChildInstance(BackendInstance):
    """A model instance in a child process of its own.

    initialize: the child's first message. python: the interpreter that it runs under.
    """

    def __init__(self, spec: ModelSpec, device: Device, name: str, initialize: Initialize, python: Interpreter) -> None:
        super().__init__(device)
        self._spec = spec
        self._failure = (
            f"Failed to process the request(s) for model '{spec.name}', message: "
            if initialize["stub"] == "python"
            else ""
        )
        self._iterative = spec.config.sequence_batching.iterative_sequence
        self._decoupled = spec.config.model_transaction_policy.decoupled
        bound_s = execution_timeout(spec.config)
        self._bound_s = None if self._decoupled else bound_s  # a stream is bounded by the time between its responses
        self._supervisor = ChildSupervisor(spec, name, initialize, python, bound_s)
        self._output_names = [output.name for output in spec.config.output]

    def execute(self, batch: Batch) -> None:
        with self._supervisor.in_use:
            child = self._supervisor.child()
            try:
                self._execute(child, batch)
            except ChildDied as died:
                self._supervisor.restart()
                raise internal(
                    f"model '{self._spec.name}': {died} during this request; it is being restarted"
                ) from None
            except TimeoutError:
                child.end(grace_s=0)
                self._supervisor.restart()
                raise internal(
                    f"model '{self._spec.name}': the batch took longer than {self._bound_s:g} s, which is its bound by "
                    "slipway.execution_timeout_s; its process is being restarted"
                ) from None
            self._supervisor.succeeded()

    def processes(self) -> list[int]:
        return self._supervisor.processes()

    def close(self) -> None:
        self._supervisor.close()

    def available(self) -> bool:
        return self._supervisor.available()

    def complaint(self) -> str:
        return self._supervisor.complaint()

    def readiness(self) -> "Future[bool] | None":
        return self._supervisor.readiness()

    # -- inside ----------------------------------------------------------------------------------------------------
    def _execute(self, child: ModelChild, batch: Batch) -> None:
        message, writer = encode(batch.requests)
        segment = child.inputs.acquire(max(writer.size, 1))
        writer.write(segment.memory)
        message["segment"] = segment.id
        message["dropped"] = child.inputs.take_dropped()
        message["freed"] = [child.freed.popleft() for _ in range(len(child.freed))]
        batch.input_done()
        descriptors = [segment.descriptor] if segment.fresh else []
        keys = child.calls.begin(batch, message["requests"])
        answer, received = child.exchange(message, descriptors, self._bound_s)
        batch.infer_done()
        open_still = self._decoupled and answer.get("op") == "result"
        child.calls.executed([] if open_still else _answered(keys, answer))
        child.inputs.sent(segment)
        child.inputs.release(segment.id)
        try:
            self._decode(child, answer, received, batch)
        except (ProtocolError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise child.broke(ProtocolError(str(error))) from None
        finally:
            close_all(received)

    def _decode(self, child: ModelChild, answer: Message, received: list[int], batch: Batch) -> None:
        if answer["op"] == "failed":
            raise error_of(self._failure, answer["code"], answer["message"])
        responses = answer["responses"]
        if self._decoupled and answer["op"] == "result" and responses == []:
            return
        if answer["op"] != "result" or len(responses) != len(batch.requests):
            raise ProtocolError(f"{len(batch.requests)} responses were expected")
        memory = _open(child, answer, received, responses)
        for index, (request, response) in enumerate(zip(batch.requests, responses, strict=True)):
            if response.get("again"):
                self._reschedule(batch, index)
                continue
            if response.get("later"):
                batch.later.add(request)
                continue
            if self._decoupled:
                continue
            batch.responses[index] = self._response(request, response, memory)

    def _reschedule(self, batch: Batch, index: int) -> None:
        if self._iterative:
            batch.rescheduled.add(batch.requests[index])
        else:
            batch.responses[index] = invalid(
                f"model '{self._spec.name}' asked for a request again, which needs sequence_batching with "
                "iterative_sequence: true"
            )

    def _response(self, request: InFlightRequest, response: Message, memory: Any) -> InferenceResponse | ServingError:
        if "error" in response:
            return error_of("", *response["error"])
        found = {row[0]: row for row in response["outputs"]}
        wanted = [
            name for name in self._output_names if not request.requested_outputs or name in request.requested_outputs
        ]
        outputs = {name: tensor(found[name], memory) for name in wanted if name in found}
        return InferenceResponse(
            self._spec.name, self._spec.version, request.asked.id, outputs, parameters_of(response)
        )


def execution_timeout(config: ModelConfig) -> float | None:
    """Seconds that a batch may take; None without a bound. The configuration has been validated."""
    value = get_parameter(config, EXECUTION_TIMEOUT)
    return float(value) if isinstance(value, int | float) else None


# -- requests ----------------------------------------------------------------------------------------------------------
def encode(requests: list[InFlightRequest]) -> tuple[Message, TensorWriter]:
    """The `execute` message and the inputs to write. Tensors of one input lie side by side, in the requests' order."""
    writer = TensorWriter()
    rows: list[list[Row]] = [[] for _ in requests]
    for name in dict.fromkeys(name for request in requests for name in request.inputs):
        first = True
        for request, mine in zip(requests, rows, strict=True):
            if name in request.inputs:
                array = host_array(request.inputs[name])
                mine.append(writer.add(name, type_of(array).name, array, align=first))
                first = False
    described = [_describe(request, mine) for request, mine in zip(requests, rows, strict=True)]
    return {"op": "execute", "requests": described}, writer


def _describe(request: InFlightRequest, rows: list[Row]) -> Message:
    asked, sequence = request.asked, request.sequence
    message: Message = {"id": asked.id, "inputs": rows, "batch_size": request.batch_size}
    if request.requested_outputs:
        message["requested"] = request.requested_outputs
    if asked.parameters:
        message["parameters"] = asked.parameters
    if asked.priority:
        message["priority"] = asked.priority
    if asked.timeout_us:
        message["timeout"] = asked.timeout_us
    if sequence.id:
        message["sequence"] = sequence.id
        message["flags"] = sequence.start + 2 * sequence.end
    if request.observers:
        message["trace"] = next(filter(None, (observer.context() for observer in request.observers)), "")
    return message


def _answered(keys: list[int], answer: Message) -> list[int]:
    """Those of a batch's requests that its end answers; a response sender answers the others later."""
    responses = answer.get("responses")
    if not isinstance(responses, list) or len(responses) != len(keys):
        return keys
    later = [isinstance(response, dict) and bool(response.get("later")) for response in responses]
    return [key for key, waits in zip(keys, later, strict=True) if not waits]


# -- answers -----------------------------------------------------------------------------------------------------------
def _open(child: ModelChild, answer: Message, received: list[int], responses: list[Message]) -> Any:
    """The memory that the answer's tensors lie in: a copy when it is small, else a view whose end frees the segment."""
    child.outputs.drop(answer["dropped"])
    identifier = answer["segment"]
    if not identifier:
        return b""
    mapped = child.outputs.open(identifier, received[0]) if received else child.outputs.get(identifier)
    used = used_bytes([row for one in responses for row in one.get("outputs", ())], mapped)
    if used <= COPY_BYTES:
        child.freed.append(identifier)
        return mapped[:used]
    view = np.frombuffer(mapped, np.uint8)
    if len(mapped) <= KEEP_BYTES:
        weakref.finalize(view, child.freed.append, identifier).atexit = False
    return view
