"""pb_utils.InferenceRequest, InferenceResponse and InferenceResponseSender."""

import json
import threading
from collections.abc import Iterable
from typing import Any

from serving.child_program.pb_utils import inference as pb_inference
from serving.child_program.pb_utils.errors import TritonError, TritonModelException
from serving.child_program.pb_utils.memory import PreferredMemory
from serving.child_program.pb_utils.parameters import checked_parameters, text, whole_number
from serving.child_program.pb_utils.senders import Stream
from serving.child_program.pb_utils.tensor import Tensor, checked_tensors

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2


class InferenceTrace:
    """The trace of a request, where it is traced: given to an inference on another model, that belongs to it."""

    def __init__(self, key: int = 0, context: str = "") -> None:
        self._key = key
        self._context = context

    def get_context(self) -> str | None:
        """With OpenTelemetry, a JSON object with the W3C `traceparent` of this request's span."""
        return self._context or None


class InferenceRequest:
    """One request that `execute` is to answer, or one that the model makes, to have another model answer it."""

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
        parameters: dict[str, Any] | None = None,
        *,
        priority: int = 0,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError("an InferenceRequest needs inputs, requested_output_names and model_name")
        self._fill(
            text("request_id", request_id),
            correlation_id if isinstance(correlation_id, str) else whole_number("correlation_id", correlation_id),
            checked_tensors("inputs", inputs),
            [text("a requested output's name", name) for name in requested_output_names],
            whole_number("flags", flags),
            whole_number("timeout", timeout),
            whole_number("priority", priority),
            checked_parameters(parameters, "request"),
            InferenceTrace() if trace is None else trace,
        )
        self._model_name = text("model_name", model_name)
        self._model_version = whole_number("model_version", model_version, least=-1)
        self._preferred_memory = preferred_memory

    @classmethod
    def _received(cls, *fields: Any) -> "InferenceRequest":
        """What the server says needs no check. The fields are those of `_fill`."""
        self = object.__new__(cls)
        self._fill(*fields)
        self._model_name = ""
        self._model_version = -1
        self._preferred_memory = None
        return self

    def _fill(
        self,
        request_id: str,
        correlation_id: int | str,
        inputs: list[Tensor],
        requested_output_names: list[str],
        flags: int,
        timeout: int,
        priority: int,
        parameters: dict[str, Any],
        trace: InferenceTrace,
    ) -> None:
        self._id = request_id
        self._correlation_id = correlation_id
        self._inputs = inputs
        self._requested = requested_output_names
        self._flags = flags
        self._timeout = timeout
        self._priority = priority
        self._parameters = parameters
        self._trace = trace
        self._key = 0  # the server's number for it
        self._is_cancelled: Any = None  # set by the servant: asks the server
        self._sender: InferenceResponseSender | None = None
        self._rescheduled = False
        self._stream: Stream | None = None  # of a decoupled model

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
        """Microseconds; 0 for none."""
        return self._timeout

    def priority(self) -> int:
        return self._priority

    def parameters(self) -> str:
        """A JSON object as text."""
        return json.dumps(self._parameters)

    def requested_output_names(self) -> list[str]:
        return self._requested

    def trace(self) -> InferenceTrace:
        return self._trace

    def is_cancelled(self) -> bool:
        return bool(self._is_cancelled()) if self._is_cancelled is not None else False

    def get_response_sender(self) -> "InferenceResponseSender":
        if not self._key:
            raise TritonModelException("only a request that execute is given has a response sender")
        if self._stream is not None:
            return DecoupledResponseSender(self._stream)
        if self._sender is None:
            self._sender = InferenceResponseSender(self)
        return self._sender

    def _release(self) -> None:
        """`execute` is over: let go of the shared memory, even if the model keeps the request."""
        self._inputs = []
        self._sender = None

    def set_release_flags(self, flags: int) -> None:
        """RESCHEDULE, before `execute` returns: the request comes again; its model has iterative sequences."""
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(f"unknown release flags {flags}")
        self._rescheduled = flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

    def exec(self, decoupled: bool = False) -> Any:
        """The other model's InferenceResponse; an iterator of them where `decoupled`."""
        return pb_inference.infer(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:
        """The same to be awaited; the request is sent at once."""
        return pb_inference.infer_async(self, decoupled)


class InferenceResponse:
    """Output tensors, or an error in their place."""

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self._outputs = checked_tensors("output_tensors", output_tensors)
        self._error = error
        self._parameters = checked_parameters(parameters, "response") if parameters is not None else {}
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a pb_utils.TritonError, not {type(error).__name__}")

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        return json.dumps(self._parameters)


class InferenceResponseSender:
    """Answers a request in place of returning the response: exactly one, from any thread, also after `execute` returned."""

    def __init__(self, request: InferenceRequest) -> None:
        self._is_cancelled = request.is_cancelled
        self._lock = threading.Lock()
        self._response: InferenceResponse | None = None
        self._closed = False
        self._stream: Stream | None = None  # once `execute` has returned

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send takes a pb_utils.InferenceResponse, not {type(response).__name__}")
        final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        with self._lock:
            if self._closed:
                raise TritonModelException("the final response of this request was sent before")
            if final and response is None and self._response is None:  # the words that Triton's tests look for
                raise TritonModelException("Non-decoupled model cannot send complete final before sending a response")
            if response is not None and self._response is not None:
                raise TritonModelException("a model that is not decoupled sends exactly one response for each request")
            self._response = response or self._response
            self._closed = final
            if final and self._stream is not None:
                self._stream.send(self._response, flags)

    def is_cancelled(self) -> bool:
        return bool(self._is_cancelled())

    def _taken(self, stream: Stream) -> InferenceResponse | None:
        """What was sent, now that `execute` has returned; None where it will come later, through the stream."""
        with self._lock:
            if self._response is None:
                self._stream = stream
            else:
                stream.close()
            return self._response


class DecoupledResponseSender(InferenceResponseSender):
    """Answers a request of a decoupled model: any number of responses, from any thread, the last one with the flag."""

    def __init__(self, stream: Stream) -> None:
        self._open = stream

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        self._open.send(response, flags)

    def is_cancelled(self) -> bool:
        return self._open.is_cancelled()
