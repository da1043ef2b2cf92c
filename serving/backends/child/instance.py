"""A model instance in a child process: writes batches to shared memory, waits no longer than its bound, reads the answers."""

import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import cast

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import get_parameter
from repository.config.validation_parameters import EXECUTION_TIMEOUT
from serving.backends.base.backend import BlockingInstance, ModelSpec
from serving.backends.channel.channel import ProtocolError, close_all
from serving.backends.channel.messages import Execute, Failed, Initialize, Received, ResponseBody, Result
from serving.backends.channel.shared_memory import KEEP_BYTES
from serving.backends.child.codec import (
    COPY_BYTES,
    MALFORMED,
    SharedMemory,
    decode_error,
    decode_parameters,
    decode_tensor,
    encode_requests,
    requested_outputs,
    used_bytes,
)
from serving.backends.child.process import ChildDied
from serving.backends.child.supervisor import ChildSupervisor, ModelChild
from serving.backends.environments.interpreter import Interpreter
from serving.core.batch import Batch
from serving.core.devices import Device
from serving.core.errors import ServingError, internal, invalid
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse


class ChildInstance(BlockingInstance):
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
        self._outputs = [output.name for output in spec.config.output]

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

    def unready_reason(self) -> str:
        return self._supervisor.unready_reason()

    def readiness(self) -> "Future[bool] | None":
        return self._supervisor.readiness()

    # -- inside ----------------------------------------------------------------------------------------------------
    def _execute(self, child: ModelChild, batch: Batch) -> None:
        requests, writer = encode_requests(batch.requests)
        segment = child.inputs.acquire(max(writer.size, 1))
        writer.write(segment.memory)
        message: Execute = {
            "op": "execute",
            "segment": segment.id,
            "dropped": child.inputs.take_dropped(),
            "freed": [child.freed.popleft() for _ in range(len(child.freed))],
            "requests": requests,
        }
        batch.input_done()
        descriptors = [segment.descriptor] if segment.fresh else []
        keys = child.calls.requests.begin(batch, requests)
        answer, received = child.exchange(message, descriptors, self._bound_s)
        batch.infer_done()
        open_still = self._decoupled and answer.get("op") == "result"
        child.calls.requests.executed([] if open_still else _answered(keys, answer))
        child.inputs.sent(segment)
        child.inputs.release(segment.id)
        try:
            self._decode(child, cast("Result | Failed", answer), received, batch)
        except (ProtocolError, *MALFORMED) as error:
            raise child.broke(ProtocolError(str(error))) from None
        finally:
            close_all(received)

    def _decode(self, child: ModelChild, answer: Result | Failed, received: list[int], batch: Batch) -> None:
        """Give each request of the batch what the child answered. ServingError where the whole batch failed."""
        if answer["op"] == "failed":
            raise decode_error((answer["code"], answer["message"]), self._failure)
        responses = answer["responses"]
        if self._decoupled and answer["op"] == "result" and responses == []:
            return
        if answer["op"] != "result" or len(responses) != len(batch.requests):
            raise ProtocolError(f"{len(batch.requests)} responses were expected")
        memory = _open(child, answer, received)
        for index, (request, response) in enumerate(zip(batch.requests, responses, strict=True)):
            if response.get("again"):
                self._reschedule(batch, index)
            elif response.get("later"):
                batch.later.add(request)
            elif not self._decoupled:
                batch.responses[index] = self._response(request, response, memory)

    def _reschedule(self, batch: Batch, index: int) -> None:
        if self._iterative:
            batch.rescheduled.add(batch.requests[index])
        else:
            batch.responses[index] = invalid(
                f"model '{self._spec.name}' asked for a request again, which needs sequence_batching with "
                "iterative_sequence: true"
            )

    def _response(
        self, request: InFlightRequest, response: ResponseBody, memory: SharedMemory
    ) -> InferenceResponse | ServingError:
        if "error" in response:
            return decode_error(response["error"])
        found = {row[0]: row for row in response["outputs"]}
        outputs = {
            name: decode_tensor(found[name], memory) for name in requested_outputs(request, self._outputs, found)
        }
        return InferenceResponse(
            self._spec.name, self._spec.version, request.asked.id, outputs, decode_parameters(response)
        )


def execution_timeout(config: ModelConfig) -> float | None:
    """Return how many seconds a batch may take; None without a bound. The configuration has been validated."""
    value = get_parameter(config, EXECUTION_TIMEOUT)
    return float(value) if isinstance(value, int | float) else None


def _answered(keys: Sequence[int], answer: Received) -> Sequence[int]:
    """Return the keys of a batch's requests that its end answers; a response sender answers the others later."""
    responses = answer.get("responses")
    if not isinstance(responses, list) or len(responses) != len(keys):
        return keys
    later = [isinstance(response, dict) and bool(response.get("later")) for response in responses]
    return [key for key, waits in zip(keys, later, strict=True) if not waits]


def _open(child: ModelChild, result: Result, received: list[int]) -> SharedMemory:
    """Return the memory of the result's tensors: a copy where it is small, else a view whose end frees the segment."""
    child.outputs.drop(result["dropped"])
    identifier = result["segment"]
    if not identifier:
        return b""
    mapped = child.outputs.open(identifier, received[0]) if received else child.outputs.get(identifier)
    used = used_bytes([row for one in result["responses"] for row in one.get("outputs", ())], mapped)
    if used <= COPY_BYTES:
        child.freed.append(identifier)
        return mapped[:used]
    view = np.frombuffer(mapped, np.uint8)
    if len(mapped) <= KEEP_BYTES:
        weakref.finalize(view, child.freed.append, identifier).atexit = False
    return view
