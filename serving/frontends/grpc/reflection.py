"""Server reflection, v1 and v1alpha: clients such as grpcurl get the services and messages from the server.

The packages of grpcio have the messages of health checking and of reflection v1alpha. Reflection v1, which no package has, is
v1alpha under another name. The messages are in a separate descriptor pool, because a process may have other copies of them.
Their files have the names that they have in grpc-proto.

Source: grpc-proto, grpc/reflection/v1/reflection.proto.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.protobuf import message_factory, text_format
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import service_pb2 as pb

from serving.core.errors import invalid
from serving.frontends.grpc.call import Call, CallServices, Method
from serving.frontends.grpc.call_headers import CallHead
from serving.frontends.grpc.status import Status
from serving.frontends.http2.stream import StreamConnection

STANDARD = (
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
V2_SERVICES: dict[str, DescriptorPool] = {"inference.GRPCInferenceService": pb.DESCRIPTOR.pool}

Found = TypeVar("Found", Descriptor, FileDescriptor)


def _file(shipped: FileDescriptor, package: str) -> bytes:
    """Return a file of grpcio, renamed to a file of `package`, as a serialized FileDescriptorProto."""
    proto = FileDescriptorProto()
    shipped.CopyToProto(proto)
    text = text_format.MessageToString(proto).replace(proto.package, package)
    renamed = text_format.Parse(text, FileDescriptorProto())
    renamed.name = f"{package.replace('.', '/')}/{proto.name.rpartition('/')[2]}"
    return bytes(renamed.SerializeToString())


POOL = DescriptorPool()
POOL.AddSerializedFile(_file(health_pb2.DESCRIPTOR, "grpc.health.v1"))
POOL.AddSerializedFile(_file(reflection_pb2.DESCRIPTOR, "grpc.reflection.v1"))
POOL.AddSerializedFile(_file(reflection_pb2.DESCRIPTOR, "grpc.reflection.v1alpha"))


def message_class(name: str) -> Any:
    """Return the class of a message of POOL by its full name. Its type is Any, because the class is created at run time."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


class ReflectionCall(Call):
    """A call of ServerReflectionInfo: one response for each request of the stream."""

    __slots__ = ("reflection",)
    client_streaming = True

    def __init__(
        self,
        reflection: "Reflection",
        connection: StreamConnection,
        stream_id: int,
        head: CallHead,
        services: CallServices,
        method: Method,
    ) -> None:
        Call.__init__(self, connection, stream_id, head, services, method)
        self.reflection = reflection

    def message(self, body: "bytes | memoryview", start: int) -> None:
        version = self.method.name.split(".")[2]
        request = message_class(f"grpc.reflection.{version}.ServerReflectionRequest")()
        try:
            request.ParseFromString(bytes(body[start:]))
        except DecodeError:
            raise invalid("the message is not a ServerReflectionRequest in protobuf's encoding") from None
        answer = message_class(f"grpc.reflection.{version}.ServerReflectionResponse")(
            valid_host=request.host, original_request=request
        )
        self.reflection.answer(request, answer)
        data = answer.SerializeToString()
        self.respond((data,), len(data), final=False)

    def wants_more(self) -> bool:
        return not self.outgoing

    def drained(self) -> None:
        self.resume()

    def half_closed(self) -> None:
        self.succeed()


class Reflection:
    """Describes a listener's services: the standard services and `services`, a dict of names and descriptor pools."""

    def __init__(self, services: Mapping[str, DescriptorPool]) -> None:
        known = {**dict.fromkeys(STANDARD, POOL), **services}
        self._names = sorted(known)
        self._pools = [*services.values(), POOL]
        self._served: set[str] = set()
        for name, pool in known.items():
            self._served |= _with_dependencies(pool.FindFileContainingSymbol(name)).keys()

    def methods(self) -> list[Method]:
        """Return the method ServerReflectionInfo of v1 and of v1alpha."""
        return [
            Method(f"{service}/ServerReflectionInfo", "metadata", lambda *arguments: ReflectionCall(self, *arguments))
            for service in STANDARD[1:]
        ]

    def answer(self, request: Any, answer: Any) -> None:
        """Fill in the answer to a ServerReflectionRequest."""
        question = request.WhichOneof("message_request")
        try:
            if question == "list_services":
                for name in self._names:
                    answer.list_services_response.service.add(name=name)
            elif question == "file_by_filename":
                _add_files(answer, self._find(lambda pool, name: pool.FindFileByName(name), request.file_by_filename))
            elif question == "file_containing_symbol":
                symbol = request.file_containing_symbol
                _add_files(answer, self._find(lambda pool, name: pool.FindFileContainingSymbol(name), symbol))
            elif question == "all_extension_numbers_of_type":
                # none of the messages has extensions
                name = request.all_extension_numbers_of_type
                message = self._find(lambda pool, name: pool.FindMessageTypeByName(name), name)
                answer.all_extension_numbers_response.base_type_name = message.full_name
            elif question == "file_containing_extension":
                raise KeyError("extension")
            else:
                answer.error_response.error_code = int(Status.INVALID_ARGUMENT)
                answer.error_response.error_message = "the request has no question that this server supports"
        except KeyError:
            answer.error_response.error_code = int(Status.NOT_FOUND)
            answer.error_response.error_message = "not found"

    def _find(self, find: Callable[[DescriptorPool, str], Found], name: str) -> Found:
        """Return the first result of `find` that belongs to a served file. Raises KeyError if there is none."""
        for pool in self._pools:
            try:
                found = find(pool, name)
            except KeyError:
                continue
            if (found if isinstance(found, FileDescriptor) else found.file).name in self._served:
                return found
        raise KeyError(name)


def _with_dependencies(file: FileDescriptor) -> dict[str, FileDescriptor]:
    """Return the file and all files that it imports, by name."""
    files = {file.name: file}
    for imported in file.dependencies:
        files |= _with_dependencies(imported)
    return files


def _add_files(answer: Any, file: FileDescriptor) -> None:
    for one in _with_dependencies(file).values():
        proto = FileDescriptorProto()
        one.CopyToProto(proto)
        answer.file_descriptor_response.file_descriptor_proto.append(proto.SerializeToString())
