"""The format of requests that a worker sends to the core.

Many requests have most fields in common. These common fields are the kind of a request. The worker defines each kind once, and
then refers to it by a number. A request is one tuple in a message:
    (number, kind, id, arrival_ns, data, details)   number: identifies the request in its answer and its cancellation
                                                    kind: the number of the kind; (number, definition) for a new kind, or a kind
                                                    that is too long to be kept
                                                    data: the data of all tensors in one piece; one piece for each tensor if
                                                    some are BYTES, whose sizes vary
                                                    details: RequestDetails, or None
"""

import marshal
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy import ndarray

from serving.core.in_flight import InFlightRequest, ReceiveTimes
from serving.core.output_target import OutputRule, OutputTarget
from serving.core.request import InferenceRequest, ParameterValue, SequencePosition
from serving.workers.link.shared_area import AreaReader, AreaWriter
from serving.workers.link.tensors import DTYPES, INLINE, TEXT, Payload, aligned, pack, unpack

MAX_KINDS = 1024
KEPT_SIZE = 16 << 10  # longer definitions (in bytes) are not kept, because clients choose the names in them

TensorKind = tuple[str, str, tuple[int, ...]]  # name, character of the datatype, shape
# protocol, model, version, requested outputs, inputs, Authorization header ("" unless the core counts usage)
Definition = tuple[str, str, str, tuple[str, ...], tuple[TensorKind, ...], str]
Peer = tuple[str, int] | None


class RequestDetails(NamedTuple):
    """Fields that few requests have. They are sent as a plain tuple.

    classes: output -> number of requested classes. peer: the client's address. headers: the headers that a trace or a rollout
    reads. received: see ReceiveTimes.
    """

    parameters: Mapping[str, ParameterValue]
    priority: int
    timeout_us: int
    sequence: SequencePosition
    classes: dict[str, int]
    peer: Peer
    headers: dict[str, str]
    received: ReceiveTimes


class RequestKind:
    """The fields that requests of one kind share.

    tensors: the name, dtype, shape and offset in the data of each tensor. size: bytes of the data. fixed: whether no tensor is
    BYTES. gapless: whether the data has no padding between the tensors. headers: the header of the client's token, if the core
    counts usage.
    """

    __slots__ = (
        "definition",
        "fixed",
        "gapless",
        "headers",
        "model_name",
        "model_version",
        "protocol",
        "requested",
        "size",
        "tensor_kinds",
        "tensors",
    )

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.protocol, self.model_name, self.model_version, self.requested, self.tensor_kinds, caller = definition
        self.headers: dict[str, str] | None = {"authorization": caller} if caller else None
        self.tensors = []
        self.size = 0
        self.gapless = True
        for name, char, shape in self.tensor_kinds:
            dtype = DTYPES.get(char, DTYPES["O"])
            size = math.prod(shape) * dtype.itemsize
            self.tensors.append((name, dtype, shape, self.size))
            self.size += aligned(size)
            self.gapless &= size == aligned(size)
        self.fixed = not any(char in TEXT for _, char, _ in self.tensor_kinds)


class RequestWriter:
    """Writes requests in the worker."""

    def __init__(self, area: AreaWriter) -> None:
        self._area = area
        self._kinds: dict[tuple[object, ...], tuple[int, RequestKind]] = {}

    def write(
        self, number: int, request: InFlightRequest, protocol: str, details: RequestDetails | None, caller: str = ""
    ) -> tuple[object, ...]:
        """Return the tuple that is sent for a request. caller: the header of its token, if the core counts usage."""
        asked = request.asked
        inputs = asked.inputs
        key: list[object] = [protocol, asked.model_name, asked.model_version, asked.requested_outputs, caller]
        for name, tensor in inputs.items():
            key += (name, tensor.dtype.char, tensor.shape)
        of_all = tuple(key)
        known = self._kinds.get(of_all)
        if known is None:
            known = self._define(of_all, request, protocol, caller)
            named: object = (known[0], known[1].definition)
        else:
            named = known[0]
        kind = known[1]
        data: object
        if not kind.fixed:
            data = tuple([pack(tensor, self._area) for tensor in inputs.values()])
        elif kind.size > INLINE and (place := self._area.place(kind.size)) >= 0:
            data = place
            for tensor, (_, dtype, shape, offset) in zip(inputs.values(), kind.tensors, strict=True):
                self._area.array(place + offset, shape, dtype)[...] = tensor
        elif kind.gapless:
            data = b"".join([tensor.tobytes() for tensor in inputs.values()])
        else:
            data = b"".join([(part := tensor.tobytes()).ljust(aligned(len(part)), b"\0") for tensor in inputs.values()])
        return number, named, asked.id, request.arrival_ns, data, None if details is None else _plain(details)

    def _define(
        self, key: tuple[object, ...], request: InFlightRequest, protocol: str, caller: str
    ) -> tuple[int, RequestKind]:
        """Return a number for a new kind, and the kind. If there are too many kinds, reuse the number of the oldest kind. All
        kinds that are too long to be kept have the same number."""
        asked = request.asked
        tensors = tuple([(name, tensor.dtype.char, tensor.shape) for name, tensor in asked.inputs.items()])
        definition = (protocol, asked.model_name, asked.model_version, asked.requested_outputs, tensors, caller)
        kind = RequestKind(definition)
        if len(marshal.dumps(definition)) > KEPT_SIZE:
            return MAX_KINDS, kind
        kinds = self._kinds
        number = len(kinds) if len(kinds) < MAX_KINDS else kinds.pop(next(iter(kinds)))[0]
        kinds[key] = number, kind
        return number, kind


def _plain(details: RequestDetails) -> tuple[object, ...]:
    """Return details as a plain tuple, because marshal does not support named tuples."""
    return tuple([tuple(value) if isinstance(value, tuple) else value for value in details])


class RequestReader:
    """Reads requests in the core. kinds: the defined kinds by their numbers."""

    def __init__(self, area: AreaReader) -> None:
        self._area = area
        self.kinds: dict[int, RequestKind] = {}

    def define(self, number: int, definition: Definition) -> RequestKind:
        """Keep a kind by its number, and return it."""
        kind = self.kinds[number] = RequestKind(definition)
        return kind

    def read(self, kind: RequestKind, identifier: str, data: Any, details: "RequestDetails | None") -> InferenceRequest:
        """Return the request. Its tensors are views of the received bytes."""
        inputs = {}
        if kind.fixed:
            if type(data) is int:
                data = self._area.view(data, kind.size)
            for name, dtype, shape, offset in kind.tensors:
                inputs[name] = ndarray(shape, dtype, data, offset)
        else:
            payloads: tuple[Payload, ...] = data
            for (name, char, shape), payload in zip(kind.tensor_kinds, payloads, strict=True):
                inputs[name] = unpack(char, shape, payload, self._area)
        asked = InferenceRequest(kind.model_name, inputs, kind.model_version, identifier, kind.requested)
        if details is not None:
            asked.parameters, asked.priority, asked.timeout_us, sequence, classes = details[:5]
            asked.sequence = SequencePosition(*sequence)
            asked.output_targets = {name: OutputTarget(OutputRule(count)) for name, count in classes.items()}
        return asked
