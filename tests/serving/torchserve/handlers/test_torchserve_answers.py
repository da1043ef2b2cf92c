"""The bytes of an answer are those that TorchServe sends, by either JSON encoder."""

import io
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.torchserve.handlers.answers import as_bytes
from serving.torchserve.handlers.failures import InvalidAnswer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES) | st.dictionaries(st.text(), VALUES))
def test_json_is_written_as_python_writes_it(value: object) -> None:
    assert as_bytes(value) == json.dumps(value, indent=2).encode()


def test_a_tensor_is_written_by_torch_save() -> None:
    tensor = torch.arange(3.0)
    assert torch.equal(torch.load(io.BytesIO(as_bytes(tensor)), weights_only=True), tensor)


def test_values_without_json_are_refused_as_by_torchserve() -> None:
    with pytest.raises(InvalidAnswer) as raised:
        as_bytes({"a": {1, 2}})
    assert raised.value.status_and_reason == (503, "Unsupported model output data type.")
