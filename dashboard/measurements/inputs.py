"""The requests of a measurement: made from the signature, or from the model's examples, in one of three encodings."""

import random
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import orjson
from django.db.models import QuerySet
from tritonclient.grpc import service_pb2 as pb

from dashboard.configuration.signatures import served_signature
from dashboard.examples.selectors import golden_examples
from dashboard.loads.http2_client import SERVICE, length_prefixed
from dashboard.loads.requests import Request
from dashboard.measurements.plan import BINARY, EXAMPLES, GOLDEN, GRPC, SIGNATURE
from dashboard.models import Example, Model, Version
from dashboard.models.measurement import MeasurementPlan
from dashboard.models.upload_json import TensorRow
from dashboard.releases.example_fit import misfit
from dashboard.servers.streaming import message_of
from dashboard.shared.choices import ExampleSource
from dashboard.shared.exceptions import Invalid
from repository.config.document import Document
from repository.core.errors import InvalidExample
from repository.core.golden import ExampleRequest, read_request, request_json
from repository.core.json_types import Json
from repository.core.tensors import FLOATS, Element, Tensor, in_json, to_binary

GENERATED = 8  # different requests
MOST_EXAMPLES = 50
_FREE_DIM = 16  # the size of a dimension that varies, except the first one
MOST_BYTES = 64 << 20  # of all requests together
_MOST_ELEMENTS = 16 << 20  # of one generated tensor


def requests_of(plan: MeasurementPlan, version: Version, document: Document) -> list[ExampleRequest]:
    """Return the requests of a measurement. Raises Invalid if there are none, or if they cannot be made or encoded."""
    signature = served_signature(document, version)
    if plan["inputs"] == SIGNATURE:
        rows = [row for row in signature["inputs"] if not row.get("optional")]
        if not rows:
            raise Invalid.at("inputs", "the inputs of the version are unknown: measure it with examples")
        source = random.Random(0)
        found = [
            ExampleRequest([_generated(row, plan["rows"], source) for row in rows], [], {}) for _ in range(GENERATED)
        ]
    else:
        examples, kind = _examples_of(version.model, plan["inputs"])
        fitting = [one for one in examples[:MOST_EXAMPLES] if not misfit(one, signature)]
        if not fitting:
            raise Invalid.at("inputs", f"no {kind} fits version {version.number}: keep one in the playground")
        found = [_read(one.name, one.request) for one in fitting]
    return found


def _examples_of(model: Model, inputs: str) -> tuple[QuerySet[Example], str]:
    """Return the examples that a plan asks for, and the word for one of them."""
    if inputs == GOLDEN:
        return golden_examples(model), "golden request"
    if inputs == EXAMPLES:
        return model.examples.all(), "example"
    return model.examples.filter(source=ExampleSource.TRAFFIC), "example from traffic"


def encoded(
    requests: Sequence[ExampleRequest], encoding: str, version: Version, headers: Mapping[str, str]
) -> list[Request]:
    """Return the requests as bytes. headers: additional ones, such as a token.

    Raises Invalid if JSON cannot carry a tensor, or if the requests are too large together.
    """
    name, number = version.model.name, str(version.number)
    path = f"/v2/models/{quote(name, safe='')}/versions/{number}/infer"
    found = []
    for request in requests:
        if encoding == GRPC:
            message = message_of(name, number, request.inputs, request.parameters)
            for output in request.outputs:
                _ask_for(message, output)
            body = length_prefixed(message.SerializeToString())
            lower = {key.lower(): value for key, value in headers.items()}
            found.append(Request(f"{SERVICE}ModelInfer", body, lower, http2=True))
        elif encoding == BINARY:
            head, data = _as_binary(request)
            given = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
            found.append(Request(path, head + data, {**given, **headers}))
        else:
            found.append(Request(path, _as_json(request), {"Content-Type": "application/json", **headers}))
    if sum(len(one.body) for one in found) > MOST_BYTES:
        raise Invalid.at(
            "inputs", f"the requests have more than {MOST_BYTES >> 20} MiB together: choose smaller inputs"
        )
    return found


def _as_json(request: ExampleRequest) -> bytes:
    for tensor in request.inputs:
        if not in_json(tensor):
            raise Invalid.at("encoding", f"JSON cannot carry input '{tensor.name}': choose HTTP, binary or gRPC")
    return orjson.dumps(request_json(request))


def _as_binary(request: ExampleRequest) -> tuple[bytes, bytes]:
    """Return the JSON of a request and the binary data that follows it."""
    binary = [to_binary(tensor) for tensor in request.inputs]
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "parameters": {"binary_data_size": len(content)},
        }
        for tensor, content in zip(request.inputs, binary, strict=True)
    ]
    parameters = {**request.parameters, "binary_data_output": True}
    head = {"inputs": inputs, "parameters": parameters, **({"outputs": request.outputs} if request.outputs else {})}
    return orjson.dumps(head), b"".join(binary)


def _ask_for(message: pb.ModelInferRequest, output: Json) -> None:
    """Add a requested output, as `repository.core.golden` reads it, to a message."""
    assert isinstance(output, dict)
    asked = message.outputs.add(name=str(output["name"]))
    parameters = output.get("parameters")
    if isinstance(parameters, dict):
        asked.parameters["classification"].int64_param = int(str(parameters["classification"]))


def _read(name: str, row: object) -> ExampleRequest:
    try:
        return read_request(row)
    except InvalidExample as error:
        raise Invalid.at("inputs", f"example '{name}': {error.message}") from None


def _generated(row: TensorRow, rows: int, source: random.Random) -> Tensor:
    """Return a tensor with random elements. Integers are 0 and 1, which are valid class and token numbers of any model."""
    shape = tuple(dim if dim >= 0 else rows if place == 0 else _FREE_DIM for place, dim in enumerate(row["shape"]))
    count = 1
    for dim in shape:
        count *= dim
    if count > _MOST_ELEMENTS:
        raise Invalid.at("inputs", f"input '{row['name']}' has {count} elements: measure the version with examples")
    return Tensor(row["name"], row["datatype"], shape, [_element(row["datatype"], source) for _ in range(count)])


def _element(datatype: str, source: random.Random) -> Element:
    if datatype in FLOATS:
        return source.randrange(1024) / 1024  # FP16 holds these numbers exactly
    if datatype == "BYTES":
        return b"text"
    return source.randrange(2) if datatype != "BOOL" else source.random() < 0.5
