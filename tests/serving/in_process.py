"""The server's core without frontends, in the test's own event loop, on real models."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from serving.cli.options import Options
from serving.core.response import InferenceResponse
from serving.models.repository_index import IndexRow
from serving.server.inference_server import InferenceServer
from tests.serving.requests import in_flight
from tests.support.serving_process import PATIENCE_S


@contextlib.asynccontextmanager
async def core(repository: Path | list[Path], **options: Any) -> AsyncIterator[InferenceServer]:
    """A started server in explicit mode unless told otherwise, on one repository or several."""
    settings = {"model_control_mode": "explicit", "exit_on_error": False} | options
    repositories = tuple(repository) if isinstance(repository, list) else (repository,)
    server = InferenceServer(Options(model_repository=repositories, **settings))
    await server.start()
    try:
        yield server
    finally:
        await server.drain(PATIENCE_S)


async def infer(server: InferenceServer, model: str, inputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The outputs of one request; raises what it was answered with."""
    return (await response(server, model, inputs, **fields)).outputs


async def response(server: InferenceServer, model: str, inputs: dict[str, Any], **fields: Any) -> InferenceResponse:
    """The response to one request; raises the error that it was answered with."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    server.infer(in_flight(model, inputs, lambda answer, final: answered.set_result(answer), **fields))
    answer = await asyncio.wait_for(answered, PATIENCE_S)
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, InferenceResponse)
    return answer


def index_rows(server: InferenceServer) -> list[IndexRow]:
    """The repository index, read at once."""
    index = server._manager.index
    return index.rows(False, index.on_disk())


def index(server: InferenceServer) -> dict[tuple[str, str], tuple[str, str]]:
    """(name, version) -> (state, reason)"""
    return {(row.name, row.version): (row.state, row.reason) for row in index_rows(server)}
