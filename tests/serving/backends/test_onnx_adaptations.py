"""Classifiers as exporters write them: probabilities in maps, labels declared as one row, locales that a machine lacks."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from repository.config.class_names import class_names
from serving.backends.onnxruntime import adaptations
from serving.backends.onnxruntime.onnx_file import read_onnx
from serving.core.errors import ServingError
from serving.extensions.classification import read_labels
from tests.serving.backends.driving import config, infer, instance_of, spec_of
from tests.support import model_factory

ML = helper.make_opsetid("ai.onnx.ml", 1)
AI = helper.make_opsetid("", 9)
X = helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 2])
LABEL = helper.make_tensor_value_info("label", TensorProto.INT64, [None])
MAPS = helper.make_value_info(
    "probabilities",
    helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    ),
)
ROWS = np.array([[1, 0], [0, 1], [3, 1]], np.float32)


def classifier(**labels: list) -> onnx.NodeProto:
    """Two classes, the first where the first number is the larger one."""
    return helper.make_node(
        "LinearClassifier",
        ["X"],
        ["raw", "scores"],
        domain="ai.onnx.ml",
        coefficients=[1.0, 0.0, 0.0, 1.0],
        intercepts=[0.0, 0.0],
        post_transform="SOFTMAX",
        multi_class=0,
        **(labels or {"classlabels_ints": [7, 9]}),
    )


def zip_map(**labels: list) -> onnx.NodeProto:
    given = labels or {"classlabels_int64s": [7, 9]}
    return helper.make_node("ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", **given)


def cast(name: str = "label") -> onnx.NodeProto:
    return helper.make_node("Cast", ["raw"], [name], to=TensorProto.INT64)


def write(root, nodes, outputs, opsets=(AI, ML), initializers=(), inputs=(X,)):
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    content = helper.make_model(graph, opset_imports=list(opsets), ir_version=8).SerializeToString()
    return model_factory.write_onnx(root, "model", content).parent.parent


def softmax(rows: np.ndarray) -> np.ndarray:
    raised = np.exp(rows)
    return raised / raised.sum(1, keepdims=True)


def test_probabilities_in_maps_are_served_as_a_tensor_with_the_names_of_their_classes(tmp_path):
    folder = write(tmp_path, [classifier(), cast(), zip_map()], [LABEL, MAPS])
    spec = spec_of(folder)
    assert [(output.name, list(output.dims)) for output in spec.config.output] == [
        ("label", [1]),
        ("probabilities", [2]),
    ]
    assert spec.config.max_batch_size == 4
    assert class_names(spec.config) == {"probabilities": ["7", "9"]}
    with instance_of(folder) as instance:
        answer = infer(instance, X=ROWS)
    assert answer["label"].ravel().tolist() == [7, 9, 7]
    np.testing.assert_allclose(answer["probabilities"], softmax(ROWS), rtol=1e-6)


def test_names_of_classes_may_be_words_and_a_file_may_import_no_operators_but_those_of_ml(tmp_path):
    words = ["wörd", "b"]
    nodes = [classifier(classlabels_strings=words), zip_map(classlabels_strings=words)]
    folder = write(tmp_path, nodes, [MAPS], opsets=[ML])
    assert class_names(spec_of(folder).config) == {"probabilities": words}
    with instance_of(folder) as instance:
        np.testing.assert_allclose(infer(instance, X=ROWS)["probabilities"], softmax(ROWS), rtol=1e-6)


def test_probabilities_of_a_model_made_with_fp64_are_served_too(tmp_path):
    """skl2onnx exports such a model when it was trained with numpy's default type."""
    nodes = [classifier(), helper.make_node("Cast", ["scores"], ["exact"], to=TensorProto.DOUBLE)]
    maps = zip_map()
    maps.input[0] = "exact"
    folder = write(tmp_path, [*nodes, maps], [MAPS])
    with instance_of(folder) as instance:
        answer = infer(instance, X=ROWS)["probabilities"]
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, softmax(ROWS), rtol=1e-6)


def test_numbers_of_classes_are_read_packed_and_one_by_one(tmp_path):
    folder = write(tmp_path, [classifier(), zip_map(classlabels_int64s=[-2, 5])], [MAPS])
    path = folder / "1" / "model.onnx"
    content = path.read_bytes()
    minus_two = b"\xfe" + b"\xff" * 8 + b"\x01"
    one_by_one, packed = b"\x40" + minus_two + b"\x40\x05", b"\x42\x0b" + minus_two + b"\x05"
    assert content.count(one_by_one) == 1
    assert read_onnx(path).adaptations.class_names == {"probabilities": ["-2", "5"]}
    path.write_bytes(content.replace(one_by_one, packed))
    assert read_onnx(path).adaptations.class_names == {"probabilities": ["-2", "5"]}


def test_weights_beside_a_file_with_maps_are_still_found(tmp_path):
    weight = numpy_helper.from_array(np.array([[2, 0], [0, 2]], np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    nodes = [helper.make_node("MatMul", ["X", "w"], ["scores"]), zip_map()]
    folder = write(tmp_path, nodes, [MAPS], initializers=[weight])
    (folder / "1" / "weights.bin").write_bytes(np.array([[2, 0], [0, 2]], np.float32).tobytes())
    with instance_of(folder) as instance:
        assert infer(instance, X=ROWS)["probabilities"].tolist() == (2 * ROWS).tolist()


def test_a_label_that_is_declared_as_one_row_has_one_for_each(tmp_path):
    one = helper.make_tensor_value_info("label", TensorProto.INT64, [1])
    folder = write(tmp_path, [classifier(), cast(), zip_map()], [one, MAPS])
    assert spec_of(folder).config.max_batch_size == 4
    with instance_of(folder) as instance:
        assert infer(instance, X=ROWS)["label"].ravel().tolist() == [7, 9, 7]


def test_an_output_of_one_row_that_is_no_label_stays_one(tmp_path):
    one = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    nodes = [
        helper.make_node("ReduceSum", ["X"], ["sum"], keepdims=0),
        helper.make_node("Unsqueeze", ["sum"], ["y"], axes=[0]),
    ]
    assert spec_of(write(tmp_path, nodes, [one])).config.max_batch_size == 0


def test_a_sequence_of_tensors_is_left_out_and_other_outputs_are_served(tmp_path):
    sequence = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2])
    nodes = [helper.make_node("Identity", ["X"], ["y"]), helper.make_node("SequenceConstruct", ["X"], ["parts"])]
    folder = write(tmp_path, nodes, [y, sequence], opsets=[helper.make_opsetid("", 17)])
    assert [output.name for output in spec_of(folder).config.output] == ["y"]
    assert read_onnx(folder / "1" / "model.onnx").left_out == ["parts"]


def test_a_model_whose_outputs_are_all_sequences_is_refused_with_the_remedy(tmp_path):
    sequence = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    nodes = [helper.make_node("SequenceConstruct", ["X"], ["parts"])]
    with pytest.raises(ServingError, match=r"'parts' is a sequence: .* tensors in it as outputs"):
        spec_of(write(tmp_path, nodes, [sequence], opsets=[helper.make_opsetid("", 17)]))


def lower_casing(**attributes: str) -> onnx.NodeProto:
    return helper.make_node("StringNormalizer", ["text"], ["out"], case_change_action="LOWER", **attributes)


@pytest.mark.parametrize("attributes", [{}, {"locale": "xx_YY.UTF-8"}], ids=["by default", "by name"])
def test_text_is_lowered_where_the_machine_lacks_the_locale(tmp_path, monkeypatch, attributes):
    monkeypatch.setattr(adaptations, "_has_locale", lambda name: name == "C.UTF-8")
    text, out = (helper.make_tensor_value_info(name, TensorProto.STRING, [None]) for name in ("text", "out"))
    folder = write(tmp_path, [lower_casing(**attributes)], [out], opsets=[helper.make_opsetid("", 17)], inputs=[text])
    with instance_of(folder, config('name: "model" max_batch_size: 0')) as instance:
        answer = infer(instance, text=np.array([b"GOOD", "ÄÖ".encode()], np.object_))
    assert [word.decode() for word in answer["out"].ravel()] == ["good", "äö"]


def test_names_given_by_a_person_stay_and_label_files_come_first(tmp_path):
    folder = write(tmp_path, [classifier(), cast(), zip_map()], [LABEL, MAPS])
    given = config('name: "model" parameters { key: "slipway.class_names" value { string_value: "{}" } }')
    given.parameters["slipway.class_names"].string_value = json.dumps({"probabilities": ["no", "yes"]})
    completed = spec_of(folder, given).config
    assert read_labels(completed, folder) == {"probabilities": ["no", "yes"]}
    next(output for output in completed.output if output.name == "probabilities").label_filename = "labels.txt"
    (folder / "labels.txt").write_text("never\nalways\n")
    assert read_labels(completed, folder) == {"probabilities": ["never", "always"]}
