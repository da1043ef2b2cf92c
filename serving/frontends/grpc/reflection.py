"""Server reflection, v1 and v1alpha: clients such as grpcurl learn the services and messages from the server itself.

Source: grpc-proto, grpc/reflection/v1/reflection.proto.
"""

from typing import Any

from google.protobuf import descriptor_pb2
from tritonclient.grpc import service_pb2 as pb

from serving.core.errors import invalid
from serving.frontends.grpc.call import Call
from serving.frontends.grpc.protos import POOL, message_class
from serving.frontends.grpc.status import Status

SERVICES = (
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
)
_POOLS = (pb.DESCRIPTOR.pool, POOL)


class ReflectionCall(Call):
    """ServerReflectionInfo: one response for each request of the stream."""

    __slots__ = ()
    client_streaming = True

    def message(self, body: "bytes | memoryview", start: int) -> None:
        version = self.method.name.split(".")[2]
        request = message_class(f"grpc.reflection.{version}.ServerReflectionRequest")()
        try:
            request.ParseFromString(bytes(body[start:]))
        except ValueError:  # protobuf's DecodeError
            raise invalid("the message is not a ServerReflectionRequest in protobuf's encoding") from None
        answer = message_class(f"grpc.reflection.{version}.ServerReflectionResponse")(
            valid_host=request.host, original_request=request
        )
        _answer(request, answer)
        data = answer.SerializeToString()
        self.respond((data,), len(data), final=False)

    def wants_more(self) -> bool:
        return not self.outgoing

    def drained(self) -> None:
        self.resume()

    def half_closed(self) -> None:
        self.succeed()


def _answer(request: Any, answer: Any) -> None:
    question = request.WhichOneof("message_request")
    try:
        if question == "list_services":
            for name in SERVICES:
                answer.list_services_response.service.add(name=name)
        elif question == "file_by_filename":
            _add_files(answer, _find("FindFileByName", request.file_by_filename))
        elif question == "file_containing_symbol":
            _add_files(answer, _find("FindFileContainingSymbol", request.file_containing_symbol))
        elif question == "all_extension_numbers_of_type":
            # none of the messages has extensions
            answer.all_extension_numbers_response.base_type_name = _find(
                "FindMessageTypeByName", request.all_extension_numbers_of_type
            ).full_name
        elif question == "file_containing_extension":
            raise KeyError("extension")
        else:
            answer.error_response.error_code = int(Status.INVALID_ARGUMENT)
            answer.error_response.error_message = "the request asks nothing that this server knows"
    except KeyError:
        answer.error_response.error_code = int(Status.NOT_FOUND)
        answer.error_response.error_message = "not found"


def _find(method: str, name: str) -> Any:
    """Return the descriptor from the first pool that has it in a file that is served; KeyError where none has."""
    for pool in _POOLS:
        try:
            found = getattr(pool, method)(name)
        except KeyError:
            continue
        if (getattr(found, "file", None) or found).name in _SERVED:
            return found
    raise KeyError(name)


def _with_dependencies(file: Any) -> dict[str, Any]:
    """Return the file and those that it imports, by name."""
    files = {file.name: file}
    for imported in file.dependencies:
        files |= _with_dependencies(imported)
    return files


def _add_files(answer: Any, file: Any) -> None:
    for one in _with_dependencies(file).values():
        proto = descriptor_pb2.FileDescriptorProto()
        one.CopyToProto(proto)
        answer.file_descriptor_response.file_descriptor_proto.append(proto.SerializeToString())


_SERVED = set(_with_dependencies(pb.DESCRIPTOR)) | {POOL.FindFileContainingSymbol(name).name for name in SERVICES[:3]}
