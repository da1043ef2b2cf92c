"""A decoupled model asked through the dashboard: each response is there as soon as the model has sent it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from dashboard.models import Server
from dashboard.servers.services import server_ensure_local
from dashboard.servers.streaming import Part, parts_of, request_of
from dashboard.shared.exceptions import Invalid
from repository.core.tensors import Tensor
from tests.support.serving_process import PATIENCE_S, ServerProcess
from tests.support.torchserve_archives import model

HANDLER = """
import time
from pathlib import Path
from ts.handler_utils.utils import send_intermediate_predict_response

def handle(data, context):
    if data is None:
        return None
    asked = data[0]["body"]
    if "fail" in asked:
        raise ValueError("cannot do that")
    send_intermediate_predict_response([b"\\x00first"], context.request_ids, "OK", 200, context)
    while not Path(asked["gate"]).exists():
        time.sleep(0.01)
    return ["last"]
"""
ADDRESS = "/api/v1/models/slow/infer_stream"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("repository")
    model(repository, "slow", handler=HANDLER)
    with ServerProcess(repository) as running:
        yield running


def asked(**value: str) -> list[Tensor]:
    return [Tensor("data", "BYTES", (1, 1), [json.dumps(value).encode()])]


def test_a_response_is_there_while_the_model_still_works_on_the_next(serving: ServerProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def asks() -> list[Part]:
        request = request_of("slow", "", asked(gate=str(gate)), {"content_type": "application/json"})
        parts: AsyncGenerator[Part, None] = parts_of(Server(name="local", grpc_url=serving.grpc), request)
        async with asyncio.timeout(PATIENCE_S):
            first = await anext(parts)
            gate.touch()
            return [first, *[part async for part in parts]]

    found = asyncio.run(asks())
    assert [part.outputs[0].elements for part in found] == [[b"\x00first"], [b"last"]]
    assert [part.error for part in found] == ["", ""]


@pytest.mark.django_db
def test_rest_answers_a_line_for_each_response_and_one_for_what_failed(
    serving: ServerProcess, api: APIClient, tmp_path: Path
) -> None:
    server_ensure_local()
    Server.objects.update(grpc_url=serving.grpc)
    (tmp_path / "gate").touch()

    def lines(**value: str) -> list[Any]:
        content = [{"name": "data", "datatype": "BYTES", "shape": [1, 1], "data": [json.dumps(value)]}]
        body = {"inputs": content, "parameters": {"content_type": "application/json"}}
        response = api.post(ADDRESS, body, headers={"Accept": "application/x-ndjson"})
        assert (response.status_code, response["Content-Type"]) == (200, "application/x-ndjson")

        async def read() -> bytes:
            return b"".join([part async for part in response.streaming_content])

        return [json.loads(line) for line in asyncio.run(read()).splitlines()]

    first, last = lines(gate=str(tmp_path / "gate"))
    assert (first["outputs"][0]["base64"], last["outputs"][0]["data"]) == ("BgAAAABmaXJzdA==", ["last"])
    assert "cannot do that" in lines(fail="yes")[-1]["error"]
    Server.objects.update(grpc_url="127.0.0.1:9")
    assert lines(gate="")[-1]["error"] == "inference server local does not answer: nothing listens at its address"
    assert api.post(ADDRESS, {"inputs": []}).status_code == 400


def test_a_parameter_that_grpc_cannot_carry_is_refused() -> None:
    for value in ([1], 1 << 70, None):
        with pytest.raises(Invalid, match="parameter 'odd'"):
            request_of("m", "", [], {"odd": value})
