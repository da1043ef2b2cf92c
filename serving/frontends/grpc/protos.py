"""The messages of gRPC's own services, health checking and reflection, built from tables: no package ships them here.

Sources: grpc-proto, grpc/health/v1/health.proto and grpc/reflection/v1/reflection.proto. They live in a descriptor pool of
their own, beside whichever copy of them a process may have.
"""

from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_STRING, _BYTES, _INT32, _ENUM, _MESSAGE = 9, 12, 5, 14, 11  # FieldDescriptorProto.Type
_REPEATED = 3


class _Field(NamedTuple):
    name: str
    number: int
    kind: int = _STRING
    of: str = ""  # the type's name, of messages and enums
    repeated: bool = False
    oneof: bool = False


_HEALTH = {
    "HealthCheckRequest": [_Field("service", 1)],
    "HealthCheckResponse": [_Field("status", 1, _ENUM, "HealthCheckResponse.ServingStatus")],
}
_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
_REFLECTION = {
    "ServerReflectionRequest": [
        _Field("host", 1),
        _Field("file_by_filename", 3, oneof=True),
        _Field("file_containing_symbol", 4, oneof=True),
        _Field("file_containing_extension", 5, _MESSAGE, "ExtensionRequest", oneof=True),
        _Field("all_extension_numbers_of_type", 6, oneof=True),
        _Field("list_services", 7, oneof=True),
    ],
    "ExtensionRequest": [_Field("containing_type", 1), _Field("extension_number", 2, _INT32)],
    "ServerReflectionResponse": [
        _Field("valid_host", 1),
        _Field("original_request", 2, _MESSAGE, "ServerReflectionRequest"),
        _Field("file_descriptor_response", 4, _MESSAGE, "FileDescriptorResponse", oneof=True),
        _Field("all_extension_numbers_response", 5, _MESSAGE, "ExtensionNumberResponse", oneof=True),
        _Field("list_services_response", 6, _MESSAGE, "ListServiceResponse", oneof=True),
        _Field("error_response", 7, _MESSAGE, "ErrorResponse", oneof=True),
    ],
    "FileDescriptorResponse": [_Field("file_descriptor_proto", 1, _BYTES, repeated=True)],
    "ExtensionNumberResponse": [_Field("base_type_name", 1), _Field("extension_number", 2, _INT32, repeated=True)],
    "ListServiceResponse": [_Field("service", 1, _MESSAGE, "ServiceResponse", repeated=True)],
    "ServiceResponse": [_Field("name", 1)],
    "ErrorResponse": [_Field("error_code", 1, _INT32), _Field("error_message", 2)],
}


def _file(package: str, filename: str, messages: dict[str, list[_Field]]) -> Any:
    proto = descriptor_pb2.FileDescriptorProto(name=filename, package=package, syntax="proto3")
    for name, fields in messages.items():
        message = proto.message_type.add(name=name)
        if any(field.oneof for field in fields):
            message.oneof_decl.add(name="message_request" if name.endswith("Request") else "message_response")
        for field in fields:
            added = message.field.add(name=field.name, number=field.number, type=field.kind, label=1)
            if field.repeated:
                added.label = _REPEATED
            if field.of:
                added.type_name = f".{package}.{field.of}"
            if field.oneof:
                added.oneof_index = 0
    return proto


def _service(proto: Any, name: str, methods: tuple[tuple[str, str, str, bool, bool], ...]) -> None:
    service = proto.service.add(name=name)
    for method, request, response, client_streaming, server_streaming in methods:
        service.method.add(
            name=method,
            input_type=f".{proto.package}.{request}",
            output_type=f".{proto.package}.{response}",
            client_streaming=client_streaming,
            server_streaming=server_streaming,
        )


def _health() -> Any:
    proto = _file("grpc.health.v1", "grpc/health/v1/health.proto", _HEALTH)
    statuses = proto.message_type[1].enum_type.add(name="ServingStatus")
    for number, name in enumerate(_STATUSES):
        statuses.value.add(name=name, number=number)
    pair = ("HealthCheckRequest", "HealthCheckResponse")
    _service(proto, "Health", (("Check", *pair, False, False), ("Watch", *pair, False, True)))
    return proto


def _reflection(version: str) -> Any:
    filename = "reflection.proto"
    proto = _file(f"grpc.reflection.{version}", f"grpc/reflection/{version}/{filename}", _REFLECTION)
    pair = ("ServerReflectionRequest", "ServerReflectionResponse")
    _service(proto, "ServerReflection", (("ServerReflectionInfo", *pair, True, True),))
    return proto


POOL = descriptor_pool.DescriptorPool()
for _proto in (_health(), _reflection("v1"), _reflection("v1alpha")):
    POOL.AddSerializedFile(_proto.SerializeToString())


def message_class(name: str) -> Any:
    """The class of a message by its full name."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))
