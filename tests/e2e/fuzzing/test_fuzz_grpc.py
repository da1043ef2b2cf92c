"""Anything in any field of every gRPC method: answered in time, never with INTERNAL, and the server goes on serving."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from serving.frontends.grpc.methods import METHODS
from tests.e2e.fuzzing.inputs import KEPT, fuzzed, messages
from tests.serving.frontends.raw_http import samples
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

FUZZ = settings(max_examples=250)
TIMEOUT_S = PATIENCE_S
# What a client's own mistake must never be answered with.
OURS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.DATA_LOSS}
UNARY = sorted(path for path, method in METHODS.items() if method.request is not None)
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fuzzed(tmp_path_factory.mktemp("fuzz")) as server:
        yield server


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel


def good(model: str = KEPT) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model)
    for index in range(2):
        request.inputs.add(name=f"INPUT{index}", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend([1.0] * 4)
    return request


def ask(channel: grpc.Channel, path: str, body: bytes) -> grpc.StatusCode:
    """The status of one call with these bytes as its message."""
    call = channel.unary_unary(path).future(body, timeout=TIMEOUT_S)
    if call.exception() is not None:
        absent = call.details().startswith(
            "Unable to open shared memory region"
        )  # Triton's own code for it is INTERNAL
        assert call.code() not in OURS or absent, (path, call.code(), call.details())
        assert "/tmp/" not in call.details()
    return call.code()


def serves(channel: grpc.Channel) -> bool:
    return ask(channel, INFER, good().SerializeToString()) is grpc.StatusCode.OK


@FUZZ
@given(data=st.data(), path=st.sampled_from(UNARY))
def test_every_method_with_anything_in_any_field(channel: grpc.Channel, data: st.DataObject, path: str) -> None:
    message = data.draw(messages(METHODS[path].request))
    ask(channel, path, message.SerializeToString())


@FUZZ
@given(path=st.sampled_from([*UNARY, INFER]), body=st.binary(max_size=60))
def test_every_method_with_bytes_that_are_no_message(channel: grpc.Channel, path: str, body: bytes) -> None:
    ask(channel, path, body)


@settings(FUZZ, max_examples=400)
@given(changed=messages(pb.ModelInferRequest), raw=st.lists(st.binary(max_size=20), max_size=3), how=st.integers(0, 2))
def test_an_inference_request_with_anything_in_any_field(
    channel: grpc.Channel, changed: pb.ModelInferRequest, raw: list[bytes], how: int
) -> None:
    request = changed
    if how:
        request = good("add_sub")
        request.MergeFrom(changed)
        request.model_name = "add_sub" if how == 1 else changed.model_name
        if how == 1:
            request.raw_input_contents[:] = raw
    ask(channel, INFER, request.SerializeToString())
    assert serves(channel)


@settings(FUZZ, max_examples=80)
@given(requests=st.lists(messages(pb.ModelInferRequest), max_size=4), cut=st.booleans())
def test_a_stream_of_anything_that_may_be_cut_in_the_middle(
    channel: grpc.Channel, requests: list[pb.ModelInferRequest], cut: bool
) -> None:
    bodies = [request.SerializeToString() for request in [good(), *requests, good()]]
    call = channel.stream_stream(STREAM)(iter(bodies), timeout=TIMEOUT_S)
    with suppress(grpc.RpcError):
        answers = iter(call)
        assert not pb.ModelStreamInferResponse.FromString(next(answers)).error_message
        if cut:
            call.cancel()
        for _ in answers:
            pass
    assert call.code() not in OURS, call.details()
    assert serves(channel)


def test_streams_cut_in_the_middle_leave_nothing_behind(server: ServerProcess, channel: grpc.Channel) -> None:
    def cut(calls: int) -> None:
        for _ in range(calls):
            call: Any = channel.stream_stream(STREAM)(iter([good().SerializeToString()] * 20), timeout=TIMEOUT_S)
            next(iter(call))
            call.cancel()

    cut(50)
    before = server.memory()
    cut(300)
    pending = 'nv_inference_pending_request_count{model="kept",version="1"}'
    wait_until(lambda: samples(server)[pending] == 0, what="the end of what was cut")
    wait_until(lambda: server.memory() - before < 20 << 20, what="its memory")
    assert serves(channel)
