"""What an ONNX file may hold: versions, external data, strings, scalars, optional inputs."""

import contextlib
import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc.model_config_pb2 import TYPE_FP32

from serving.backends.onnxruntime.onnx_file import read_onnx
from serving.core.errors import Code, ServingError
from tests.serving.backends.driving import config, infer, instance_of, loaded, request, spec_of
from tests.serving.backends.driving import execute as execute_requests
from tests.support import model_factory


def write(root, model: onnx.ModelProto, name: str = "model"):
    return model_factory.write_onnx(root, name, model.SerializeToString()).parent.parent


def identity(opset: int = 17, ir: int = 9, elem: int = TensorProto.FLOAT) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", elem, ["n", 2])],
        [helper.make_tensor_value_info("y", elem, ["n", 2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


# -- versions ----------------------------------------------------------------------------------------------------------
def test_an_opset_that_the_runtime_cannot_run_is_refused_with_both_versions(tmp_path):
    folder = write(tmp_path, identity(opset=9999))
    with (
        pytest.raises(ServingError, match=r"needs opset 9999 of ai.onnx, but .* runs at most opset \d+$"),
        loaded(folder),
    ):
        pass


def test_an_ir_version_that_the_runtime_cannot_read_is_refused_with_both_versions(tmp_path):
    folder = write(tmp_path, identity(ir=9999))
    with pytest.raises(ServingError, match=r"has ONNX IR version 9999, but .* reads at most \d+$"), loaded(folder):
        pass


def test_an_opset_of_another_domain_is_checked_too(tmp_path):
    model = identity()
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 777))
    with pytest.raises(ServingError, match=r"needs opset 777 of ai\.onnx\.ml"), loaded(write(tmp_path, model)):
        pass


def test_a_type_that_the_protocol_cannot_carry_is_named(tmp_path):
    with pytest.raises(ServingError, match="input 'x' is a tensor of ONNX type COMPLEX64"):
        spec_of(write(tmp_path, identity(elem=TensorProto.COMPLEX64)))


def test_an_operator_that_does_not_exist_is_named_without_paths(tmp_path):
    model = identity()
    model.graph.node[0].op_type = "Unheard"
    with pytest.raises(ServingError, match="Unheard") as refused, instance_of(write(tmp_path, model)):
        pass
    assert refused.value.code is Code.INVALID_ARG
    assert str(tmp_path) not in refused.value.message


def test_an_operator_that_the_cpu_lacks_for_a_datatype_is_named_with_advice(tmp_path):
    weights = numpy_helper.from_array(np.zeros((2, 2), np.float32), "f")
    nodes = [
        helper.make_node("Cast", ["f"], ["w"], to=TensorProto.BFLOAT16),
        helper.make_node("Gemm", ["x", "w"], ["y"], name="dense"),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n", 2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "graph", tensors[:1], tensors[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with (
        pytest.raises(
            ServingError, match=r"cannot run operator Gemm \(node 'dense'\) on the CPU .* export the model in FP32"
        ),
        instance_of(write(tmp_path, model)),
    ):
        pass


# -- external data -----------------------------------------------------------------------------------------------------
def external_model(location: str, length: int = 8, where: str = "initializer") -> onnx.ModelProto:
    """y = x + w, with w [2] in another file; `where` hides w in a Constant or in a branch of an If."""
    weight = TensorProto(name="w", dims=[2], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        weight.external_data.add(key=key, value=value)
    add = helper.make_node("Add", ["x", "w"], ["y"])
    constant = helper.make_node("Constant", [], ["w"], value=weight)
    nodes, initializers = [add], []
    if where == "initializer":
        initializers = [weight]
    elif where == "constant":
        nodes = [constant, add]
    else:
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
        branch = helper.make_graph([constant, add], "branch", [], [out])
        yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
        nodes = [yes, helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_external_data_in_the_version_folder_is_served(tmp_path):
    folder = write(tmp_path, external_model("weights.bin"))
    (folder / "1" / "weights.bin").write_bytes(np.array([1, 2], np.float32).tobytes())
    with instance_of(folder) as instance:
        assert infer(instance, x=np.zeros((1, 2), np.float32))["y"].tolist() == [[1, 2]]


def test_a_model_may_be_a_folder_with_its_external_data(tmp_path):
    inner = tmp_path / "model" / "1" / "model.onnx"
    inner.mkdir(parents=True)
    (inner / "model.onnx").write_bytes(external_model("weights.bin").SerializeToString())
    (inner / "weights.bin").write_bytes(np.array([3, 4], np.float32).tobytes())
    with instance_of(tmp_path / "model") as instance:
        assert infer(instance, x=np.zeros((1, 2), np.float32))["y"].tolist() == [[3, 4]]


@pytest.mark.parametrize("where", ["initializer", "constant", "branch"])
@pytest.mark.parametrize(
    "location",
    ["/etc/passwd", "../secret.bin", "sub/../../secret.bin", "..\\secret.bin", "*/_ORT_MEM_ADDR_/*", "."],
)
def test_external_data_outside_the_version_folder_is_refused_before_loading(location, where, tmp_path):
    folder = write(tmp_path, external_model(location, where=where))
    (folder / "secret.bin").write_bytes(b"12345678")
    with pytest.raises(ServingError, match="version folder") as refused, loaded(folder):
        pass
    assert refused.value.code is Code.INVALID_ARG
    assert "/etc" not in refused.value.message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 8\n", "run `git lfs pull`"),
        (b"<!DOCTYPE html><html>", "a web page that was saved in place of the file"),
    ],
)
def test_a_page_downloaded_in_place_of_weights_is_not_served(content, said, tmp_path):
    folder = write(tmp_path, external_model("weights.bin"))
    (folder / "1" / "weights.bin").write_bytes(content)
    with pytest.raises(ServingError, match=said), loaded(folder):
        pass


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_external_data_behind_a_symbolic_link_is_refused(linked, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "weights.bin").write_bytes(b"12345678")
    folder = write(tmp_path, external_model("weights.bin" if linked == "file" else "sub/weights.bin"))
    if linked == "file":
        os.symlink(tmp_path / "outside" / "weights.bin", folder / "1" / "weights.bin")
    else:
        os.symlink(tmp_path / "outside", folder / "1" / "sub")
    with pytest.raises(ServingError, match="is a symbolic link"), loaded(folder):
        pass


def test_missing_and_short_external_data_have_different_errors(tmp_path):
    folder = write(tmp_path, external_model("weights.bin"))
    with pytest.raises(ServingError, match=r"'weights.bin' is missing"), loaded(folder):
        pass
    (folder / "1" / "weights.bin").write_bytes(b"1234")
    with pytest.raises(ServingError, match="has 4 bytes, but the model expects 8 bytes at 0"), loaded(folder):
        pass


# -- tensors -----------------------------------------------------------------------------------------------------------
def test_strings_are_text_and_bytes_that_are_none_are_refused(tmp_path):
    folder = model_factory.onnx_identity(tmp_path, datatype="BYTES", dims=[2])
    with instance_of(folder) as instance:
        texts = np.array([["ä".encode(), b""], [b"with\x00zero", b"x" * 100]], np.object_)
        assert infer(instance, INPUT0=texts)["OUTPUT0"].tolist() == texts.tolist()
        with pytest.raises(ServingError, match="input 'INPUT0' has an element that is not UTF-8") as refused:
            infer(instance, INPUT0=np.array([[b"\xff", b""]], np.object_))
        assert refused.value.code is Code.INVALID_ARG


def test_a_scalar_is_one_element_in_the_configuration(tmp_path):
    content = model_factory.onnx_bytes(
        [helper.make_node("Identity", ["x"], ["y"])], [("x", "FP32", [])], [("y", "FP32", [])]
    )
    model_factory.write_onnx(tmp_path, "scalar", content)
    spec = spec_of(tmp_path / "scalar")
    assert list(spec.config.input[0].dims) == [1]
    with instance_of(tmp_path / "scalar") as instance:
        (answer,) = execute_requests(instance, request({"x": np.array([5], np.float32)}, batched=False))
        assert answer["y"].tolist() == [5]


SCALARS = """backend: "onnxruntime" input { name: "x" data_type: TYPE_FP32 dims: %s }
    output { name: "y" data_type: TYPE_FP32 dims: %s }"""


def scalar(shape: list[int] | None) -> onnx.ModelProto:
    """Identity of one element, whose shape the file may leave out."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "graph", tensors[:1], tensors[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("shape", [[], None], ids=["a scalar", "no shape in the file"])
def test_one_element_may_have_as_many_dims_as_the_configuration_says(tmp_path, shape):
    folder = write(tmp_path, scalar(shape))
    for dims in ("[1]", "[1, 1]"):
        model_factory.write_config(folder, SCALARS % (dims, dims))
        with instance_of(folder) as instance:
            array = np.full([1] * len(dims.split()), 5, np.float32)
            (answer,) = execute_requests(instance, request({"x": array}, batched=False))
            assert (answer["y"].shape, answer["y"].tolist()) == (array.shape, array.tolist())
    for dims in ("[2]", "[2, -1]"):
        model_factory.write_config(folder, SCALARS % (dims, dims))
        with pytest.raises(ServingError, match=r"\[2"):
            spec_of(folder)


def test_dims_of_any_size_are_taken_where_the_file_says_no_shape(tmp_path):
    """Slipway's own: Triton takes such a tensor for a scalar."""
    folder = write(tmp_path, scalar(None))
    assert [list(entry.dims) for entry in (*spec_of(folder).config.input, *spec_of(folder).config.output)] == [[1], [1]]
    model_factory.write_config(folder, SCALARS % ("[-1, -1]", "[-1, -1]"))
    with instance_of(folder) as instance:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        (answer,) = execute_requests(instance, request({"x": array}, batched=False))
        assert answer["y"].tolist() == array.tolist()


def test_an_output_of_no_known_rank_comes_in_the_shape_that_it_has(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [6]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, ["n"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    folder = write(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    with instance_of(folder) as instance:
        assert list(instance.spec.config.output[0].dims) == [1], "as Triton completes it"
        for shape in ([2, 3], [6], [1, 1, 6]):
            inputs = {"x": np.ones(6, np.float32), "shape": np.array(shape)}
            (answer,) = execute_requests(instance, request(inputs, batched=False))
            assert list(answer["y"].shape) == shape


def test_an_output_without_a_type_in_the_file_has_the_one_that_is_inferred(tmp_path):
    model = identity()
    model.graph.output[0].ClearField("type")
    completed = spec_of(write(tmp_path, model)).config
    assert [(entry.data_type, list(entry.dims)) for entry in completed.output] == [(TYPE_FP32, [2])]
    with instance_of(tmp_path / "model") as instance:
        assert infer(instance, x=np.ones((1, 2), np.float32))["y"].tolist() == [[1, 1]]


def test_inputs_that_may_be_left_out_do_not_keep_a_model_from_batching(tmp_path):
    content = model_factory.onnx_bytes(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", "FP32", ["n", 1]), ("w", "FP32", [1])],
        [("y", "FP32", ["n", 1])],
        {"w": np.array([10], np.float32)},
    )
    model_factory.write_onnx(tmp_path, "optional", content)
    assert spec_of(tmp_path / "optional").config.max_batch_size == 4


def test_a_model_without_inputs_does_not_batch(tmp_path):
    content = model_factory.onnx_bytes(
        [helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(np.ones((3, 2), np.float32)))],
        [],
        [("y", "FP32", ["n", 2])],
    )
    model_factory.write_onnx(tmp_path, "constant", content)
    with instance_of(tmp_path / "constant") as instance:
        assert (instance.spec.config.max_batch_size, list(instance.spec.config.output[0].dims)) == (0, [-1, 2])
        assert execute_requests(instance, request({}, batched=False))[0]["y"].shape == (3, 2)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        ('input { name: "x" dims: [-1] }', r"input 'x' has shape \[-1, -1\], .* expects \[-1, 2\]"),
        ('output { name: "y" dims: [-1] }', r"output 'y' has shape \[-1, -1\], .* expects \[-1, 2\]"),
        ('output { name: "any" dims: [2] }', r"output 'any' has shape \[-1, 2\], .* expects \[-1, -1\]"),
    ],
    ids=["a looser input", "a looser output", "a more precise output"],
)
def test_dims_agree_with_the_file_as_triton_wants_it(tmp_path, tensor, expected):
    """An input alone may be said more precisely than the file says it."""
    content = model_factory.onnx_bytes(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["free"], ["any"])],
        [("x", "FP32", ["n", 2]), ("free", "FP32", ["n", "m"])],
        [("y", "FP32", ["n", 2]), ("any", "FP32", ["n", "m"])],
    )
    folder = model_factory.write_onnx(tmp_path, "exact", content).parent.parent
    model_factory.write_config(
        folder, 'max_batch_size: 8 input { name: "free" dims: [7] } input { name: "x" dims: [2] }'
    )
    assert [list(entry.dims) for entry in spec_of(folder).config.input] == [[7], [2]]
    model_factory.write_config(folder, f"max_batch_size: 8 {tensor}")
    with pytest.raises(ServingError, match=expected):
        spec_of(folder)


def test_a_scalar_for_each_row_is_reshaped(tmp_path):
    content = model_factory.onnx_bytes(
        [helper.make_node("Identity", ["x"], ["y"])], [("x", "FP32", ["n"])], [("y", "FP32", ["n"])]
    )
    model_factory.write_onnx(tmp_path, "rows", content)
    entry = spec_of(tmp_path / "rows").config.input[0]
    assert list(entry.dims) == [1]
    assert entry.HasField("reshape")
    assert not entry.reshape.shape


def test_an_initialiser_that_is_also_an_input_may_be_left_out_or_given(tmp_path):
    content = model_factory.onnx_bytes(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", "FP32", ["n", 1]), ("w", "FP32", [1])],
        [("y", "FP32", ["n", 1])],
        {"w": np.array([10], np.float32)},
    )
    model_factory.write_onnx(tmp_path, "optional", content)
    with instance_of(tmp_path / "optional") as instance:
        assert [entry.name for entry in instance.spec.config.input] == ["x"]
        assert infer(instance, x=np.ones((1, 1), np.float32))["y"].tolist() == [[11]]


def test_an_output_that_is_no_tensor_is_left_out(tmp_path):
    content = model_factory.onnx_bytes(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("SequenceConstruct", ["x"], ["s"])],
        [("x", "FP32", ["n", 1])],
        [("y", "FP32", ["n", 1])],
    )
    model = onnx.load_from_string(content)
    model.graph.output.append(
        helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None)))
    )
    folder = write(tmp_path, model)
    assert [entry.name for entry in spec_of(folder).config.output] == ["y"]
    with instance_of(folder) as instance:
        assert list(infer(instance, x=np.ones((1, 1), np.float32))) == ["y"]


def test_a_file_of_many_weights_is_described_without_reading_them(tmp_path):
    path = tmp_path / "large.onnx"
    weight = numpy_helper.from_array(np.zeros((1 << 20,), np.float32), "w")
    model = identity()
    model.graph.initializer.extend([weight])
    path.write_bytes(model.SerializeToString())
    described = read_onnx(path)
    assert described.opset == 17
    assert [(tensor.name, tensor.datatype, tensor.shape) for tensor in described.inputs] == [("x", "FP32", (-1, 2))]


@pytest.mark.parametrize("seed", range(30))
def test_damaged_files_end_in_one_sentence(seed, tmp_path):
    """A file with one or two damaged bytes is either described or refused with a sentence."""
    random = np.random.default_rng(seed)
    content = bytearray(external_model("w.bin", where="branch").SerializeToString())
    for _ in range(1 + seed % 3):
        content[random.integers(len(content))] = random.integers(256)
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with contextlib.suppress(ServingError):
        read_onnx(path)


def test_a_shape_that_does_not_fit_is_the_clients_mistake(tmp_path):
    content = model_factory.onnx_bytes(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [("a", "FP32", ["n", "k"]), ("b", "FP32", ["n", "m"])],
        [("y", "FP32", ["n", "o"])],
    )
    model_factory.write_onnx(tmp_path, "free", content)
    with instance_of(tmp_path / "free") as instance, pytest.raises(ServingError) as failed:
        infer(instance, a=np.ones((1, 3), np.float32), b=np.ones((1, 4), np.float32))
    assert failed.value.code is Code.INVALID_ARG
    assert "onnxruntime_src" not in failed.value.message


def test_a_named_file_is_served_from_default_model_filename(tmp_path):
    folder = write(tmp_path, identity())
    (folder / "1" / "model.onnx").rename(folder / "1" / "other.onnx")
    given = config('backend: "onnxruntime" default_model_filename: "other.onnx"')
    with instance_of(folder, given) as instance:
        assert infer(instance, x=np.ones((1, 2), np.float32))["y"].tolist() == [[1, 1]]


def test_a_shape_that_the_file_leaves_out_is_inferred(tmp_path):
    model = identity()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    completed = spec_of(write(tmp_path, model)).config
    assert list(completed.output[0].dims) == [2]
    assert completed.max_batch_size == 4


def test_a_file_of_endless_tiny_fields_is_given_up(tmp_path, monkeypatch):
    from serving.backends.onnxruntime import protobuf_walk

    monkeypatch.setattr(protobuf_walk, "MAX_FIELDS", 1000)
    path = tmp_path / "model.onnx"
    path.write_bytes(identity().SerializeToString() + b"\x28\x01" * 2000)
    with pytest.raises(ServingError, match="has more than 1000 fields"):
        read_onnx(path)
