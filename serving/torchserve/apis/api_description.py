"""The description of TorchServe's APIs, which OPTIONS returns: OpenAPI 3.0.1.

Source: the OpenAPI specification 3.0.1; paths, parameters and statuses as in docs/rest_api.md of TorchServe 0.12.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from repository.core.server_version import VERSION

JsonObject = dict[str, object]
JSON = "application/json"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_STATUSES = {
    "202": "Accepted: the work goes on",
    "210": "Done in part",
    "400": "A bad request",
    "404": "The model, or its version, is not registered",
    "408": "It took too long",
    "409": "Registered already",
    "500": "The server has failed",
    "503": "No worker can take the request",
}


class Parameter(NamedTuple):
    """A parameter of the query, or of the path if the path contains its name."""

    name: str
    description: str
    type: str = "string"
    default: str | None = None
    required: bool = False
    choices: tuple[str, ...] = ()


class Operation(NamedTuple):
    """answer: the description of a success; media_type and schema: its content. failures: the statuses other than 200.
    body: whether a request has a body."""

    path: str
    method: str
    id: str
    description: str
    answer: str
    schema: JsonObject
    failures: Sequence[str] = ("500",)
    parameters: Sequence[Parameter] = ()
    media_type: str = JSON
    body: bool = False
    deprecated: bool = False


def _object(required: Iterable[str], **properties: JsonObject) -> JsonObject:
    schema: JsonObject = {"type": "object"}
    names = list(required)
    if names:
        schema["required"] = names
    return schema | ({"properties": properties} if properties else {})


def _text(description: str = "") -> JsonObject:
    schema: JsonObject = {"type": "string"}
    return schema | {"description": description} if description else schema


_BINARY: JsonObject = {"type": "string", "format": "binary"}
_ERROR = _object(
    ("code", "type", "message"),
    code={"type": "integer", "description": "The status."},
    type=_text("The kind of the error."),
    message=_text("What is wrong."),
)
_STATUS = _object(("status",), status=_text("What has become of it."))
_DOCUMENT = _object(("openapi", "info", "paths"), openapi=_text(), info={"type": "object"}, paths={"type": "object"})
_MODEL_NAME = Parameter("model_name", "The model's name.")
_MODEL_VERSION = Parameter("model_version", "The name of one of its versions.")


def _described_by(path: str, method: str, identifier: str, deprecated: bool = False) -> Operation:
    return Operation(
        path, method, identifier, "Get this description.", "OpenAPI 3.0.1", _DOCUMENT, deprecated=deprecated
    )


def _prediction(path: str, version: bool = False) -> Operation:
    return Operation(
        path,
        "post",
        "version_predictions" if version else "predictions",
        "Predict with one version of a model." if version else "Predict with the default version of a model.",
        "What the model's handler answers.",
        _BINARY,
        ("404", "500", "503"),
        (_MODEL_NAME, _MODEL_VERSION) if version else (_MODEL_NAME,),
        "*/*",
        body=True,
    )


METRICS = Operation(
    "/metrics",
    "get",
    "metrics",
    "Get the metrics as Prometheus text.",
    "The metrics",
    _object(("# HELP", "# TYPE", "metric")),
    parameters=(Parameter("name[]", "The metrics to show, all by default."),),
    media_type=PROMETHEUS,
)
INFERENCE = (
    _described_by("/", "options", "apiDescription"),
    Operation("/ping", "get", "ping", "Ask for the server's health.", "Its health", _STATUS),
    _prediction("/v1/models/{model_name}:predict"),
    _prediction("/v2/models/{model_name}/infer"),
    _prediction("/predictions/{model_name}"),
    _prediction("/predictions/{model_name}/{model_version}", version=True),
    _described_by("/api-description", "get", "api-description", deprecated=True),
    METRICS,
)

_WORKERS = (
    Parameter("min_worker", "The least number of workers.", "integer", "1"),
    Parameter("max_worker", "The largest number of workers.", "integer", "1"),
    Parameter("number_gpu", "The number of GPUs for workers.", "integer", "0"),
    Parameter("synchronous", "Answer when the workers are there.", "boolean", "false"),
    Parameter("timeout", "Seconds in which a worker may finish what it has; -1 for all.", "integer", "-1"),
)
_REGISTRATION = (
    Parameter("url", "The archive: a file of the model store, or an address.", required=True),
    Parameter("model_name", "The model's name, in place of the archive's."),
    Parameter("handler", "The handler, in place of the archive's."),
    Parameter("runtime", "The handler's runtime.", choices=("PYTHON", "PYTHON3", "LSP")),
    Parameter("batch_size", "Requests that the handler gets at a time, at most.", "integer", "1"),
    Parameter("max_batch_delay", "Milliseconds that a request waits for others.", "integer", "100"),
    Parameter("response_timeout", "Seconds in which the handler must answer.", "integer", "120"),
    Parameter("startup_timeout", "Seconds in which the handler must initialize.", "integer", "120"),
    Parameter("initial_workers", "The workers to begin with.", "integer", "0"),
    Parameter("synchronous", "Answer when the workers are there.", "boolean", "false"),
    Parameter("s3_sse_kms", "The archive in S3 is encrypted by KMS.", "boolean", "false"),
)
_LISTED = _object(
    ("models",),
    nextPageToken=_text("Where the next page begins; absent on the last one."),
    models={
        "type": "array",
        "items": _object(("modelName", "modelUrl"), modelName=_text("Its name."), modelUrl=_text("Its archive.")),
        "description": "The registered models.",
    },
)
_DETAILS: JsonObject = {"type": "array", "items": {"type": "object"}, "description": "Each version with its workers."}


def _of_model(path: str, prefix: str, named: tuple[Parameter, ...]) -> tuple[Operation, ...]:
    changed = (("202", "210", "400", "404", "500"), (*named, *_WORKERS))
    removed = (("202", "404", "408", "500"), (*named, *_WORKERS[3:]))
    describe, scale, unregister = (f"{prefix}{name}" for name in ("describeModel", "setAutoScale", "unregisterModel"))
    return (
        Operation(path, "get", describe, "Describe a model.", "The model", _DETAILS, ("404", "500"), named),
        Operation(path, "put", scale, "Change the number of workers.", "Changed", _STATUS, *changed),
        Operation(path, "delete", unregister, "Unregister a model.", "Unregistered", _STATUS, *removed),
    )


MANAGEMENT = (
    _described_by("/", "options", "apiDescription"),
    Operation(
        "/models",
        "get",
        "listModels",
        "List the registered models.",
        "The models",
        _LISTED,
        parameters=(
            Parameter("limit", "The most to list, 1 to 1000.", "integer", "100"),
            Parameter("next_page_token", "Where to begin: nextPageToken of the page before."),
        ),
    ),
    Operation(
        "/models",
        "post",
        "registerModel",
        "Register a model.",
        "Registered",
        _STATUS,
        ("202", "210", "400", "404", "409", "500"),
        _REGISTRATION,
    ),
    *_of_model("/models/{model_name}", "", (_MODEL_NAME,)),
    *_of_model("/models/{model_name}/{model_version}", "version_", (_MODEL_NAME, _MODEL_VERSION)),
    Operation(
        "/models/{model_name}/{model_version}/set-default",
        "put",
        "setDefault",
        "Make a version the default one.",
        "Changed",
        _STATUS,
        ("404", "500"),
        (_MODEL_NAME, _MODEL_VERSION),
    ),
    _described_by("/api-description", "get", "api-description", deprecated=True),
    METRICS,
)


def describe_apis(*apis: Sequence[Operation]) -> JsonObject:
    """Return one document that describes these APIs."""
    info: JsonObject = {
        "title": "TorchServe APIs",
        "description": "TorchServe's APIs, served by Slipway",
        "version": VERSION,
    }
    return _document(info, [operation for api in apis for operation in api])


def describe_model(name: str) -> JsonObject:
    """Return the document that describes the predictions of one model."""
    operations = [
        Operation(path, "post", name, f"Predict with {name}.", "What its handler answers.", _BINARY, media_type="*/*")
        for path in (f"/predictions/{name}", "/v1/models/{model_name}:predict", "/v2/models/{model_name}/infer")
    ]
    return _document({"title": f"RESTful API for: {name}", "version": "1.0.0"}, operations)


def describe_managing(name: str) -> JsonObject:
    """Return the document that describes how to manage one model."""
    operations = [operation for operation in MANAGEMENT if operation.path.startswith("/models/{")]
    return _document({"title": f"RESTful Management API for: {name}", "version": VERSION}, operations)


def _document(info: JsonObject, operations: Iterable[Operation]) -> JsonObject:
    paths: dict[str, JsonObject] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {"openapi": "3.0.1", "info": info, "paths": paths}


def _operation(operation: Operation) -> JsonObject:
    described: JsonObject = {
        "description": operation.description,
        "operationId": operation.id,
        "parameters": [_parameter(operation.path, one) for one in operation.parameters],
    }
    if operation.body:
        content = {"*/*": {"schema": _BINARY}}
        described["requestBody"] = {
            "description": "What the model's handler takes.",
            "content": content,
            "required": True,
        }
    responses = {"200": _response(operation.answer, operation.media_type, operation.schema)}
    for status in operation.failures:
        responses[status] = _response(_STATUSES[status], JSON, _STATUS if status < "300" else _ERROR)
    described["responses"] = responses
    return described | ({"deprecated": True} if operation.deprecated else {})


def _parameter(path: str, parameter: Parameter) -> JsonObject:
    in_path = f"{{{parameter.name}}}" in path
    schema: JsonObject = {"type": parameter.type}
    if parameter.default is not None:
        schema["default"] = parameter.default
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    return {
        "in": "path" if in_path else "query",
        "name": parameter.name,
        "description": parameter.description,
        "required": in_path or parameter.required,
        "schema": schema,
    }


def _response(description: str, media_type: str, schema: JsonObject) -> JsonObject:
    return {"description": description, "content": {media_type: {"schema": schema}}}
