"""The stock asyncio gRPC client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton

from tests.e2e.clients.tritonclient_suite import ADD_SUB, TritonclientSuite
from tests.support.serving_process import ServerProcess


class TestTritonclientGrpcAio(TritonclientSuite):
    kind = "grpc_aio"

    def test_a_cancelled_call_leaves_the_others_alone(self, server: ServerProcess) -> None:
        async def cancel_half() -> list[Any]:
            async with triton.InferenceServerClient(server.grpc) as client:
                inputs = [
                    triton.InferInput(name, list(array.shape), "FP32").set_data_from_numpy(array)
                    for name, array in ADD_SUB.items()
                ]
                calls = [asyncio.ensure_future(client.infer("add_sub", inputs)) for _ in range(40)]
                await asyncio.sleep(0)
                for call in calls[::2]:
                    call.cancel()
                return await asyncio.gather(*calls, return_exceptions=True)

        results = asyncio.run(cancel_half())
        assert all(result.as_numpy("OUTPUT0").tolist() == [[5, 5, 5, 5]] for result in results[1::2])

    def test_a_stream_answers_in_order(self, server: ServerProcess) -> None:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            for number in range(10):
                array = np.array([[number]], np.float32)
                tensor = triton.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(array)
                yield {"model_name": "scale", "inputs": [tensor], "request_id": str(number)}

        async def stream() -> list[tuple[str, float]]:
            async with triton.InferenceServerClient(server.grpc) as client:
                found = []
                async for result, error in client.stream_infer(requests()):
                    assert error is None
                    found.append((result.get_response().id, result.as_numpy("OUTPUT0").item()))
                return found

        assert asyncio.run(stream()) == [(str(number), number * 3) for number in range(10)]
