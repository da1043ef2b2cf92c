"""The handlers of the unary methods except inference. Each takes a request message and returns the response message.

Source: KServe's and Triton's grpc_service.proto, and Triton's docs/protocol.
"""

from tritonclient.grpc import service_pb2 as pb

from serving.core.errors import invalid, unsupported
from serving.frontends.rest.golden import PARAMETER as GOLDEN
from serving.frontends.rest.golden import read_checks
from serving.frontends.shared.worker_threads import in_thread
from serving.models.golden_requests import GoldenCheck
from serving.server.inference_server import InferenceServer


# -- health, metadata, statistics ------------------------------------------------------------------------------------
def server_live(server: InferenceServer, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
    return pb.ServerLiveResponse(live=server.live())


async def server_ready(server: InferenceServer, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
    return pb.ServerReadyResponse(ready=await server.confirm_ready())


async def model_ready(server: InferenceServer, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
    return pb.ModelReadyResponse(ready=await server.confirm_model_ready(request.name, request.version))


def server_metadata(server: InferenceServer, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
    return server.metadata()


def model_metadata(server: InferenceServer, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
    return server.model_metadata(request.name, request.version)


def model_config(server: InferenceServer, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
    return pb.ModelConfigResponse(config=server.model_config(request.name, request.version))


def model_statistics(server: InferenceServer, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
    return server.model_statistics(request.name, request.version)


# -- model repository ------------------------------------------------------------------------------------------------
async def repository_index(server: InferenceServer, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
    _refuse_repository_name(request.repository_name)
    response = pb.RepositoryIndexResponse()
    for row in await server.list_repositories(request.ready):
        response.models.add(name=row.name, version=row.version, state=row.state, reason=row.reason)
    return response


async def repository_model_load(
    server: InferenceServer, request: pb.RepositoryModelLoadRequest
) -> pb.RepositoryModelLoadResponse:
    _refuse_repository_name(request.repository_name)
    config = ""
    files: dict[str, bytes] = {}
    golden: list[GoldenCheck] = []
    for key, parameter in request.parameters.items():
        if key == "config":
            _check_type(key, parameter, "string_param")
            config = parameter.string_param
        elif key == GOLDEN:
            _check_type(key, parameter, "string_param")
            golden = await in_thread(read_checks, parameter.string_param, request.model_name)
        elif key.startswith("file:"):
            _check_type(key, parameter, "bytes_param")
            files[key] = parameter.bytes_param
        else:
            raise invalid(
                f"unrecognized load parameter '{key}'; expected 'config', 'file:<version>/<name>' or '{GOLDEN}'"
            )
    await server.load_model(request.model_name, config, files, golden)
    return pb.RepositoryModelLoadResponse()


async def repository_model_unload(
    server: InferenceServer, request: pb.RepositoryModelUnloadRequest
) -> pb.RepositoryModelUnloadResponse:
    _refuse_repository_name(request.repository_name)
    unload_dependents = False
    for key, parameter in request.parameters.items():
        if key != "unload_dependents":
            raise invalid(f"unrecognized unload parameter '{key}'; expected 'unload_dependents'")
        _check_type(key, parameter, "bool_param")
        unload_dependents = parameter.bool_param
    await server.unload_model(request.model_name, unload_dependents)
    return pb.RepositoryModelUnloadResponse()


def _check_type(key: str, parameter: pb.ModelRepositoryParameter, expected: str) -> None:
    if parameter.WhichOneof("parameter_choice") != expected:
        raise invalid(f"invalid value type for parameter '{key}', expected {expected}.")


def _refuse_repository_name(name: str) -> None:
    if name:
        raise unsupported("'repository_name' specification is not supported")


# -- logging and trace settings --------------------------------------------------------------------------------------
def log_settings(server: InferenceServer, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
    """Change the settings that the request names, and return all settings."""
    changes = {}
    for name, setting in request.settings.items():
        choice = setting.WhichOneof("parameter_choice")
        changes[name] = getattr(setting, choice) if choice else None
    server.log_settings.update(changes)
    answer = pb.LogSettingsResponse()
    for name, value in server.log_settings.values().items():
        row = answer.settings[name]
        if isinstance(value, bool):
            row.bool_param = value
        elif isinstance(value, int):
            row.uint32_param = value
        else:
            row.string_param = value
    return answer


def trace_setting(server: InferenceServer, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
    """Change the settings that have a value in the request, reset the settings that have none, and return all settings."""
    if request.settings:
        changes = {name: list(setting.value) or None for name, setting in request.settings.items()}
        server.update_trace_settings(request.model_name, changes)
    answer = pb.TraceSettingResponse()
    for name, values in server.trace_values(request.model_name).items():
        answer.settings[name].value.extend(values)
    return answer


# -- shared memory ---------------------------------------------------------------------------------------------------
def system_shared_memory_status(
    server: InferenceServer, request: pb.SystemSharedMemoryStatusRequest
) -> pb.SystemSharedMemoryStatusResponse:
    answer = pb.SystemSharedMemoryStatusResponse()
    for region in server.shared_memory.system_status(request.name):
        row = answer.regions[region.name]
        row.name, row.key, row.offset, row.byte_size = region.name, region.key, region.offset, region.byte_size
    return answer


def system_shared_memory_register(
    server: InferenceServer, request: pb.SystemSharedMemoryRegisterRequest
) -> pb.SystemSharedMemoryRegisterResponse:
    server.shared_memory.register_system(request.name, request.key, request.offset, request.byte_size)
    return pb.SystemSharedMemoryRegisterResponse()


def system_shared_memory_unregister(
    server: InferenceServer, request: pb.SystemSharedMemoryUnregisterRequest
) -> pb.SystemSharedMemoryUnregisterResponse:
    server.shared_memory.unregister_system(request.name)
    return pb.SystemSharedMemoryUnregisterResponse()


def cuda_shared_memory_status(
    server: InferenceServer, request: pb.CudaSharedMemoryStatusRequest
) -> pb.CudaSharedMemoryStatusResponse:
    answer = pb.CudaSharedMemoryStatusResponse()
    for region in server.shared_memory.cuda_status(request.name):
        row = answer.regions[region.name]
        row.name, row.device_id, row.byte_size = region.name, region.device_id, region.byte_size
    return answer


def cuda_shared_memory_register(
    server: InferenceServer, request: pb.CudaSharedMemoryRegisterRequest
) -> pb.CudaSharedMemoryRegisterResponse:
    server.shared_memory.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
    return pb.CudaSharedMemoryRegisterResponse()


def cuda_shared_memory_unregister(
    server: InferenceServer, request: pb.CudaSharedMemoryUnregisterRequest
) -> pb.CudaSharedMemoryUnregisterResponse:
    server.shared_memory.unregister_cuda(request.name)
    return pb.CudaSharedMemoryUnregisterResponse()
