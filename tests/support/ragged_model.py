"""A model that batches requests of different shapes."""

from pathlib import Path

import numpy as np
import onnx.helper

from tests.support import model_factory

# kind of batch input -> its value for requests of shapes [1, 3], [1, 4] and [1, 5]
KINDS = {
    "BATCH_ELEMENT_COUNT": [3, 4, 5],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": [3, 7, 12],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 3, 7, 12],
    "BATCH_ITEM_SHAPE_FLATTEN": [3, 4, 5],
}


def ragged(
    repository: Path,
    kind: str,
    name: str = "ragged",
    batching: str = "dynamic_batching { max_queue_delay_microseconds: 50000 }",
) -> None:
    """Write the model: VALUES = IN; SEEN = the batch input, repeated for each row so that every request receives it."""
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
    model_factory.write_onnx(repository, name, content)
    (repository / name / "config.pbtxt").write_text(
        f"""backend: "onnxruntime" max_batch_size: 16 {batching}
        instance_group {{ kind: KIND_CPU count: 1 }}
        input [{{ name: "IN" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }},
               {{ name: "ROWS" data_type: TYPE_FP32 dims: [1] }}]
        output [{{ name: "VALUES" data_type: TYPE_FP32 dims: [-1] }}, {{ name: "SEEN" data_type: TYPE_FP32 dims: [-1] }}]
        batch_input {{ kind: {kind} target_name: "INDEX" data_type: TYPE_FP32 source_input: "IN" }}
        batch_output {{ target_name: "VALUES" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "IN" }}"""
    )
