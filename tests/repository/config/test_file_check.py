"""Whether a configuration fits a model file: by names, datatypes, dims, batching, backend and file name."""

import pytest

from repository.config import model_config
from repository.config.file_check import Misfit, ModelFile, misfits
from repository.config.signature import Signature, TensorSignature

PAIR = Signature(
    (TensorSignature("left", "FP32", (-1, 4)), TensorSignature("right", "FP32", (-1, 4), optional=True)),
    (TensorSignature("sum", "FP32", (-1, 4)),),
)
SCALARS = Signature((TensorSignature("x", "INT64", (-1,)),), (TensorSignature("y", "INT64", (-1,)),))
FIXED = Signature((TensorSignature("x", "FP32", (1, 4)),), (TensorSignature("y", "FP32", (1, 4)),))
TORCH = Signature(
    (TensorSignature("a", "FP32", (-1, 4)), TensorSignature("b", "INT64", (-1, 2))),
    (TensorSignature("OUTPUT__0", "FP32", (-1, 3)),),
    ordered=True,
)
OUT = 'output { name: "sum" data_type: TYPE_FP32 dims: 4 }'


def found(text: str, signature: Signature | None = PAIR, **file: object) -> list[Misfit]:
    return misfits(model_config.parse(text), ModelFile("onnxruntime", "model.onnx", signature=signature, **file))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_batch_size: 8",
        'max_batch_size: 8 input { name: "left" }',
        f'max_batch_size: 8 input {{ name: "left" data_type: TYPE_FP32 dims: 4 }} {OUT}',
        'max_batch_size: 8 input { name: "left" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: 4 } }',
        'max_batch_size: 0 input { name: "left" data_type: TYPE_FP32 dims: [ -1, 4 ] } '
        'output { name: "sum" data_type: TYPE_FP32 dims: [ -1, 4 ] }',
        f'max_batch_size: 8 input [ {{ name: "left" dims: 4 }}, {{ name: "right" dims: 4 }} ] {OUT}',
        f'max_batch_size: 8 input {{ name: "left" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }} {OUT}',
        'platform: "onnxruntime_onnx"',
        'platform: "ensemble" ensemble_scheduling { }',
    ],
)
def test_what_a_server_would_load_fits(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "field", "sentence"),
    [
        ('max_batch_size: 8 input { name: "lefd" }', "input[0].name", "input 'lefd' is not in the model"),
        (
            'max_batch_size: 8 input { name: "left" data_type: TYPE_INT8 }',
            "input[0].data_type",
            "has data_type INT8, but the model expects FP32",
        ),
        ('max_batch_size: 8 input { name: "left" dims: 5 }', "input[0].dims", "has shape [-1, 5], the batch dimension"),
        ('max_batch_size: 8 output { name: "sum" dims: [ 4, 1 ] }', "output[0].dims", "the model expects [-1, 4]"),
        ('max_batch_size: 8 output { name: "sum" dims: -1 }', "output[0].dims", "the model expects [-1, 4]"),
        (
            'max_batch_size: 8 input { name: "left" dims: [ 2, 2 ] reshape { shape: [ 2, 2 ] } }',
            "input[0].reshape",
            "the model expects [-1, 4]",
        ),
        ('max_batch_size: 8 input { name: "right" dims: 4 }', "input", "the model's input 'left' is not in the"),
        ('backend: "pytorch"', "backend", "the file is for 'onnxruntime'"),
        ('platform: "tensorrt_plan"', "platform", "the file is for 'onnxruntime'"),
    ],
)
def test_what_a_server_would_refuse_is_said_with_its_field(text: str, field: str, sentence: str) -> None:
    problem = found(text)[0]
    assert (problem.field, problem.certain) == (field, True)
    assert sentence in problem.message


def test_everything_that_does_not_fit_is_said_at_once() -> None:
    text = 'max_batch_size: 8 input { name: "x" } output [ { name: "sum" data_type: TYPE_FP16 dims: 9 } ]'
    assert [problem.field for problem in found(text)] == [
        "input[0].name",
        "output[0].data_type",
        "output[0].dims",
        "input",
    ]


def test_a_batch_size_that_the_file_does_not_take_is_said_at_that_field() -> None:
    assert [problem.field for problem in found("max_batch_size: 8", FIXED)] == ["max_batch_size"]
    limited = Signature(PAIR.inputs, PAIR.outputs, batch_limit=4)
    assert [problem.field for problem in found("max_batch_size: 8", limited)] == ["max_batch_size"]


def test_one_number_for_each_row_is_written_as_a_reshape_to_nothing() -> None:
    assert found('max_batch_size: 4 input { name: "x" dims: 1 reshape { } }', SCALARS) == []
    [problem] = found('max_batch_size: 4 input { name: "x" dims: 1 }', SCALARS)
    assert problem.field == "input[0].dims"


def test_a_file_name_that_the_version_lacks_is_said() -> None:
    files = frozenset({"model.onnx", "model.savedmodel/saved_model.pb"})
    assert found('default_model_filename: "model.onnx"', files=files) == []
    assert found('default_model_filename: "model.savedmodel"', files=files) == []
    [problem] = found('default_model_filename: "other.onnx"', files=files)
    assert problem.field == "default_model_filename"


def test_of_a_file_that_nobody_has_looked_into_nothing_is_said() -> None:
    file = ModelFile("onnxruntime", "model.onnx", frozenset({"model.onnx", "model.py", "code.bin"}), PAIR)
    for text in ('backend: "python"', 'backend: "python" default_model_filename: "code.bin"'):
        assert misfits(model_config.parse(text), file) == []
    assert misfits(model_config.parse('backend: "python" default_model_filename: "model.onnx"'), file)
    assert misfits(model_config.parse('backend: "tensorrt"'), file)


def test_tensors_of_torch_are_named_by_their_own_name_by_index_or_by_order() -> None:
    def inputs(first: str, second: str) -> str:
        rows = (
            f'{{ name: "{first}" data_type: TYPE_FP32 dims: 4 }}, {{ name: "{second}" data_type: TYPE_INT64 dims: 2 }}'
        )
        return f"max_batch_size: 8 input [ {rows} ]"

    torch = ModelFile("pytorch", signature=TORCH)
    for names in (("a", "b"), ("INPUT__0", "INPUT__1"), ("image", "mask")):
        assert misfits(model_config.parse(inputs(*names)), torch) == []
    swapped = misfits(model_config.parse(inputs("INPUT__1", "INPUT__0")), torch)
    assert {problem.field for problem in swapped} >= {"input[0].data_type", "input[1].data_type"}
    [beyond] = misfits(model_config.parse(inputs("INPUT__0", "INPUT__7")), torch)
    assert (beyond.field, beyond.certain) == ("input[1].name", True)


def test_what_only_an_example_says_is_no_certainty() -> None:
    traced = Signature(TORCH.inputs, TORCH.outputs, ordered=True, example=True)
    text = 'max_batch_size: 8 input [ { name: "a" data_type: TYPE_FP32 dims: 9 }, { name: "b" data_type: TYPE_INT64 dims: 2 } ]'
    [problem] = misfits(model_config.parse(text), ModelFile("pytorch", signature=traced))
    assert (problem.field, problem.certain) == ("input[0].dims", False)
    unknown = Signature((TensorSignature("a", "", None),), (TensorSignature("OUTPUT__0", "", None),), ordered=True)
    said = misfits(model_config.parse('input { name: "a" dims: 4 } output { name: "b" }'), ModelFile(signature=unknown))
    assert [(problem.field, problem.certain) for problem in said] == [
        ("input[0].data_type", False),
        ("output[0].data_type", False),
        ("output[0].dims", False),
    ]


def test_a_file_that_says_nothing_contradicts_nothing() -> None:
    assert found('input { name: "anything" data_type: TYPE_FP32 dims: 4 }', None) == []


@pytest.mark.parametrize("signature", [PAIR, SCALARS, FIXED, TORCH])
def test_a_signature_is_the_same_after_json(signature: Signature) -> None:
    assert Signature.from_json(signature.to_json()) == signature
