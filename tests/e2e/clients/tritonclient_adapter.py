"""The four stock tritonclient clients with one interface, so that one suite tests all of them."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio_client
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio_client
from tritonclient.utils import InferenceServerException

from tests.support.serving_process import PATIENCE_S

KINDS = {"http": http_client, "grpc": grpc_client, "http_aio": http_aio_client, "grpc_aio": grpc_aio_client}
# neutral code -> what a client's exception has as its status
STATUSES = {
    "http": {"INVALID_ARG": "400", "NOT_FOUND": "404", "UNSUPPORTED": "501", "UNAVAILABLE": "503", "INTERNAL": "500"},
    "grpc": {
        "INVALID_ARG": "StatusCode.INVALID_ARGUMENT",
        "NOT_FOUND": "StatusCode.NOT_FOUND",
        "INTERNAL": "StatusCode.INTERNAL",
        "UNSUPPORTED": "StatusCode.UNIMPLEMENTED",
        "UNAVAILABLE": "StatusCode.UNAVAILABLE",
        "ALREADY_EXISTS": "StatusCode.ALREADY_EXISTS",
    },
}


class Result(NamedTuple):
    outputs: dict[str, np.ndarray]
    id: str
    model_name: str
    model_version: str


class Tensor(NamedTuple):
    """An input whose wire datatype does not follow from its array, or that HTTP sends as JSON (binary=False)."""

    array: np.ndarray
    datatype: str = ""
    shape: list[int] | None = None
    binary: bool = True


class TritonClient:
    """One client of a kind in KINDS. Calls of the aio clients run in an event loop of this object's own."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind
        self.protocol = kind.partition("_")[0]
        self.library = KINDS[kind]
        self._runner = asyncio.Runner() if kind.endswith("_aio") else None
        if self._runner is None:
            # The HTTP client has one connection unless told otherwise.
            self.client = self.library.InferenceServerClient(address, **({"concurrency": 8} if kind == "http" else {}))
        else:
            self.client = self._runner.run(self._made(address))

    async def _made(self, address: str) -> Any:
        return self.library.InferenceServerClient(address)

    def close(self) -> None:
        self.call("close")
        if self._runner is not None:
            self._runner.close()

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """A method of the client, to its end."""
        method = getattr(self.client, name)
        if self._runner is None:
            return method(*arguments, **options)
        return self._runner.run(method(*arguments, **options))

    def described(self, name: str, *arguments: Any, **options: Any) -> Any:
        """What a method that describes something returns, as JSON of the HTTP protocol's form."""
        if self.protocol == "http":
            return self.call(name, *arguments, **options)
        found = self.call(name, *arguments, as_json=True, **options)
        return found[only] if len(found) == 1 and (only := next(iter(found))) in ("config", "models") else found

    # -- inference ---------------------------------------------------------------------------------------------------
    def infer(self, model: str, inputs: dict[str, Any], outputs: list[str] | None = None, **options: Any) -> Result:
        """`inputs`: name -> array or Tensor. `json_outputs` asks for outputs as JSON over HTTP."""
        wanted = self.wanted(outputs, options.pop("json_outputs", False))
        return self.result(self.call("infer", model, self.tensors(inputs), outputs=wanted, **options))

    def many(self, model: str, requests: list[dict[str, Any]]) -> list[Result]:
        """The results of requests that are all under way at once."""
        if self._runner is None:
            return self._many_by_callbacks(model, requests)

        async def all_at_once() -> list[Any]:
            calls = [self.client.infer(model, self.tensors(inputs)) for inputs in requests]
            return await asyncio.gather(*calls)

        return [self.result(result) for result in self._runner.run(all_at_once())]

    def _many_by_callbacks(self, model: str, requests: list[dict[str, Any]]) -> list[Result]:
        if self.kind == "http":
            pending = [self.client.async_infer(model, self.tensors(inputs)) for inputs in requests]
            return [self.result(one.get_result()) for one in pending]
        import queue

        answers: queue.Queue[Any] = queue.Queue()
        for number, inputs in enumerate(requests):
            callback: Callable[..., None] = lambda result, error, number=number: answers.put((number, result, error))  # noqa: E731
            self.client.async_infer(model, self.tensors(inputs), callback)
        found = sorted((answers.get(timeout=PATIENCE_S) for _ in requests), key=lambda answer: answer[0])
        assert not [error for _, _, error in found if error]
        return [self.result(result) for _, result, _ in found]

    def tensors(self, inputs: dict[str, Any]) -> list[Any]:
        made = []
        for name, value in inputs.items():
            tensor = value if isinstance(value, Tensor) else Tensor(value)
            datatype = tensor.datatype or np_to_datatype(tensor.array)
            one = self.library.InferInput(name, tensor.shape or list(tensor.array.shape), datatype)
            if tensor.shape is None:
                one.set_data_from_numpy(tensor.array, *([tensor.binary] if self.protocol == "http" else []))
            else:  # a shape that contradicts the data: the client would not let us set it
                one.set_shape(list(tensor.array.shape))
                one.set_data_from_numpy(tensor.array)
                one.set_shape(tensor.shape)
            made.append(one)
        return made

    def wanted(self, outputs: list[str] | None, as_json: bool) -> list[Any] | None:
        if outputs is None:
            return None
        options = {"binary_data": not as_json} if self.protocol == "http" else {}
        return [self.library.InferRequestedOutput(name, **options) for name in outputs]

    def result(self, result: Any) -> Result:
        response = result.get_response()
        if self.protocol == "http":
            names = [output["name"] for output in response["outputs"]]
            head = (response.get("id", ""), response["model_name"], response["model_version"])
        else:
            names = [output.name for output in response.outputs]
            head = (response.id, response.model_name, response.model_version)
        return Result({name: result.as_numpy(name) for name in names}, *head)

    def status(self, code: str) -> str:
        """How this client's exceptions spell a neutral error code."""
        return STATUSES[self.protocol][code]


def np_to_datatype(array: np.ndarray) -> str:
    from tritonclient.utils import np_to_triton_dtype

    return str(np_to_triton_dtype(array.dtype))


__all__ = ["InferenceServerException", "Result", "Tensor", "TritonClient"]
