"""TorchServe's gRPC service for inference, and KServe's on the same port, as stock gRPC clients see them."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as tritonclient
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2 as kserve

from serving.core.errors import BackendFailed, Code
from serving.torchserve.apis.grpc_inference import OPEN_INFERENCE, call_error
from serving.torchserve.apis.messages import (
    INFERENCE,
    Empty,
    PredictionResponse,
    PredictionsRequest,
    TorchServeHealthResponse,
)
from tests.serving.torchserve.apis.apis import Apis
from tests.support.serving_process import PATIENCE_S

SERVICE = f"/{INFERENCE}.InferenceAPIsService"


@pytest.fixture
def channel(torchserve: Apis) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(torchserve.grpc) as channel:
        yield channel


def call(channel: grpc.Channel, method: str, response: Any = PredictionResponse) -> Any:
    """A method of one request, which returns its response, or an iterator of them."""
    make = channel.unary_stream if method == "StreamPredictions" else channel.unary_unary
    path = f"{SERVICE}/{method}"
    called = make(
        path, request_serializer=lambda one: one.SerializeToString(), response_deserializer=response.FromString
    )
    return lambda request: called(request, timeout=PATIENCE_S)


def asked(data: bytes = b"abc", model: str = "acts", version: str = "", **fields: Any) -> Any:
    return PredictionsRequest(model_name=model, model_version=version, input={"data": data}, **fields)


def test_ping_tells_the_health(channel: grpc.Channel) -> None:
    answer = call(channel, "Ping", TorchServeHealthResponse)(Empty())
    assert answer.health == '{\n  "status": "Healthy"\n}'


def test_parts_have_no_type_and_their_order_and_a_version_may_be_named(channel: grpc.Channel) -> None:
    for version in ("", "1.0-beta"):
        answer = json.loads(call(channel, "Predictions")(asked(version=version)).prediction)
        assert answer["parts"] == [["data", None, None, "abc"]]
    entry = b"\x1a\x0a\x0a\x05part%c\x12\x01x"  # a part and its name, on the wire
    sent = PredictionsRequest(model_name="acts").SerializeToString() + b"".join(entry % name for name in b"zbya")
    many = channel.unary_unary(f"{SERVICE}/Predictions")(sent, timeout=PATIENCE_S)
    parts = json.loads(PredictionResponse.FromString(many).prediction)["parts"]
    assert [name for name, *_ in parts] == ["partz", "partb", "party", "parta"]
    none = call(channel, "Predictions")(PredictionsRequest(model_name="acts"))
    assert json.loads(none.prediction)["parts"] == []


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (
            asked(model="nobody"),
            "INTERNAL",
            "Model not found: nobody\norg.pytorch.serve.archive.model.ModelNotFoundException",
        ),
        (
            asked(version="7.0"),
            "INTERNAL",
            "Model version: 7.0 does not exist for model: acts\norg.pytorch.serve.archive.",
        ),
        (asked(model=""), "INTERNAL", "Parameter model_name is required."),
        (asked(b"raise"), "INTERNAL", "oh no\norg.pytorch.serve.http.InternalServerException"),
        (asked(b"size 2000000"), "INTERNAL", "the answer has 2000000 bytes"),
    ],
)
def test_errors_name_torchserves_class(channel: grpc.Channel, request_: Any, code: str, message: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, "Predictions")(request_)
    assert caught.value.code().name == code
    assert caught.value.details().startswith(message)


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "NOT_FOUND"), (409, "ABORTED"), (416, "OUT_OF_RANGE"), (418, "FAILED_PRECONDITION"), (507, "INTERNAL")],
)
def test_the_status_of_a_handlers_error_is_gRPCs_for_its_code(status: int, code: str) -> None:
    error = call_error(BackendFailed(Code.INTERNAL, "of the handler", status, "late"))
    assert (error.status.name, error.message) == (code, "late\norg.pytorch.serve.http.InternalServerException")


def test_reflection_describes_the_services_of_the_port(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    service = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
    assert {service, "inference.GRPCInferenceService"} <= set(database.get_services())
    methods = DescriptorPool(database).FindServiceByName(service).methods_by_name
    assert methods["StreamPredictions2"].input_type.fields_by_name["sequence_id"].number > 0


def test_pieces_are_messages_of_a_stream_and_one_answer_otherwise(channel: grpc.Channel) -> None:
    pieces = asked(b"a,b,c", "streams")
    assert [one.prediction for one in call(channel, "StreamPredictions")(pieces)] == [b"a", b"b", b"c"]
    assert call(channel, "Predictions")(pieces).prediction == b"abc"
    assert [one.prediction for one in call(channel, "StreamPredictions")(asked(b"raw"))] == [b"done"]


def test_a_stream_of_requests_is_answered_in_its_order_with_errors_among_the_answers(channel: grpc.Channel) -> None:
    requests = [
        asked(b"raw", sequence_id="s"),
        asked(b"a,b", "streams", sequence_id="s"),
        asked(model="nobody", sequence_id="s"),
        asked(b"raw"),
        PredictionsRequest(model_name="acts", input={"data": b"raw", "ts_request_sequence_start": b"true"}),
    ]
    stream = channel.stream_stream(
        f"{SERVICE}/StreamPredictions2",
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=PredictionResponse.FromString,
    )
    answers = list(stream(iter(requests), timeout=PATIENCE_S))
    assert [one.prediction for one in answers[:3]] == [b"done", b"a", b"b"]
    assert [one.sequence_id for one in answers[:4]] == ["s"] * 4
    assert answers[3].status.message == "Model not found: nobody"
    assert answers[4].status.message == "Parameter sequenceId is required."
    assert answers[5].sequence_id.startswith("ts-seq-")


def test_a_deadline_ends_the_call_and_its_request(torchserve: Apis, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"{SERVICE}/Predictions")(asked(b"sleep 0.5", "busy").SerializeToString(), timeout=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_malformed_message_is_refused(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"{SERVICE}/Predictions")(b"\xff\xff", timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_kserves_service_answers_under_both_of_its_names(torchserve: Apis, channel: grpc.Channel) -> None:
    ready = channel.unary_unary(f"/{OPEN_INFERENCE}/ServerReady")(b"", timeout=PATIENCE_S)
    assert kserve.ServerReadyResponse.FromString(ready).ready
    with tritonclient.InferenceServerClient(torchserve.grpc) as client:
        tensor = tritonclient.InferInput("data", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[b"raw"]], object))
        assert client.infer("acts", [tensor]).as_numpy("data").tolist() == [[b"done"]]
