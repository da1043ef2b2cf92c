"""The calls over gRPC, to both services, and the parts of an answer that are compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from serving.torchserve.apis.messages import INFERENCE, MANAGEMENT, POOL
from tests.e2e.torchserve.management import same
from tests.support.serving_process import PATIENCE_S
from tests.support.torchserve_process import Server

SERVICES = {
    name: POOL.FindServiceByName(name)
    for name in (f"{INFERENCE}.InferenceAPIsService", f"{MANAGEMENT}.ManagementAPIsService")
}


@dataclass(frozen=True)
class Call:
    """A call of a method; `fields` are those of its request."""

    title: str
    method: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    metadata: tuple[tuple[str, str], ...] = ()


def answer_of(server: Server, call: Call) -> tuple[str, str, list[str]]:
    """Return the code, what is said with it, and the answers' texts."""
    service = next(one for one in SERVICES.values() if call.method in one.methods_by_name)
    method = service.methods_by_name[call.method]
    request, response = (GetMessageClass(one) for one in (method.input_type, method.output_type))
    address = server.grpc_inference if service.full_name.startswith(INFERENCE) else server.grpc_management
    with grpc.insecure_channel(address) as channel:
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        ask = make(f"/{service.full_name}/{call.method}", request.SerializeToString, response.FromString)
        try:
            found = ask(request(**call.fields), timeout=PATIENCE_S, metadata=call.metadata)
            answers = list(found) if method.server_streaming else [found]
        except grpc.RpcError as error:
            return error.code().name, first_line(error.details()), []
    return "OK", "", [same(text_of(one)) for one in answers]


def text_of(answer: Any) -> str:
    """Return the one field that an answer has."""
    (value,) = (value for _, value in answer.ListFields())
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def first_line(details: str) -> str:
    """Return what is said to people; TorchServe adds the name of a Java class."""
    return same(details.partition("\n")[0])


def predict(title: str, model: str, version: str = "", method: str = "Predictions", **parts: bytes) -> Call:
    return Call(title, method, {"model_name": model, "model_version": version, "input": parts})


INFERENCE_CALLS = [
    Call("ping", "Ping"),
    predict("a prediction", "acts", data=b"x"),
    predict("a part that is JSON", "acts", data=b'{"a": 1}'),
    predict("a part that is no text", "acts", body=b"\xff"),
    predict("no parts", "acts"),
    predict("a version", "acts", "1.0", data=b"x"),
    predict("an unknown version", "acts", "7.0", data=b"x"),
    predict("an unknown model", "nobody", data=b"x"),
    predict("no model", "", data=b"x"),
    predict("a base handler", "rows", data=b'{"rows": [[1, 2, 3]]}'),
    predict("a base handler that fails", "rows", data=b'{"fail": "inference"}'),
    predict("a streamed answer", "stream", method="StreamPredictions", data=b"x"),
    predict("a stream of an unknown model", "nobody", method="StreamPredictions", data=b"x"),
]
MANAGEMENT_CALLS = [
    Call("the list", "ListModels"),
    Call("a page", "ListModels", {"limit": 2}),
    Call("the next page", "ListModels", {"limit": 2, "next_page_token": 2}),
    Call("a model described", "DescribeModel", {"model_name": "rows"}),
    Call("a model described by its handler", "DescribeModel", {"model_name": "rows", "customized": True}),
    Call("all versions described", "DescribeModel", {"model_name": "service", "model_version": "all"}),
    Call("an unknown model described", "DescribeModel", {"model_name": "nobody"}),
    Call("an unknown version described", "DescribeModel", {"model_name": "acts", "model_version": "9"}),
    Call("registering nothing", "RegisterModel"),
    Call("registering an unknown archive", "RegisterModel", {"url": "nobody.mar"}),
    Call("registering twice", "RegisterModel", {"url": "acts.mar"}),
    Call("registering", "RegisterModel", {"url": "tarred.tar.gz", "model_name": "over_grpc", "synchronous": True}),
    Call("registered", "DescribeModel", {"model_name": "over_grpc"}),
    Call("scaling an unknown model", "ScaleWorker", {"model_name": "nobody", "min_worker": 1}),
    Call("scaling", "ScaleWorker", {"model_name": "over_grpc", "min_worker": 0, "max_worker": 0, "synchronous": True}),
    Call("an unknown default", "SetDefault", {"model_name": "acts", "model_version": "9"}),
    Call("the default it has", "SetDefault", {"model_name": "acts", "model_version": "1.0"}),
    Call("unregistering", "UnregisterModel", {"model_name": "over_grpc"}),
    Call("unregistering an unknown model", "UnregisterModel", {"model_name": "over_grpc"}),
]
