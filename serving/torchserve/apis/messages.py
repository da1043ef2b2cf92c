"""The messages of TorchServe's two gRPC services, made in this module from the names and numbers of their fields.

The messages have a separate descriptor pool, because a process may also have TorchServe's copies of the same messages.
Source: docs/grpc_api.md of TorchServe 0.12, and its inference.proto and management.proto.
"""

from typing import Any

from google.protobuf import any_pb2, empty_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

INFERENCE = "org.pytorch.serve.grpc.inference"
MANAGEMENT = "org.pytorch.serve.grpc.management"
RECEIVED = "slipway.received"
_STRING, _BYTES, _INT32, _BOOL = (
    FieldDescriptorProto.TYPE_STRING,
    FieldDescriptorProto.TYPE_BYTES,
    FieldDescriptorProto.TYPE_INT32,
    FieldDescriptorProto.TYPE_BOOL,
)

# message -> field -> number and type
_MANAGEMENT_MESSAGES: dict[str, dict[str, tuple[int, "FieldDescriptorProto.Type.ValueType"]]] = {
    "ManagementResponse": {"msg": (1, _STRING)},
    "DescribeModelRequest": {"model_name": (1, _STRING), "model_version": (2, _STRING), "customized": (3, _BOOL)},
    "ListModelsRequest": {"limit": (1, _INT32), "next_page_token": (2, _INT32)},
    "RegisterModelRequest": {
        "batch_size": (1, _INT32),
        "handler": (2, _STRING),
        "initial_workers": (3, _INT32),
        "max_batch_delay": (4, _INT32),
        "model_name": (5, _STRING),
        "response_timeout": (6, _INT32),
        "runtime": (7, _STRING),
        "synchronous": (8, _BOOL),
        "url": (9, _STRING),
        "s3_sse_kms": (10, _BOOL),
        "startup_timeout": (11, _INT32),
    },
    "ScaleWorkerRequest": {
        "model_name": (1, _STRING),
        "model_version": (2, _STRING),
        "max_worker": (3, _INT32),
        "min_worker": (4, _INT32),
        "number_gpu": (5, _INT32),
        "synchronous": (6, _BOOL),
        "timeout": (7, _INT32),
    },
    "SetDefaultRequest": {"model_name": (1, _STRING), "model_version": (2, _STRING)},
    "UnregisterModelRequest": {"model_name": (1, _STRING), "model_version": (2, _STRING)},
}
# method -> request, response, and whether each of them is a stream
_MANAGEMENT_METHODS = {
    "DescribeModel": ("DescribeModelRequest", "ManagementResponse", False, False),
    "ListModels": ("ListModelsRequest", "ManagementResponse", False, False),
    "RegisterModel": ("RegisterModelRequest", "ManagementResponse", False, False),
    "ScaleWorker": ("ScaleWorkerRequest", "ManagementResponse", False, False),
    "SetDefault": ("SetDefaultRequest", "ManagementResponse", False, False),
    "UnregisterModel": ("UnregisterModelRequest", "ManagementResponse", False, False),
}
_INFERENCE_METHODS = {
    "Ping": (".google.protobuf.Empty", "TorchServeHealthResponse", False, False),
    "Predictions": ("PredictionsRequest", "PredictionResponse", False, False),
    "StreamPredictions": ("PredictionsRequest", "PredictionResponse", False, True),
    "StreamPredictions2": ("PredictionsRequest", "PredictionResponse", True, True),
}


def _add_field(message: DescriptorProto, name: str, number: int, kind: "FieldDescriptorProto.Type.ValueType") -> Any:
    return message.field.add(name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)


def _add_optional(message: DescriptorProto, name: str, number: int, type_name: str = "") -> None:
    """Add a field that records whether it was set: a string, or a message of the type `type_name`."""
    kind = FieldDescriptorProto.TYPE_MESSAGE if type_name else _STRING
    field = _add_field(message, name, number, kind)
    if type_name:
        field.type_name = type_name
    field.proto3_optional = True
    field.oneof_index = len(message.oneof_decl)
    message.oneof_decl.add(name=f"_{name}")


def _rpc_status() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="google/rpc/status.proto", package="google.rpc", syntax="proto3", dependency=[any_pb2.DESCRIPTOR.name]
    )
    message = file.message_type.add(name="Status")
    _add_field(message, "code", 1, _INT32)
    _add_field(message, "message", 2, _STRING)
    details = _add_field(message, "details", 3, FieldDescriptorProto.TYPE_MESSAGE)
    details.type_name, details.label = ".google.protobuf.Any", FieldDescriptorProto.LABEL_REPEATED
    return file


def _inference() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="inference.proto",
        package=INFERENCE,
        syntax="proto3",
        dependency=[empty_pb2.DESCRIPTOR.name, "google/rpc/status.proto"],
    )
    request = file.message_type.add(name="PredictionsRequest")
    _add_field(request, "model_name", 1, _STRING)
    _add_field(request, "model_version", 2, _STRING)
    entry = request.nested_type.add(name="InputEntry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, _STRING)
    _add_field(entry, "value", 2, _BYTES)
    parts = _add_field(request, "input", 3, FieldDescriptorProto.TYPE_MESSAGE)
    parts.type_name, parts.label = f".{INFERENCE}.PredictionsRequest.InputEntry", FieldDescriptorProto.LABEL_REPEATED
    _add_optional(request, "sequence_id", 4)
    response = file.message_type.add(name="PredictionResponse")
    _add_field(response, "prediction", 1, _BYTES)
    _add_optional(response, "sequence_id", 2)
    _add_optional(response, "status", 3, ".google.rpc.Status")
    _add_field(file.message_type.add(name="TorchServeHealthResponse"), "health", 1, _STRING)
    _add_service(file, "InferenceAPIsService", _INFERENCE_METHODS)
    return file


def _received(inference: FileDescriptorProto) -> FileDescriptorProto:
    """Return a PredictionsRequest with a list of entries, as on the wire, in place of the map, which would lose their order."""
    file = FileDescriptorProto(name="received.proto", package=RECEIVED, syntax="proto3")
    request = file.message_type.add()
    request.CopyFrom(inference.message_type[0])
    request.nested_type[0].ClearField("options")
    request.field[2].type_name = f".{RECEIVED}.{request.name}.{request.nested_type[0].name}"
    return file


def _management() -> FileDescriptorProto:
    file = FileDescriptorProto(name="management.proto", package=MANAGEMENT, syntax="proto3")
    for name, fields in _MANAGEMENT_MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add_field(message, field, number, kind)
    _add_service(file, "ManagementAPIsService", _MANAGEMENT_METHODS)
    return file


def _add_service(file: FileDescriptorProto, name: str, methods: dict[str, tuple[str, str, bool, bool]]) -> None:
    service = file.service.add(name=name)
    for method, (request, response, client_streaming, server_streaming) in methods.items():
        service.method.add(
            name=method,
            input_type=request if request.startswith(".") else f".{file.package}.{request}",
            output_type=f".{file.package}.{response}",
            client_streaming=client_streaming,
            server_streaming=server_streaming,
        )


def _make_pool() -> DescriptorPool:
    pool = DescriptorPool()
    for known in (any_pb2, empty_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    inference = _inference()
    for made in (_rpc_status(), inference, _management(), _received(inference)):
        pool.AddSerializedFile(made.SerializeToString())
    return pool


POOL = _make_pool()


def _message(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(name))


# Of type Any, because the fields of these classes are known only at run time.
RpcStatus: Any = _message("google.rpc.Status")
Empty: Any = _message("google.protobuf.Empty")
PredictionsRequest: Any = _message(f"{INFERENCE}.PredictionsRequest")
ReceivedPredictions: Any = _message(f"{RECEIVED}.PredictionsRequest")
PredictionResponse: Any = _message(f"{INFERENCE}.PredictionResponse")
TorchServeHealthResponse: Any = _message(f"{INFERENCE}.TorchServeHealthResponse")
ManagementResponse: Any = _message(f"{MANAGEMENT}.ManagementResponse")
DescribeModelRequest: Any = _message(f"{MANAGEMENT}.DescribeModelRequest")
ListModelsRequest: Any = _message(f"{MANAGEMENT}.ListModelsRequest")
RegisterModelRequest: Any = _message(f"{MANAGEMENT}.RegisterModelRequest")
ScaleWorkerRequest: Any = _message(f"{MANAGEMENT}.ScaleWorkerRequest")
SetDefaultRequest: Any = _message(f"{MANAGEMENT}.SetDefaultRequest")
UnregisterModelRequest: Any = _message(f"{MANAGEMENT}.UnregisterModelRequest")
