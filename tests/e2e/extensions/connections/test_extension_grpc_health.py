"""The health service and reflection of gRPC, with the stock packages for both."""

from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_scale(repository, "scale", 3.0)
    with ServerProcess(repository) as server:
        yield server


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService"])
def test_a_ready_server_serves(channel: grpc.Channel, service: str) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest(service=service))
    assert next(watch).status == SERVING
    watch.cancel()


def test_an_unknown_service_is_told(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="nope"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = health.Watch(health_pb2.HealthCheckRequest(service="nope"))
    assert next(watch).status == SERVICE_UNKNOWN
    watch.cancel()


def test_a_watcher_sees_changes_and_the_end(server: ServerProcess) -> None:
    with ServerProcess(server.repositories, "--model-control-mode=explicit", "--load-model=scale") as own:
        with grpc.insecure_channel(own.grpc) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == SERVING
            own.process.terminate()  # type: ignore[union-attr]
            assert next(watch).status == NOT_SERVING
            with pytest.raises(grpc.RpcError) as caught:
                next(watch)
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert own.process.wait(PATIENCE_S) == 0  # type: ignore[union-attr]


def test_a_client_without_protos_can_infer(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) == {
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    pool = descriptor_pool.DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    method = service.methods_by_name["ModelInfer"]
    request = message_factory.GetMessageClass(method.input_type)(model_name="scale")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(2)
    call = channel.unary_unary(
        f"/{service.full_name}/{method.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    assert np.frombuffer(call(request).raw_output_contents[0], np.float32).tolist() == [6]


def test_the_first_version_of_reflection_answers_too(channel: grpc.Channel) -> None:
    from serving.frontends.grpc.reflection import message_class

    request = message_class("grpc.reflection.v1.ServerReflectionRequest")
    response = message_class("grpc.reflection.v1.ServerReflectionResponse")
    ask = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    questions = [
        request(file_by_filename="grpc_service.proto"),
        request(file_containing_symbol="grpc.health.v1.HealthCheckRequest"),
        request(file_containing_symbol="inference.ModelInferRequest.InferInputTensor"),
        request(all_extension_numbers_of_type="inference.ModelInferRequest"),
        request(file_by_filename="no.proto"),
        request(file_by_filename="google/protobuf/descriptor.proto"),
        request(),
    ]
    answers = [answer.WhichOneof("message_response") for answer in ask(iter(questions))]
    files, error = "file_descriptor_response", "error_response"
    assert answers == [files, files, files, "all_extension_numbers_response", error, error, error]
