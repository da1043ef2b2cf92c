"""RPCs of the shared memory extension: status, register, unregister, for system and CUDA memory."""

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from serving.server import InferenceServer


def system_status(server: InferenceServer, request: Any) -> Any:
    answer = pb.SystemSharedMemoryStatusResponse()
    for region in server.shared_memory.system_status(request.name):
        row = answer.regions[region.name]
        row.name, row.key, row.offset, row.byte_size = region.name, region.key, region.offset, region.byte_size
    return answer


def system_register(server: InferenceServer, request: Any) -> Any:
    server.shared_memory.register_system(request.name, request.key, request.offset, request.byte_size)
    return pb.SystemSharedMemoryRegisterResponse()


def system_unregister(server: InferenceServer, request: Any) -> Any:
    server.shared_memory.unregister_system(request.name)
    return pb.SystemSharedMemoryUnregisterResponse()


def cuda_status(server: InferenceServer, request: Any) -> Any:
    answer = pb.CudaSharedMemoryStatusResponse()
    for region in server.shared_memory.cuda_status(request.name):
        row = answer.regions[region.name]
        row.name, row.device_id, row.byte_size = region.name, region.device_id, region.byte_size
    return answer


def cuda_register(server: InferenceServer, request: Any) -> Any:
    server.shared_memory.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
    return pb.CudaSharedMemoryRegisterResponse()


def cuda_unregister(server: InferenceServer, request: Any) -> Any:
    server.shared_memory.unregister_cuda(request.name)
    return pb.CudaSharedMemoryUnregisterResponse()
