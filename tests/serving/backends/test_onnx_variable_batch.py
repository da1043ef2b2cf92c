"""A model that was exported for one row takes any number where slipway.variable_batch asks for it and it bears that."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from repository.config import model_config, reload_rule
from repository.config.validation import validate
from serving.backends.onnxruntime.batch_trial import answers_rows_alike
from serving.backends.onnxruntime.onnx_file import read_onnx
from serving.core.errors import ServingError
from serving.inspection.report import inspect
from tests.serving.backends.driving import config, infer, instance_of, spec_of
from tests.support import model_factory

ASKED = 'name: "model" parameters { key: "slipway.variable_batch" value { string_value: "true" } }'
WEIGHTS = np.arange(8, dtype=np.float32).reshape(4, 2)


def write(root, *nodes, shape=(1, 4), out=(1, 2), elem=TensorProto.FLOAT, constants=()):
    x = helper.make_tensor_value_info("x", elem, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, out)
    between = helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 2])
    weights = [numpy_helper.from_array(WEIGHTS, "w"), *constants]
    graph = helper.make_graph(list(nodes), "graph", [x], [y], weights, value_info=[between])
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)], producer_name="pytorch")
    return model_factory.write_onnx(root, "model", model.SerializeToString()).parent.parent


def dense(root):
    """y = relu(x w), rows apart."""
    return write(root, helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"]))


def mixing(root):
    """y: a softmax down the rows."""
    return write(root, helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"], axis=0))


def reshaping(root):
    """y = reshape(x w) to the one row that it was exported for."""
    one_row = numpy_helper.from_array(np.array([1, 2], np.int64), "one_row")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Reshape", ["h", "one_row"], ["y"])]
    return write(root, *nodes, constants=[one_row])


def alike(folder) -> bool:
    path = folder / "1" / "model.onnx"
    return answers_rows_alike(read_onnx(path), path)


def test_it_batches_and_answers_each_row(tmp_path):
    folder = dense(tmp_path)
    spec = spec_of(folder, config(ASKED))
    assert (spec.config.max_batch_size, list(spec.config.input[0].dims), list(spec.config.output[0].dims)) == (
        4,
        [4],
        [2],
    )
    rows = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    with instance_of(folder, config(ASKED)) as instance:
        np.testing.assert_allclose(infer(instance, x=rows)["y"], np.maximum(rows @ WEIGHTS, 0), rtol=1e-5)


def test_without_it_the_file_is_taken_at_its_word(tmp_path):
    folder = dense(tmp_path)
    assert spec_of(folder).config.max_batch_size == 0
    with pytest.raises(ServingError, match="cannot batch: expected a variable first dimension"):
        spec_of(folder, config('name: "model" max_batch_size: 8'))


def test_a_model_is_tried_before_it_is_offered(tmp_path):
    assert alike(dense(tmp_path / "dense"))
    assert not alike(mixing(tmp_path / "mixing"))
    assert not alike(reshaping(tmp_path / "reshaping"))


def test_the_inspection_offers_it_only_to_a_model_that_bears_it(tmp_path):
    offered = inspect(dense(tmp_path / "dense") / "1", "model")
    assert "A trial with several rows" in offered["problems"][0]["message"]
    assert model_config.parse(offered["batching_config"]).max_batch_size == 4
    assert model_config.parse(offered["config"]).max_batch_size == 0
    refused = inspect(mixing(tmp_path / "mixing") / "1", "model")
    assert refused["batching_config"] == ""
    assert "Export it with a variable first dimension" in refused["problems"][0]["message"]


def test_a_configuration_that_asks_for_it_gets_no_note_about_it(tmp_path):
    folder = dense(tmp_path)
    (tmp_path / "config.pbtxt").write_text(ASKED)
    report = inspect(folder / "1", "model", tmp_path / "config.pbtxt")
    assert report["problems"] == []
    assert report["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]


def test_texts_and_scalars_are_not_tried(tmp_path):
    words = write(
        tmp_path,
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["h"], ["y"]),
        shape=(1, 2),
        elem=TensorProto.STRING,
    )
    assert not alike(words)


def test_it_is_true_or_false_for_onnx_alone_and_makes_the_server_build_anew(tmp_path):
    problems = {
        '"yes"': "expected true or false",
        "true": "only ONNX models can be read with a variable batch, not those of backend 'pytorch'",
    }
    for value, expected in problems.items():
        given = config('name: "m" backend: "pytorch"')
        given.parameters["slipway.variable_batch"].string_value = value
        assert [expected in str(problem) for problem in validate(given, name="m", complete=False)].count(True) == 1
    assert reload_rule.effect(config('name: "model"'), config(ASKED)) == "reload"
