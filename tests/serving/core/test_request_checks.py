"""What a request must look like before it is queued, and the shapes between protocol and model."""

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.errors import Code, ServingError
from serving.core.response import InferenceResponse
from serving.core.tensor_check import TensorCheck
from tests.serving.requests import in_flight


def _check(inputs="", outputs='output { name: "Y" data_type: TYPE_FP32 dims: 1 }', max_batch_size=4):
    text = f'name: "m" max_batch_size: {max_batch_size} {inputs} {outputs}'
    return TensorCheck(text_format.Parse(text, ModelConfig()))


def _request(requested=(), **inputs):
    return in_flight("m", inputs, lambda response, final: None, requested=requested)


TWO = """input { name: "A" data_type: TYPE_FP32 dims: [2, -1] }
         input { name: "B" data_type: TYPE_STRING dims: [1] optional: true }"""
A = np.zeros((3, 2, 5), np.float32)
B = np.full((3, 1), b"x", dtype=object)


def test_a_good_request_gets_its_batch_size():
    request = _request(A=A, B=B)
    _check(TWO).request(request)
    assert request.batch_size == 3


def test_only_requests_of_equal_shapes_and_inputs_share_a_key():
    check = _check(TWO)
    requests = [_request(A=A), _request(A=A[:1]), _request(A=A[:, :, :2]), _request(A=A, B=B)]
    for request in requests:
        check.request(request)
    keys = [request.batch_key for request in requests]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            _request(B=B),
            r"between 1 and 2 but got 1 inputs for model 'm'. Got input\(s\) \['B'\], but missing required input\(s\) \['A'\]",
        ),
        (_request(A=A, C=A), "unexpected inference input 'C' for model 'm', which has A, B"),
        (_request(C=A), "unexpected inference input 'C' for model 'm', which needs 'A' in its place"),
        (
            _request(C=A, D=A),
            "unexpected inference input 'C' for model 'm', which needs 'A' in place of 'C' and 'D'$",
        ),
        (_request(A=A, **{"C" * 300: A}), f"unexpected inference input '{'C' * 200}' for model 'm'"),
        (_request(A=A.astype(np.float64)), "has data-type FP64, but the model expects FP32"),
        (_request(A=A[:, 0]), r"unexpected shape for input 'A' for model 'm'. Expected \[-1, 2, -1\], got \[3, 5\]"),
        (_request(A=np.float32(1).reshape(())), r"got \[\]"),
        (_request(A=np.zeros((3, 3, 5), np.float32)), r"got \[3, 3, 5\]"),
        (_request(A=np.zeros((5, 2, 1), np.float32)), "batch-size must be from 1 to 4 for 'm', got 5"),
        (_request(A=np.zeros((0, 2, 1), np.float32)), "batch-size must be from 1 to 4 for 'm', got 0"),
        (_request(A=A, B=B[:2]), "input 'B' has batch size 2, but another input of the request has 3"),
        (_request(A=A, requested=("Z",)), "unexpected inference output 'Z' for model 'm', which has Y"),
    ],
)
def test_a_wrong_request_is_refused_in_one_sentence(request_, message):
    with pytest.raises(ServingError, match=message) as caught:
        _check(TWO).request(request_)
    assert caught.value.code is Code.INVALID_ARG


def test_without_batching_there_is_no_batch_dimension():
    check = _check('input { name: "A" data_type: TYPE_INT8 dims: [2, 2] }', max_batch_size=0)
    request = _request(A=np.zeros((2, 2), np.int8))
    check.request(request)
    assert request.batch_size == 1
    with pytest.raises(ServingError, match=r"Expected \[2, 2\], got \[1, 2, 2\]"):
        check.request(_request(A=np.zeros((1, 2, 2), np.int8)))


def test_reshape_gives_the_model_its_shapes_and_the_client_its_own():
    check = _check(
        'input { name: "A" data_type: TYPE_FP32 dims: [-1, 2] reshape { shape: [2, 1, -1] } }',
        'output { name: "Y" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } }',
    )
    request = _request(A=np.zeros((3, 5, 2), np.float32))
    check.request(request)
    assert request.inputs["A"].shape == (3, 2, 1, 5)
    answer = check.response(InferenceResponse("m", 1, "", {"Y": np.zeros(3, np.float32)}))
    assert answer.outputs["Y"].shape == (3, 1)


def test_a_request_with_a_shape_tensor_shares_no_batch():
    check = _check(
        'input { name: "A" data_type: TYPE_FP32 dims: [-1] } '
        'input { name: "S" data_type: TYPE_INT32 dims: [2] is_shape_tensor: true }'
    )
    requests = [_request(A=np.zeros((2, 3), np.float32), S=np.array([2, 3], np.int32)) for _ in range(2)]
    for request in requests:
        check.request(request)
        assert request.batch_size == 2
    assert requests[0].batch_key != requests[1].batch_key


def test_a_scalar_input_is_a_reshape_to_nothing():
    check = _check('input { name: "A" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } }')
    request = _request(A=np.zeros((3, 1), np.float32))
    check.request(request)
    assert request.inputs["A"].shape == (3,)
