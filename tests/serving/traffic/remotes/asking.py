"""A remote model in the test's own event loop, asked as an arm of a rollout is."""

import asyncio
import json
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.traffic import Remote
from serving.core.response import InferenceResponse
from serving.resources.request_memory import RequestMemory
from serving.traffic.remotes.allow_list import RemoteAllowList
from serving.traffic.remotes.remote_model import RemoteModel
from tests.serving.requests import in_flight
from tests.support.serving_process import PATIENCE_S


def config(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig())


def allow_list(folder: Path, listed: dict[str, Any]) -> RemoteAllowList:
    path = folder / "remotes.json"
    path.write_text(json.dumps(listed))
    return RemoteAllowList(path)


def remote_model(
    folder: Path, remote: Remote, model: ModelConfig, memory: RequestMemory | None = None, **listed: Any
) -> RemoteModel:
    """listed: what the allow list says of the server."""
    access = allow_list(folder, {remote.url: listed}).of(remote.url)
    return RemoteModel(remote, model, access, memory or RequestMemory(1 << 30))


async def ask(model: RemoteModel, inputs: dict[str, Any], **fields: Any) -> InferenceResponse:
    """The response to one request; raises the error that it was answered with."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    model.submit(in_flight("m", inputs, lambda answer, final: answered.set_result(answer), **fields))
    answer = await asyncio.wait_for(answered, PATIENCE_S)
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, InferenceResponse)
    return answer
