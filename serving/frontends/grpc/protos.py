"""The messages of gRPC's own services: health checking, and reflection in its two versions.

The packages of grpcio ship those of health checking and of reflection v1alpha; v1, which none ships, is v1alpha under another
name. They live in a descriptor pool of their own, as files with the names that grpc-proto gives them: a process may have other
copies of them.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2


def _file(shipped: Any, package: str) -> bytes:
    """Return a shipped module's file as that of `package`, as a serialized FileDescriptorProto."""
    proto = descriptor_pb2.FileDescriptorProto()
    shipped.DESCRIPTOR.CopyToProto(proto)
    text = text_format.MessageToString(proto).replace(proto.package, package)
    renamed = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    renamed.name = f"{package.replace('.', '/')}/{proto.name.rpartition('/')[2]}"
    return bytes(renamed.SerializeToString())


POOL = descriptor_pool.DescriptorPool()
POOL.AddSerializedFile(_file(health_pb2, "grpc.health.v1"))
POOL.AddSerializedFile(_file(reflection_pb2, "grpc.reflection.v1"))
POOL.AddSerializedFile(_file(reflection_pb2, "grpc.reflection.v1alpha"))


def message_class(name: str) -> Any:
    """Return the class of a message by its full name."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))
