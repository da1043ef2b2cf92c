"""The messages between the server and a child process: JSON objects, whose kind is in `op`, and JSON arrays for batches.

On the first socket, for batches, the server sends and the child answers:

    Initialize        Ready, or Failed
    CompleteConfig    Completed, or Failed
    Execute           Result, or Failed
    Finalize          Finalized

The server waits for each answer, except for answers to batches: it may send the next batch before the last is answered. The
child answers batches in order.

On the second socket, the link, either side may send at any time. A child's question has an `id`, and each `Answer` to it has
the same `id`. The server's own messages are `IsReady`, which the child answers, and `Taken`.

The types describe correct messages. A child runs the code of a model's author, so the server checks each value before it uses
it (serving/backends/child/).
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

Message = Mapping[str, object]
"""A message to be sent."""
Received = dict[str, object]
"""A received message: an object whose fields are not checked yet."""

TensorRow = tuple[str, str, Sequence[int], int, int]
"""A tensor's place in a segment: name, datatype of the V2 protocol, shape, offset and length in bytes."""

ParameterValue = str | int | float | bool
ErrorPair = tuple[str, str]
"""Triton's error code, such as "INVALID_ARG", and the sentence for the client."""
HandlerError = tuple[str, str, int, str]
"""An ErrorPair with the HTTP status and reason that the model's code chose."""


# -- loading -----------------------------------------------------------------------------------------------------------
class Initialize(TypedDict):
    """Load the model. `stub` names the subclass of serving.child_program.stub.Stub that runs it, as "module:class"."""

    op: Literal["initialize"]
    stub: str
    folder: str  # the folder of the model's version
    model_file: str


class InitializePython(Initialize):
    """`args` is the argument of TritonPythonModel.initialize: strings, with Triton's names as keys."""

    decoupled: bool
    outputs: list[str]
    args: dict[str, str]


class InitializeBackend(Initialize):
    """`config` is a serialized ModelConfig in base64. `device` is a kind ("cpu" or "gpu") and a number."""

    config: str
    version: int
    strict_devices: bool
    device: tuple[str, int]
    name: str  # the name of the instance


class Ready(TypedDict):
    """The model is loaded. `has_is_ready`: the model has the method is_ready, so the server should call it."""

    op: Literal["ready"]
    has_is_ready: bool


class Failed(TypedDict):
    """The server's request has failed. `message` is the text for the client, and `code` is the error code."""

    op: Literal["failed"]
    message: str
    code: str
    status: NotRequired[int]  # the HTTP status that the model's code chose
    reason: NotRequired[str]


class CompleteConfig(TypedDict):
    """Complete a configuration: JSON for a Python model, or else a serialized ModelConfig in base64."""

    op: Literal["complete_config"]
    stub: str
    folder: str
    model_file: str
    config: str


class Completed(TypedDict):
    """The configuration, in the format of the CompleteConfig (JSON as an object), or None if the model completes nothing."""

    op: Literal["completed"]
    config: dict[str, object] | str | None


# -- executing ---------------------------------------------------------------------------------------------------------
class RequestDetails(TypedDict, total=False):
    """The rarer fields of a request. A missing field has the default of serving.core.request.InferenceRequest.

    shared: the index of the request's parameters in the batch's SharedParameters. The child copies these parameters to
    `parameters`.
    """

    requested: Sequence[str]
    shared: int
    parameters: Mapping[str, ParameterValue]
    priority: int
    timeout: int  # microseconds
    sequence: int | str
    flags: int  # TRITONSERVER_REQUEST_FLAG_*: 1 for a sequence's start, 2 for its end
    trace: str  # the context of a traced request
    window: tuple[int, int, float]  # for a decoupled model: the arguments of ResponseWindow


RequestMessage = tuple[str, int, Sequence[TensorRow], RequestDetails | None]
"""One request of a batch: id, batch size, inputs, details."""

SharedParameters = Sequence[Mapping[str, ParameterValue]]
"""The different parameters of a batch's requests. Several requests may share them, because clients repeat their headers."""

Execute = tuple[int, int, Sequence[RequestMessage], SharedParameters, Sequence[int], Sequence[int]]
"""Execute a batch: segment, key, requests, parameters, freed, dropped.

segment: the segment of the inputs. Its descriptor is sent with the first message that names it. key: the server's number for
the first request. The other requests have the next numbers. freed: segments of the child that it may write again. dropped:
segments of the server that the child should forget.
"""


class ResponseBody(TypedDict, total=False):
    """One response: tensors, or an error. In a Result, a response may instead be `again` or `later`."""

    outputs: list[TensorRow]
    parameters: dict[str, ParameterValue]
    error: ErrorPair | HandlerError
    again: bool  # execute the request again (TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    later: bool  # a response sender will answer the request, over the link


Result = tuple[int, Sequence[ResponseBody], Sequence[int]]
"""A batch is executed: segment, responses, dropped.

segment: the segment of the outputs, or 0 without tensors. Its descriptor is sent the first time. responses: one for each
request, in order; none from a decoupled model. dropped: segments of the child that the server should forget.
"""


class Finalize(TypedDict):
    """The child calls the model's `finalize`, answers Finalized, and ends."""

    op: Literal["finalize"]


# -- the link: messages of the child -----------------------------------------------------------------------------------
class StreamedResponse(ResponseBody):
    """A response of a decoupled model, or a response that was announced with `later`."""

    op: Literal["response"]
    key: int
    final: bool


class Release(TypedDict):
    """The request will be executed again, with another key."""

    op: Literal["release"]
    key: int


class Cancelled(TypedDict):
    """Ask whether the request is cancelled. The value of the answer is a boolean."""

    op: Literal["cancelled"]
    id: NotRequired[int]
    key: int


class Infer(TypedDict):
    """Infer with another model. Each response of that model is an answer. A key identifies a request of the model itself.

    made_for: the keys of the requests that need the inference, or None on a thread that the model started. trace: the key of
    the request whose trace the inference belongs to, or 0.
    """

    op: Literal["infer"]
    id: NotRequired[int]
    model: str
    version: str
    request_id: str
    inputs: list[TensorRow]
    requested: list[str]
    parameters: dict[str, ParameterValue]
    priority: int
    timeout: int
    sequence: int | str
    flags: int
    trace: int
    made_for: list[int] | None


class Cancel(TypedDict):
    """Cancel the inference of the question with the id `ask`. `waits`: the child still takes later answers."""

    op: Literal["cancel"]
    ask: int
    waits: bool


class Load(TypedDict):
    """Load a model. `config` is JSON or "". `files` maps names such as "file:1/model.onnx" to contents in base64."""

    op: Literal["load"]
    id: NotRequired[int]
    model: str
    config: str
    files: dict[str, str]


class Unload(TypedDict):
    """Unload a model. `dependents`: unload the steps of an ensemble too."""

    op: Literal["unload"]
    id: NotRequired[int]
    model: str
    dependents: bool


class ModelReady(TypedDict):
    """Ask whether a model is ready. The value of the answer is a boolean."""

    op: Literal["ready"]
    id: NotRequired[int]
    model: str
    version: str


class NewMetricFamily(TypedDict):
    """Make a metric family. `kind`: "counter", "gauge" or "histogram"."""

    op: Literal["metric_family"]
    id: NotRequired[int]
    name: str
    description: str
    kind: str


class NewMetric(TypedDict):
    """Make a metric of a family. The child chooses its number."""

    op: Literal["metric"]
    id: NotRequired[int]
    number: int
    family: str
    labels: dict[str, str]
    buckets: list[float] | None


class MetricValue(TypedDict):
    """Ask for the value of a counter or gauge."""

    op: Literal["metric_value"]
    id: NotRequired[int]
    number: int


class MetricChange(TypedDict):
    """Change a metric. `how`: "increment", "set" or "observe"."""

    op: Literal["metric_change"]
    number: int
    how: str
    value: float


class MetricDeleted(TypedDict):
    op: Literal["metric_deleted"]
    number: int


class MetricFamilyDeleted(TypedDict):
    op: Literal["metric_family_deleted"]
    name: str


# -- the link: messages of the server ----------------------------------------------------------------------------------
class AnswerBody(TypedDict, total=False):
    """The content of an answer: a value, a response of another model, or an error."""

    value: object
    outputs: list[TensorRow]
    parameters: dict[str, ParameterValue]
    error: ErrorPair


class Answer(AnswerBody):
    """An answer to the question `id`. `final`: it is the last answer."""

    id: int
    final: bool


class IsReady(TypedDict):
    """Ask the model whether it is ready. The child answers with an IsReady that has `value` or `error`."""

    op: Literal["is_ready"]
    id: int
    value: NotRequired[bool]
    error: NotRequired[str]


class Taken(TypedDict):
    """The client has taken `size` bytes of a request's responses. A size of 0 means that the sender need not wait any more."""

    op: Literal["taken"]
    key: int
    size: int
