"""pb_utils.InferenceRequest: a request that a model sends to another model, or that `execute` gets."""

import json
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial

from serving.backends.channel.messages import Infer, ParameterValue, RequestDetails, RequestMessage
from serving.backends.channel.tensors import Memory, TensorWriter
from serving.child_program.link.answer_stream import request_is_cancelled
from serving.child_program.link.errors import TritonModelException
from serving.child_program.link.response_window import ResponseWindow
from serving.child_program.link.server_link import ServerLink
from serving.child_program.pb_utils.checks import checked_parameters, text, whole_number
from serving.child_program.pb_utils.inference import (
    PreferredMemory,
    Question,
    ResponseIterator,
    infer,
    infer_async,
    served_keys,
    torch_device,
)
from serving.child_program.pb_utils.process import server
from serving.child_program.pb_utils.response import InferenceResponse
from serving.child_program.pb_utils.response_sender import (
    DecoupledResponseSender,
    InferenceResponseSender,
    ResponseStream,
    SingleResponseSender,
)
from serving.child_program.pb_utils.tensor import Tensor, checked_tensors

TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2


class InferenceTrace:
    """The trace of a request. An inference on another model becomes part of a trace if the model passes the trace to the
    inference."""

    def __init__(self, key: int = 0, context: str = "") -> None:
        self._key = key
        self._context = context

    def get_context(self) -> str | None:
        """Return a JSON object with the W3C `traceparent` of this request's span, or None without OpenTelemetry."""
        return self._context or None


class InferenceRequest:
    """A request for a model. A model sends its own request with `exec` or `async_exec`."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Iterable[Tensor] | None = None,
        requested_output_names: Iterable[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, object] | None = None,
        *,
        priority: int = 0,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError("an InferenceRequest needs inputs, requested_output_names and model_name")
        self._id = text("request_id", request_id)
        self._correlation_id = (
            correlation_id if isinstance(correlation_id, str) else whole_number("correlation_id", correlation_id)
        )
        self._inputs = checked_tensors("inputs", inputs)
        self._requested = [text("a requested output's name", name) for name in requested_output_names]
        self._flags = whole_number("flags", flags)
        self._timeout = whole_number("timeout", timeout)
        self._priority = whole_number("priority", priority)
        self._parameters: Mapping[str, ParameterValue] = checked_parameters(parameters, "request")
        self._trace = InferenceTrace() if trace is None else trace
        self._model_name = text("model_name", model_name)
        self._model_version = whole_number("model_version", model_version, least=-1)
        self._preferred_memory = preferred_memory

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def model_name(self) -> str:
        return self._model_name

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = whole_number("flags", flags)

    def timeout(self) -> int:
        """Return the timeout in microseconds; 0 for none."""
        return self._timeout

    def priority(self) -> int:
        return self._priority

    def parameters(self) -> str:
        """Return the parameters as the text of a JSON object."""
        return json.dumps(self._parameters)

    def requested_output_names(self) -> list[str]:
        return self._requested

    def trace(self) -> InferenceTrace:
        return self._trace

    def is_cancelled(self) -> bool:
        return False

    def get_response_sender(self) -> InferenceResponseSender:
        raise TritonModelException("only a request that execute is given has a response sender")

    def set_release_flags(self, flags: int) -> None:
        """Set RESCHEDULE, before `execute` returns, to execute the request again (for models with iterative sequences)."""
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(f"unknown release flags {flags}")

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Return the InferenceResponse of the other model, or an iterator of responses if `decoupled`."""
        return infer(self._question(), decoupled)

    def async_exec(self, decoupled: bool = False) -> Coroutine[None, None, InferenceResponse | ResponseIterator]:
        """Return an awaitable of the result of `exec`. The request is sent immediately."""
        return infer_async(self._question(), decoupled)

    def _question(self) -> Question:
        link = server()
        if not self._model_name:
            raise TritonModelException("an inference on another model needs its model_name")
        writer = TensorWriter()
        message: Infer = {
            "op": "infer",
            "model": self._model_name,
            "version": "" if self._model_version < 1 else str(self._model_version),
            "request_id": self._id,
            "inputs": [writer.add(tensor.name(), *tensor._host()) for tensor in self._inputs],
            "requested": self._requested,
            "parameters": dict(self._parameters),
            "priority": self._priority,
            "timeout": self._timeout,
            "sequence": self._correlation_id,
            "flags": self._flags,
            "trace": self._trace._key,
            "made_for": None if (keys := served_keys.get()) is None else list(keys),
        }
        return Question(link, message, writer, torch_device(self._preferred_memory))


class ReceivedRequest(InferenceRequest):
    """A request that `execute` gets. The fields of such a request come from the server and need no check.

    key: the server's number for the request. outputs: the names of the requested outputs. stream: the open answer of a
    decoupled model, or None for other models. sender: the response sender of a model that is not decoupled, or None if the
    model did not ask for a sender. rescheduled: the model asks to execute the request again.
    """

    # Most requests have these defaults.
    _correlation_id: int | str = 0
    _flags = 0
    _timeout = 0
    _priority = 0
    _parameters: Mapping[str, ParameterValue] = {}
    _trace = InferenceTrace()
    _model_name = ""
    _model_version = -1
    _preferred_memory = None
    stream: ResponseStream | None = None
    sender: SingleResponseSender | None = None
    rescheduled = False

    def __init__(
        self, message: RequestMessage, key: int, memory: Memory, outputs: Sequence[str], link: ServerLink
    ) -> None:
        """Read a message of the server.

        memory: the memory of the inputs. outputs: the outputs of the model, for a client that names none.
        """
        self._id, _, rows, details = message
        self._inputs = [Tensor._from_memory(row, memory) for row in rows]
        self.outputs = outputs
        self.key = key
        self._link = link
        if details is not None:
            self._read(details)

    def _read(self, details: RequestDetails) -> None:
        self.outputs = details.get("requested", self.outputs)
        self._correlation_id = details.get("sequence", 0)
        self._flags = details.get("flags", 0)
        self._timeout = details.get("timeout", 0)
        self._priority = details.get("priority", 0)
        self._parameters = details.get("parameters", {})
        if "trace" in details:
            self._trace = InferenceTrace(self.key, details["trace"])

    def requested_output_names(self) -> list[str]:
        return list(self.outputs)

    def open_stream(self, window: ResponseWindow | None) -> ResponseStream:
        self.stream = ResponseStream(self._link, self.key, self.outputs, window)
        return self.stream

    def is_cancelled(self) -> bool:
        return request_is_cancelled(self._link, self.key)

    def get_response_sender(self) -> InferenceResponseSender:
        if self.stream is not None:
            return DecoupledResponseSender(self.stream)
        if self.sender is None:
            self.sender = SingleResponseSender(partial(request_is_cancelled, self._link, self.key))
        return self.sender

    def set_release_flags(self, flags: int) -> None:
        super().set_release_flags(flags)
        self.rescheduled = flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

    def release(self) -> None:
        """Release the inputs' shared memory after `execute`, even if the model keeps the request."""
        self._inputs = []
        self.sender = None
