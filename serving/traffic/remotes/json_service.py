"""The protocol for a model in any service that takes and returns JSON over HTTP, such as a FastAPI application."""

import orjson
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.traffic import Remote
from serving.core.errors import internal
from serving.core.in_flight import InFlightRequest
from serving.resources.request_memory import RequestMemory
from serving.traffic.remotes.allow_list import RemoteAccess
from serving.traffic.remotes.http_client import HttpClient
from serving.traffic.remotes.json_template import RequestTemplate, ResponseTemplate
from serving.traffic.remotes.protocol import (
    RemoteAnswer,
    RemoteProtocol,
    all_of,
    off_loop,
    refused,
    request_bytes,
    version_number,
)

_JSON = {"Content-Type": "application/json", "Accept": "application/json"}


class JsonService(RemoteProtocol):
    """Makes the request by the policy's template `request`, and reads the answer by the paths in its `response`."""

    def __init__(self, remote: Remote, config: ModelConfig, access: RemoteAccess, memory: RequestMemory) -> None:
        self._address = access.address
        self._path = access.address.path or "/"
        self._version = version_number(remote.version)
        self._request = RequestTemplate(remote.request, config)
        self._response = ResponseTemplate(remote.response, config)
        self.outputs = self._response.names
        self._client = HttpClient(access, memory)

    async def infer(self, request: InFlightRequest) -> RemoteAnswer:
        rows = range(request.batch_size if self._request.rowwise else 1)
        bodies = await all_of([self._ask(request, row) for row in rows])
        arguments = (bodies, self._request.rowwise, request.batch_size, request.asked.requested_outputs)
        try:
            outputs = await off_loop(sum(map(len, bodies)), self._response.read, *arguments)
        except (LookupError, ValueError, TypeError, OverflowError) as error:
            what = (
                "content that is not JSON"
                if isinstance(error, orjson.JSONDecodeError)
                else "JSON without the outputs at the paths in 'response', or with other datatypes"
            )
            raise internal(f"the server at {self._address} answered with {what}") from None
        return RemoteAnswer(outputs, self._version)

    async def _ask(self, request: InFlightRequest, row: int) -> bytes:
        body = await off_loop(request_bytes(request), self._request.fill, request.inputs, row)
        answer = await self._client.post(self._path, _JSON, [body])
        if not 200 <= answer.status < 300:
            raise refused(self._address, answer.status, answer.body)
        return answer.body

    async def close(self) -> None:
        await self._client.close()
