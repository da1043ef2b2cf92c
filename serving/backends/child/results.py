"""Reads a child's answer to a batch, and checks it, because the child runs the code of a model's author."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import DataType

from serving.backends.base.backend import ModelSpec
from serving.backends.channel.channel import ProtocolError
from serving.backends.channel.shared_memory import KEEP_BYTES
from serving.backends.child.codec import (
    COPY_BYTES,
    LOOP_STRING_BYTES,
    SharedMemory,
    decode_error,
    decode_failed,
    decode_parameters,
    decode_tensor,
    requested_outputs,
    used_bytes,
)
from serving.backends.child.process import ChildProcess
from serving.core.batch import Batch
from serving.core.datatypes import Tensor
from serving.core.errors import ServingError, invalid
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse

Answer = Any
"""A child's message that is not checked yet; a correct one is a Result or a Failed."""


class ResultReader:
    """Reads the responses of a child's answer into the batch."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._outputs = [output.name for output in spec.config.output]
        self._has_strings = any(output.data_type == DataType.TYPE_STRING for output in spec.config.output)
        self._decoupled = spec.config.model_transaction_policy.decoupled
        self._iterative = spec.config.sequence_batching.iterative_sequence

    def open(self, child: ChildProcess, answer: Answer, received: Sequence[int]) -> SharedMemory:
        """Return the memory of an answer's outputs: a small one as a copy, a large one as a view that keeps the segment in use.

        `open` and `read` raise ProtocolError, or an exception of MALFORMED, for a malformed answer.
        """
        if isinstance(answer, dict):
            return b""
        segment, responses, dropped = answer
        if dropped:
            child.outputs.drop(dropped)
        if not segment:
            return b""
        mapped = child.outputs.open(segment, received[0]) if received else child.outputs.get(segment)
        used = used_bytes([row for one in responses for row in one.get("outputs", ())], mapped)
        if used <= COPY_BYTES:
            child.freed.append(segment)
            return mapped[:used]
        view = np.frombuffer(mapped, np.uint8)
        if len(mapped) <= KEEP_BYTES:
            weakref.finalize(view, child.freed.append, segment).atexit = False
        return view

    def takes_long(self, memory: SharedMemory) -> bool:
        """Return whether `read` would block the loop, because the memory may have many strings."""
        return self._has_strings and len(memory) > LOOP_STRING_BYTES

    def read(self, answer: Answer, memory: SharedMemory, batch: Batch) -> bool:
        """Fill the batch's responses. Return whether the batch was executed, or False if the child reports a failure."""
        if isinstance(answer, dict):
            if answer["op"] != "failed":
                raise ProtocolError("the answer to a batch was expected")
            batch.fail(decode_failed(answer))
            return False
        _, responses, _ = answer
        if self._decoupled and not responses:
            return True
        if len(responses) != len(batch.requests):
            raise ProtocolError(f"{len(batch.requests)} responses were expected")
        for index, (request, response) in enumerate(zip(batch.requests, responses, strict=True)):
            if "outputs" in response or "error" in response:
                if not self._decoupled:
                    batch.responses[index] = self._response(request, response, memory)
            elif response.get("again"):
                self._reschedule(batch, index)
            elif response.get("later"):
                batch.answer_later(request)
        return True

    def _reschedule(self, batch: Batch, index: int) -> None:
        if self._iterative:
            batch.reschedule(batch.requests[index])
        else:
            batch.responses[index] = invalid(
                f"model '{self._spec.name}' asked for a request again, which needs sequence_batching with "
                "iterative_sequence: true"
            )

    def _response(
        self, request: InFlightRequest, response: Mapping[str, Any], memory: SharedMemory
    ) -> InferenceResponse | ServingError:
        if "error" in response:
            return decode_error(response["error"])
        found = {row[0]: row for row in response["outputs"]}
        wanted = requested_outputs(request, self._outputs, found)
        outputs: dict[str, Tensor] = {name: decode_tensor(found[name], memory) for name in wanted}
        return InferenceResponse(
            self._spec.name, self._spec.version, request.asked.id, outputs, decode_parameters(response)
        )
