"""TorchScript, torch.export and AOTInductor: names of inputs and outputs, parameters, what is refused."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.core.devices import CPU
from serving.core.errors import Code, ServingError
from tests.serving.backends.cases import AddSub, write_export
from tests.serving.backends.driving import config, execute, infer, instance_of, loaded, request, spec_of
from tests.support import model_factory

pytestmark = pytest.mark.long
BERT = """
name: "bert_classifier"
platform: "pytorch_libtorch"
max_batch_size: 32
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ 128 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ 128 ] }
]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { preferred_batch_size: [ 4, 8, 16 ] max_queue_delay_microseconds: 10000 }
version_policy { latest { num_versions: 2 } }
"""


def scripted(root: Path, module: torch.nn.Module, name: str = "model") -> Path:
    return model_factory.write_torchscript(root, name, module).parent.parent


def traced(root: Path, module: torch.nn.Module, *example: torch.Tensor, name: str = "model") -> Path:
    path = root / name / "1" / "model.pt"
    path.parent.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(module.eval(), example).save(str(path))
    return path.parent.parent


def settings(inputs: list[str], outputs: list[str], dims: str = "[2]", extra: str = "", output_type: str = "FP32"):
    tensors = "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: {dims} }} ' for name in inputs)
    tensors += "".join(f'output {{ name: "{name}" data_type: TYPE_{output_type} dims: {dims} }} ' for name in outputs)
    return config(f'backend: "pytorch" max_batch_size: 8 {tensors} {extra}')


class Subtract(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left - right


FIVE, THREE = np.full((1, 2), 5, np.float32), np.full((1, 2), 3, np.float32)


def test_the_seeds_bert_classifier_is_served_on_the_cpu(tmp_path):
    folder = model_factory.torchscript_bert_classifier(tmp_path)
    model_factory.write_config(folder, BERT)
    ids = np.random.default_rng(0).integers(0, 1000, (6, 128))
    mask = (np.arange(128) < [[5], [128], [1], [64], [0], [100]]).astype(np.int64)
    with instance_of(folder) as instance:
        parts = [request({"input_ids": ids[a:b], "attention_mask": mask[a:b]}) for a, b in ((0, 1), (1, 4), (4, 6))]
        logits = np.concatenate([answer["logits"] for answer in execute(instance, *parts)])
        with pytest.raises(ServingError, match="index out of range") as failed:
            infer(instance, input_ids=ids[:1] + 5000, attention_mask=mask[:1])
        assert failed.value.code is Code.INVALID_ARG
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.load(folder / "1" / "model.pt")
    expected = module(torch.from_numpy(ids), torch.from_numpy(mask)).detach().numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-5)


# -- names -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("names", "five_minus_three"),
    [
        (["left", "right"], {"left": FIVE, "right": THREE}),
        (["right", "left"], {"right": THREE, "left": FIVE}),  # by forward's names, whatever the order
        (["INPUT__0", "INPUT__1"], {"INPUT__0": FIVE, "INPUT__1": THREE}),
        (["b__1", "a__0"], {"b__1": THREE, "a__0": FIVE}),  # by index
        (["first", "second"], {"first": FIVE, "second": THREE}),  # in the order of the configuration
    ],
)
@pytest.mark.parametrize("kind", ["torchscript", "torch_export"])
def test_inputs_are_placed_by_name_by_index_or_in_order(kind, names, five_minus_three, tmp_path):
    if kind == "torchscript":
        folder = scripted(tmp_path, Subtract())
    else:
        folder = write_export(tmp_path, "model", Subtract(), torch.ones(2, 2), torch.ones(2, 2))
    with instance_of(folder, settings(names, ["out"])) as instance:
        assert infer(instance, **five_minus_three)["out"].tolist() == [[2, 2]]


@pytest.mark.parametrize("names", [["left"], ["left", "right", "more"], ["a__0", "b__2"], ["a__0", "b__0"]])
def test_inputs_that_do_not_fit_forward_are_refused_with_its_names(names, tmp_path):
    folder = scripted(tmp_path, Subtract())
    unfit = pytest.raises(ServingError, match=r"forward takes 2 inputs \(left, right\)")
    with unfit as refused, instance_of(folder, settings(names, ["out"])):
        pass
    assert refused.value.code is Code.INVALID_ARG


def test_outputs_go_by_index(tmp_path):
    folder = scripted(tmp_path, AddSub())
    with instance_of(folder, settings(["a", "b"], ["difference__1", "sum__0"])) as instance:
        outputs = infer(instance, a=FIVE, b=THREE)
    assert outputs["difference__1"].tolist() == [[2, 2]]
    assert outputs["sum__0"].tolist() == [[8, 8]]


def test_a_dictionary_is_given_and_taken_by_name(tmp_path):
    class Dictionary(torch.nn.Module):
        def forward(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"other": tensors["x"], "difference": tensors["x"] - tensors["y"]}

    folder = scripted(tmp_path, Dictionary())
    with instance_of(folder, settings(["y", "x"], ["difference"])) as instance:
        assert infer(instance, x=FIVE, y=THREE)["difference"].tolist() == [[2, 2]]


def test_strings_are_lists_of_text(tmp_path):
    class Shout(torch.nn.Module):
        def forward(self, words: list[str]) -> list[str]:
            return [word.upper() for word in words]

    given = config(
        'backend: "pytorch" max_batch_size: 4 input { name: "words" data_type: TYPE_STRING dims: [1] } '
        'output { name: "loud" data_type: TYPE_STRING dims: [1] }'
    )
    with instance_of(scripted(tmp_path, Shout()), given) as instance:
        words = np.array([[b"one"], ["zwölf".encode()]], np.object_)
        assert infer(instance, words=words)["loud"].tolist() == [[b"ONE"], ["ZWöLF".encode()]]


class Echo(torch.nn.Module):
    def forward(self, x: torch.Tensor, more: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, more


TWO = """backend: "pytorch" max_batch_size: 4 input { name: "x__0" data_type: TYPE_%s dims: [1] }
    output { name: "out__0" data_type: TYPE_%s dims: [1] } sequence_batching { %s }"""
CORRID = 'control_input { name: "more__1" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } }'
STATE = 'state { input_name: "more__1" output_name: "out__1" data_type: TYPE_%s dims: [1] }'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TWO % ("UINT32", "INT32", CORRID % "INT32"), "unsupported datatype TYPE_UINT32 for input 'x__0' for model"),
        (TWO % ("INT8", "UINT64", CORRID % "INT32"), "unsupported datatype TYPE_UINT64 for output 'out__0' for model"),
        (TWO % ("INT32", "INT32", CORRID % "UINT32"), "unsupported datatype TYPE_UINT32 for input 'more__1'"),
        (TWO % ("INT32", "INT32", CORRID % "STRING"), "unsupported datatype TYPE_STRING for input 'more__1'"),
        (TWO % ("INT32", "INT32", STATE % "STRING"), "unsupported datatype TYPE_STRING for state 'more__1'"),
    ],
)
def test_datatypes_that_torchscript_lacks_are_refused_when_the_model_loads(tmp_path, text, reason):
    with pytest.raises(ServingError, match=reason) as refused, instance_of(scripted(tmp_path, Echo()), config(text)):
        pass
    assert refused.value.code is Code.INVALID_ARG


def test_an_optional_argument_may_stay_out(tmp_path):
    class Optional(torch.nn.Module):
        def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return x if bias is None else x + bias

    folder = scripted(tmp_path, Optional())
    with instance_of(folder, settings(["x"], ["out"])) as instance:
        assert infer(instance, x=FIVE)["out"].tolist() == [[5, 5]]
    with instance_of(folder, settings(["x", "bias"], ["out"])) as instance:
        assert infer(instance, x=FIVE, bias=THREE)["out"].tolist() == [[8, 8]]


# -- memory ------------------------------------------------------------------------------------------------------------
def test_a_model_that_writes_to_its_input_does_not_write_to_the_request(tmp_path):
    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    x = np.zeros((1, 10000), np.float32)
    with instance_of(scripted(tmp_path, InPlace()), settings(["x"], ["out"], "[-1]")) as instance:
        assert infer(instance, x=x)["out"].max() == 1
    assert x.max() == 0


@pytest.mark.parametrize("rows", [2, 20000])
def test_read_only_memory_is_taken_without_a_warning(rows, tmp_path):
    array = np.frombuffer(bytes(rows * 8), np.float32).reshape(rows, 2)
    with instance_of(scripted(tmp_path, Subtract()), settings(["left", "right"], ["out"])) as instance:
        assert infer(instance, left=array, right=array)["out"].shape == (rows, 2)


# -- parameters --------------------------------------------------------------------------------------------------------
def switch(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


@pytest.mark.parametrize(
    "extra",
    [
        switch("INFERENCE_MODE", "false"),
        switch("DISABLE_OPTIMIZED_EXECUTION", "true"),
        switch("ENABLE_CACHE_CLEANING", "true"),
        switch("INTRA_OP_THREAD_COUNT", "1"),
        switch("NUM_THREADS", "1"),
    ],
)
def test_a_model_answers_alike_under_every_parameter(extra, tmp_path):
    with instance_of(scripted(tmp_path, Subtract()), settings(["left", "right"], ["o"], extra=extra)) as instance:
        for _ in range(3):  # the profiling executor changes its mind after the first runs
            assert infer(instance, left=FIVE, right=THREE)["o"].tolist() == [[2, 2]]


def test_weights_are_shared_where_the_parameter_says_so(tmp_path):
    folder = scripted(tmp_path, Subtract())
    for extra, shared in (("", False), (switch("ENABLE_WEIGHT_SHARING", "true"), True)):
        with loaded(folder, settings(["left", "right"], ["out"], extra=extra)) as backend:
            one, two = (backend.create_instance(CPU, f"model_0_{index}") for index in range(2))
            assert (one._model is two._model) is shared


@pytest.mark.parametrize("key", ["INFERENCE_MODE", "DISABLE_OPTIMIZED_EXECUTION", "ENABLE_WEIGHT_SHARING"])
def test_a_switch_takes_only_true_or_false(key, tmp_path):
    given = settings(["left", "right"], ["out"], extra=switch(key, "maybe"))
    folder = scripted(tmp_path, Subtract())
    with pytest.raises(ServingError, match=f"'{key}' must be 'true' or 'false'"), loaded(folder, given):
        pass


# -- what is refused ---------------------------------------------------------------------------------------------------
def test_weights_without_a_model_are_refused(tmp_path):
    (tmp_path / "model" / "1").mkdir(parents=True)
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "model" / "1" / "model.pt")
    with pytest.raises(ServingError, match="holds weights without a model"):
        spec_of(tmp_path / "model")


def test_a_pickle_is_refused_and_never_loaded(tmp_path):
    import pickle

    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "exploded",)

    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "model" / "1" / "model.pt").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ServingError, match="is a pickle, which is not loaded"):
        spec_of(tmp_path / "model")
    assert not (tmp_path / "exploded").exists()


def test_an_output_of_another_type_than_configured_is_named(tmp_path):
    folder = scripted(tmp_path, Subtract())
    wrong = pytest.raises(ServingError, match="output 'out' is float32, but the configuration says float64")
    with instance_of(folder, settings(["left", "right"], ["out"], output_type="FP64")) as instance, wrong:
        infer(instance, left=FIVE, right=THREE)


def test_an_output_that_the_model_does_not_return_is_named(tmp_path):
    folder = scripted(tmp_path, Subtract())
    missing = pytest.raises(ServingError, match="returned 1 outputs, but 'more' is number 1")
    with instance_of(folder, settings(["left", "right"], ["out", "more"])) as instance, missing:
        infer(instance, left=FIVE, right=THREE)


def test_a_size_that_a_program_was_not_exported_for_is_the_clients_mistake(tmp_path):
    folder = write_export(tmp_path, "model", Subtract(), torch.ones(2, 2), torch.ones(2, 2), most=4)
    with instance_of(folder) as instance, pytest.raises(ServingError, match=r"expected .* <= 4") as failed:
        infer(instance, left=np.ones((5, 2), np.float32), right=np.ones((5, 2), np.float32))
    assert failed.value.code is Code.INVALID_ARG


def test_an_exported_batch_limit_bounds_max_batch_size(tmp_path):
    folder = write_export(tmp_path, "model", Subtract(), torch.ones(2, 2), torch.ones(2, 2), most=4)
    with pytest.raises(ServingError, match="max_batch_size is 8, but the model was made for batches of at most 4"):
        spec_of(folder, settings(["left", "right"], ["out"]))


def test_the_error_of_a_failure_inside_the_model_has_no_traceback(tmp_path):
    class Failing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool(x.sum() > 0):
                raise ValueError("no good")
            return x

    folder = scripted(tmp_path, Failing())
    with instance_of(folder, settings(["x"], ["out"])) as instance, pytest.raises(ServingError) as failed:
        infer(instance, x=FIVE)
    assert failed.value.code is Code.INTERNAL
    assert "no good" in failed.value.message
    assert "\n" not in failed.value.message
    assert ".py" not in failed.value.message


# -- completion --------------------------------------------------------------------------------------------------------
def test_a_traced_model_completes_its_configuration_from_its_example(tmp_path):
    folder = traced(tmp_path, torch.nn.Linear(3, 2), torch.ones(1, 3))
    completed = spec_of(folder).config
    assert completed.max_batch_size == 4
    assert completed.HasField("dynamic_batching")
    assert [(entry.name, list(entry.dims)) for entry in completed.input] == [("input", [3])]
    assert [(entry.name, list(entry.dims)) for entry in completed.output] == [("OUTPUT__0", [2])]
    with instance_of(folder) as instance:
        assert infer(instance, input=np.ones((4, 3), np.float32))["OUTPUT__0"].shape == (4, 2)


def test_a_traced_model_whose_batch_is_fixed_gets_no_batching(tmp_path):
    class Flat(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(6)

    completed = spec_of(traced(tmp_path, Flat(), torch.ones(2, 3))).config
    assert completed.max_batch_size == 0
    assert list(completed.input[0].dims) == [2, 3]
    assert list(completed.output[0].dims) == [6]


def test_a_scripted_model_without_a_configuration_is_refused_with_the_missing_fields(tmp_path):
    with pytest.raises(ServingError, match="input 'left' needs a data_type: the model file does not say it"):
        spec_of(scripted(tmp_path, Subtract()))


def test_an_exported_program_completes_its_configuration(tmp_path):
    folder = write_export(tmp_path, "model", AddSub(), torch.ones(2, 3), torch.ones(2, 3), most=3)
    completed = spec_of(folder).config
    assert completed.max_batch_size == 3
    assert [entry.name for entry in completed.input] == ["a", "b"]
    assert [entry.name for entry in completed.output] == ["OUTPUT__0", "OUTPUT__1"]
    assert completed.default_model_filename == "model.pt2"
    assert not completed.platform  # torch_aoti would be another format


# -- AOTInductor -------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling an AOTInductor package needs g++")
def test_an_aotinductor_package_is_known_by_its_content_and_served(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Subtract(), (torch.ones(1, 2), torch.ones(1, 2)))
        # Headers that are compiled beforehand pay for the next package only.
        options = {"aot_inductor.precompile_headers": False}
        package = str(folder / "model.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=options)
    with pytest.raises(ServingError, match="an AOTInductor package does not say its inputs and outputs"):
        spec_of(folder.parent)
    for names in (["INPUT__0", "INPUT__1"], ["ARGS[0]", "ARGS[1]"]):
        with instance_of(folder.parent, settings(names, ["OUTPUT__0"])) as instance:
            assert instance.spec.config.platform == "torch_aoti"
            outputs = infer(instance, **dict(zip(names, (FIVE, THREE), strict=True)))
            assert outputs["OUTPUT__0"].tolist() == [[2, 2]]
