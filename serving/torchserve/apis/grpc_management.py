"""TorchServe's ManagementAPIsService over gRPC.

An answer is one string. An error is a message with the name of a Java class on its second line.
Source: docs/grpc_api.md of TorchServe 0.12, and its answers.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson

from repository.torchserve.version_settings import Registering
from serving.core.errors import ServingError
from serving.frontends.grpc.call import Method
from serving.frontends.grpc.methods import METHODS, UnaryCall, UnknownCall
from serving.frontends.grpc.reflection import Reflection
from serving.frontends.grpc.status import CallError, Status
from serving.server.inference_server import InferenceServer
from serving.torchserve.apis import messages
from serving.torchserve.apis.authorisation import MANAGEMENT_GROUP as GROUP
from serving.torchserve.apis.grpc_status import status_of_http
from serving.torchserve.apis.management import described, manageable
from serving.torchserve.apis.replies import describe
from serving.torchserve.registry.description import PAGE
from serving.torchserve.registry.errors import TorchServeError, bad_request
from serving.torchserve.registry.registrations import Registrations
from serving.torchserve.registry.source import TorchServeSource

SERVICE = f"{messages.MANAGEMENT}.ManagementAPIsService"
_PACKAGES = {
    "ModelNotFoundException": "org.pytorch.serve.archive.model",
    "ModelVersionNotFoundException": "org.pytorch.serve.archive.model",
    "ModelException": "org.pytorch.serve.archive.model",
    "InvalidModelException": "org.pytorch.serve.archive.model",
    "DownloadArchiveException": "org.pytorch.serve.archive",
}


class ManagementService:
    """Each method takes a message and returns the text of the answer."""

    def __init__(self, source: TorchServeSource) -> None:
        self._source = source
        calls: dict[str, tuple[Any, Callable[[Any], Awaitable[str]]]] = {
            "DescribeModel": (messages.DescribeModelRequest, self.describe_model),
            "ListModels": (messages.ListModelsRequest, self.list_models),
            "RegisterModel": (messages.RegisterModelRequest, self.register_model),
            "ScaleWorker": (messages.ScaleWorkerRequest, self.scale_worker),
            "SetDefault": (messages.SetDefaultRequest, self.set_default),
            "UnregisterModel": (messages.UnregisterModelRequest, self.unregister_model),
        }
        self._methods = {
            f"/{SERVICE}/{name}": Method(name, GROUP, UnaryCall, request, partial(_answer, call))
            for name, (request, call) in calls.items()
        }
        reflected = Reflection({SERVICE: messages.POOL}).methods()
        self._methods |= {f"/{method.name}": method for method in reflected}

    def find_method(self, path: str) -> Method:
        """Return the method for a path. For an unknown path, return a method that answers UNIMPLEMENTED."""
        standard = METHODS.get(path) if path.startswith("/grpc.health.") else None
        return self._methods.get(path) or standard or Method(path[:200], "", UnknownCall)

    # -- the methods -----------------------------------------------------------------------------------------------
    async def describe_model(self, request: Any) -> str:
        version = request.model_version or None
        return _as_json(await described(self._source, request.model_name, version, request.customized))

    async def list_models(self, request: Any) -> str:
        return _as_json(self._source.descriptions.page(request.limit or PAGE, request.next_page_token))

    async def register_model(self, request: Any) -> str:
        registrations = self._changeable()
        asked = Registering(
            url=request.url or None,
            model_name=request.model_name,
            runtime=request.runtime,
            handler=request.handler,
            batch_size=request.batch_size or None,
            max_batch_delay_ms=request.max_batch_delay or None,
            initial_workers=request.initial_workers or None,
            response_timeout_s=request.response_timeout or None,
            startup_timeout_s=request.startup_timeout or None,
            synchronous=request.synchronous,
        )
        return (await registrations.register(asked)).text

    async def scale_worker(self, request: Any) -> str:
        least = request.min_worker if request.min_worker > 0 else 1
        most = request.max_worker if request.max_worker > 0 else least
        scaled = manageable(self._source).scale(
            request.model_name, request.model_version or None, least, most, request.synchronous
        )
        return (await scaled).text

    async def set_default(self, request: Any) -> str:
        return (await manageable(self._source).set_default(request.model_name, request.model_version)).text

    async def unregister_model(self, request: Any) -> str:
        registrations = self._changeable()
        if not request.model_name:
            raise bad_request("Parameter url is required.")
        return (await registrations.unregister(request.model_name, request.model_version or None)).text

    def _changeable(self) -> Registrations:
        registrations = manageable(self._source)
        if not self._source.options.enable_model_api:
            raise TorchServeError(405, "ModelException", "Model API disabled")
        return registrations


async def _answer(call: Callable[[Any], Awaitable[str]], server: InferenceServer, request: Any) -> Any:
    try:
        return messages.ManagementResponse(msg=await call(request))
    except ServingError as error:
        description = describe(error)
        name = f"{_PACKAGES.get(description.type, 'org.pytorch.serve.http')}.{description.type}"
        raise CallError(
            Status.PERMISSION_DENIED if description.status == 405 else status_of_http(description.status),
            f"{description.message}\n{name}",
        ) from None


def _as_json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
