"""The protocol of TorchServe's /predictions/<model>[/<version>]: one request for each row, as TorchServe's clients send it.

For a model with one BYTES input and one BYTES output (as this server has for TorchServe's archives), bodies are sent and
received unchanged. For a model with other tensors, rows are sent as JSON: nested lists, or for several inputs an object of
nested lists. Answers are read in the same way. For a handler with another form of JSON, the policy has templates.
Source: docs/inference_api.md of TorchServe 0.12, and its server.
"""

import dataclasses
import secrets
from collections.abc import Sequence

import numpy as np
import orjson
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.traffic import Remote
from repository.core.json_types import Json
from serving.core.datatypes import Tensor
from serving.core.in_flight import InFlightRequest
from serving.core.request import Parameters
from serving.resources.request_memory import RequestMemory
from serving.traffic.remotes.allow_list import RemoteAccess
from serving.traffic.remotes.http_client import Chunk, HttpAnswer, HttpClient
from serving.traffic.remotes.json_service import JsonService
from serving.traffic.remotes.json_template import ROW, WHOLE
from serving.traffic.remotes.protocol import RemoteAnswer, RemoteProtocol, all_of, refused, version_number

_Part = tuple[str, str | None, str | None]  # name, content type, file name


class TorchServe(RemoteProtocol):
    def __init__(self, remote: Remote, config: ModelConfig, access: RemoteAccess, memory: RequestMemory) -> None:
        version = (remote.version,) if remote.version else ()
        path = access.address.below("predictions", remote.model or config.name, *version)
        tensors = [*config.input, *config.output]
        bodies = len(config.input) == len(config.output) == 1 and all(
            one.data_type == mc.TYPE_STRING for one in tensors
        )
        self._client: RemoteProtocol
        if bodies and remote.request is None:
            self._client = _Bodies(remote, config, access, memory, path)
        else:
            below = dataclasses.replace(access, address=access.address._replace(path=path))
            templates = remote if remote.request is not None else _with_lists(remote, config)
            self._client = JsonService(templates, config, below, memory)
        self.outputs = self._client.outputs

    async def infer(self, request: InFlightRequest) -> RemoteAnswer:
        return await self._client.infer(request)

    async def close(self) -> None:
        await self._client.close()


def _with_lists(remote: Remote, config: ModelConfig) -> Remote:
    """Return the remote with templates that send and receive rows as nested lists."""
    row = ROW if config.max_batch_size > 0 else ""
    inputs, outputs = [one.name for one in config.input], [one.name for one in config.output]
    request: Json = f"${inputs[0]}{row}" if len(inputs) == 1 else {name: f"${name}{row}" for name in inputs}
    response = {outputs[0]: WHOLE} if len(outputs) == 1 else {name: name for name in outputs}
    return dataclasses.replace(remote, request=request, response=response)


class _Bodies(RemoteProtocol):
    """Sends and receives rows as bytes, without JSON."""

    def __init__(
        self, remote: Remote, config: ModelConfig, access: RemoteAccess, memory: RequestMemory, path: str
    ) -> None:
        self._address = access.address
        self._client = HttpClient(access, memory)
        self._path = path
        self._version = version_number(remote.version)
        self._input, self._output = config.input[0].name, config.output[0].name
        self._dims = tuple(config.output[0].dims)
        self._batches = config.max_batch_size > 0

    async def infer(self, request: InFlightRequest) -> RemoteAnswer:
        parts = _parts_of(request)
        tensor = request.inputs[self._input]
        rows = tensor.reshape(len(tensor) if self._batches else 1, -1)
        values = [[one if isinstance(one, bytes) else str(one).encode() for one in row] for row in rows]
        answers = await all_of([self._ask(row, parts) for row in values])
        found: Tensor = np.empty(len(answers), np.object_)
        found[:] = [answer.body for answer in answers]
        ones = (1,) * len(self._dims)
        shape = (len(answers), *ones) if self._batches else ones
        return RemoteAnswer({self._output: found.reshape(shape)}, self._version, _parameters(answers))

    async def _ask(self, values: list[bytes], parts: Sequence[_Part]) -> HttpAnswer:
        kind, chunks = _body(values, parts)
        answer = await self._client.post(self._path, {"Content-Type": kind}, chunks)
        if not 200 <= answer.status < 300:
            raise refused(self._address, answer.status, answer.body)
        return answer

    async def close(self) -> None:
        await self._client.close()


def _parameters(answers: Sequence[HttpAnswer]) -> Parameters:
    """Return the content type of a single answer, and its status unless it is 200, as the parameters that this server's own
    handlers set; {} if there are several answers."""
    if len(answers) != 1:
        return {}
    parameters: Parameters = (
        {"content_type": answers[0].headers["content-type"]} if "content-type" in answers[0].headers else {}
    )
    return parameters if answers[0].status == 200 else parameters | {"torchserve_status": answers[0].status}


def _parts_of(request: InFlightRequest) -> list[_Part]:
    """Return the parts as a client of TorchServe has described them, or [] for other clients."""
    try:
        found = orjson.loads(str(request.asked.parameters.get("torchserve_parts", "[]")))
        return [(str(name), _printable(kind), _printable(filename)) for name, kind, filename in found]
    except (ValueError, TypeError):
        return []


def _printable(text: object) -> str | None:
    """Return a text from a client if a header may contain it, or else None."""
    return text if isinstance(text, str) and text.isascii() and text.isprintable() else None


def _body(values: list[bytes], parts: Sequence[_Part]) -> tuple[str, list[Chunk]]:
    """Return the content type and the body of one request. A single element is sent unchanged, several elements as a form."""
    if len(values) == 1:
        kind = parts[0][1] if len(parts) == 1 else None
        return kind or _guessed(values[0]), [values[0]]
    boundary = secrets.token_hex(16)
    chunks: list[Chunk] = []
    for number, value in enumerate(values):
        name, kind, filename = parts[number] if len(parts) == len(values) else (f"data{number}", None, None)
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"'
        if filename is not None or kind:
            head += (
                f'; filename="{_quoted(filename or name)}"\r\nContent-Type: {_guessed(value) if kind is None else kind}'
            )
        chunks += [f"{head}\r\n\r\n".encode(), value, b"\r\n"]
    chunks.append(f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", chunks


def _guessed(value: bytes) -> str:
    """Return a content type for an element without one: JSON for an object or a list, or else application/octet-stream."""
    if value[:1] in (b"{", b"["):
        try:
            orjson.loads(value)
            return "application/json"
        except ValueError:
            pass
    return "application/octet-stream"


def _quoted(name: str) -> str:
    return "".join(f"\\{one}" if one in '"\\' else one if one.isprintable() else " " for one in name)
