"""Requests of unequal shapes in one batch, and the batch inputs that describe them."""

import asyncio

import numpy as np
import onnx.helper
import pytest

from tests import model_factory
from tests.serving.in_process import core, infer

pytestmark = pytest.mark.asyncio

# kind -> what the model sees for requests of shapes [1, 3], [1, 4] and [1, 5]
KINDS = {
    "BATCH_ELEMENT_COUNT": [3, 4, 5],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": [3, 7, 12],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 3, 7, 12],
    "BATCH_ITEM_SHAPE_FLATTEN": [3, 4, 5],
}


def ragged(repository, kind):
    """VALUES = IN as it came; SEEN = the batch input, repeated for each row so that every request receives it."""
    node = onnx.helper.make_node
    nodes = [
        node("Identity", ["IN"], ["VALUES"]),
        node("Shape", ["ROWS"], ["shape"]),
        node("Slice", ["shape", "zero", "one"], ["rows"]),
        node("Unsqueeze", ["INDEX", "zero"], ["row"]),
        node("Concat", ["rows", "one"], ["repeats"], axis=0),
        node("Tile", ["row", "repeats"], ["SEEN"]),
    ]
    content = model_factory.onnx_bytes(
        nodes,
        [("IN", "FP32", ["elements"]), ("INDEX", "FP32", ["n"]), ("ROWS", "FP32", ["batch", 1])],
        [("VALUES", "FP32", ["elements"]), ("SEEN", "FP32", ["batch", "n"])],
        {"zero": np.array([0]), "one": np.array([1])},
    )
    model_factory.write_onnx(repository, "ragged", content)
    (repository / "ragged" / "config.pbtxt").write_text(
        f"""backend: "onnxruntime" max_batch_size: 16 dynamic_batching {{ max_queue_delay_microseconds: 50000 }}
        instance_group {{ kind: KIND_CPU count: 1 }}
        input [{{ name: "IN" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }},
               {{ name: "ROWS" data_type: TYPE_FP32 dims: [1] }}]
        output [{{ name: "VALUES" data_type: TYPE_FP32 dims: [-1] }}, {{ name: "SEEN" data_type: TYPE_FP32 dims: [-1] }}]
        batch_input {{ kind: {kind} target_name: "INDEX" data_type: TYPE_FP32 source_input: "IN" }}
        batch_output {{ target_name: "VALUES" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "IN" }}"""
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_unequal_requests_share_a_batch_and_each_gets_its_own_part_back(tmp_path, kind):
    ragged(tmp_path, kind)
    async with core(tmp_path, load_model=("ragged",)) as server:
        arrays = [np.arange(size, dtype=np.float32).reshape(1, size) + size for size in (3, 4, 5)]
        calls = [infer(server, "ragged", {"IN": a, "ROWS": np.zeros((1, 1), np.float32)}) for a in arrays]
        answers = await asyncio.gather(*calls)
        for array, answer in zip(arrays, answers, strict=True):
            np.testing.assert_array_equal(answer["VALUES"], array)
            assert answer["SEEN"].ravel().tolist() == KINDS[kind]
        assert {row.batch_size for row in server.model_statistics("ragged").model_stats[0].batch_stats} == {3}


async def test_a_request_alone_is_joined_the_same_way(tmp_path):
    ragged(tmp_path, "BATCH_ACCUMULATED_ELEMENT_COUNT")
    async with core(tmp_path, load_model=("ragged",)) as server:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        answer = await infer(server, "ragged", {"IN": array, "ROWS": np.zeros((2, 1), np.float32)})
        np.testing.assert_array_equal(answer["VALUES"], array)
        assert answer["SEEN"].tolist() == [[6.0], [6.0]]
