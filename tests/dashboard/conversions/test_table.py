"""A recipe is found by the files of a source; its options are checked before anything runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from dashboard.conversions.conversion import LOCKS, Conversion
from dashboard.conversions.lineage import lineage
from dashboard.conversions.recipes.recipe import Refused, Work, main
from dashboard.conversions.recipes.table import BY_NAME, RECIPES, environment_of, loads_code, recipes_for, source_of
from dashboard.shared.exceptions import Invalid
from tests.support.exported_models import FOLDER as EXPORTED


@pytest.mark.parametrize(
    ("name", "recipes", "is_code"),
    [
        ("sklearn_pickle", ["scikit_learn"], True),
        ("sklearn_joblib", ["scikit_learn"], True),
        ("xgboost_json", ["xgboost_model"], False),
        ("xgboost_ubj", ["xgboost_model"], False),
        ("lightgbm_text", ["lightgbm_model"], False),
        ("catboost_cbm", ["catboost_model"], False),
        ("keras_h5", ["keras_model"], True),
        ("keras_keras", ["keras_model"], True),
        ("torch_state_dict", ["torch_module"], True),
        ("safetensors", [], False),
        ("torch_jit", ["torchscript"], True),
        ("hf_bert", ["onnx_int8", "onnx_fp16", "tensorrt_plan"], False),
        ("tflite", [], False),
    ],
)
def test_a_file_is_recognised_by_its_content(name: str, recipes: list[str], is_code: bool) -> None:
    source = source_of(EXPORTED / name / "files")
    found = recipes_for(source)
    assert [one.name for one in found] == recipes
    assert any(loads_code(one, source) for one in found) is is_code


@pytest.mark.parametrize(
    ("files", "recipe", "is_code"),
    [
        (["config.json", "model.safetensors", "tokenizer.json"], "huggingface", False),
        (["config.json", "pytorch_model.bin", "tokenizer.json"], "huggingface", True),
        (["saved_model.pb", "variables/variables.index"], "saved_model", True),
        (["MLmodel", "model.pkl"], "mlflow_model", True),
        (["net.py", "model.safetensors"], "torch_module", True),
        (["model.skops"], "scikit_learn", False),
    ],
)
def test_a_folder_is_recognised_by_its_names(files: list[str], recipe: str, is_code: bool, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"content")
    source = source_of(tmp_path)
    best, *_ = recipes_for(source)
    assert best.name == recipe
    assert loads_code(best, source) is is_code


@pytest.mark.parametrize(("flavour", "name"), [("sklearn", "tabular"), ("pytorch", "torch"), ("tensorflow", "keras")])
@pytest.mark.parametrize(
    "text", ["flavors:\n  python_function: {{}}\n  {0}:\n    data: x\n", '{{"flavors": {{\n"{0}": {{}}}}}}']
)
def test_the_environment_of_an_mlflow_folder_is_that_of_its_flavour(
    flavour: str, name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "MLmodel").write_text(text.format(flavour))
    assert environment_of(BY_NAME["mlflow_model"], source_of(tmp_path)) == name


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda one: one.name)
def test_a_recipe_has_a_program_a_lock_and_options_whose_defaults_are_right(recipe: Any) -> None:
    assert recipe.program.is_file()
    assert (LOCKS / f"{recipe.environment}.txt").is_file()
    assert recipe.checked({}) == {one.name: one.checked(one.default) for one in recipe.options}


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"opset": "17"}, "opset", "must be a whole number"),
        ({"opset": True}, "opset", "must be a whole number"),
        ({"format": "tflite"}, "format", "must be one of onnx, pt2"),
        ({"tracing": 1}, "tracing", "must be true or false"),
        ({"arguments": [1]}, "arguments", "must be an object"),
        ({"other": 1}, "other", "is no option of the recipe 'torch_module'"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(Invalid) as error:
        BY_NAME["torch_module"].checked(options)
    assert error.value.problems[0].field == field
    assert words in error.value.message


def test_the_command_has_the_options_that_are_not_the_defaults() -> None:
    recipe = BY_NAME["torch_module"]
    assert recipe.command(recipe.checked({})) == "python -m dashboard.conversions torch_module SOURCE TARGET"
    command = recipe.command(recipe.checked({"format": "pt2"}))
    assert command == """python -m dashboard.conversions torch_module SOURCE TARGET --options '{"format": "pt2"}'"""


def test_the_lineage_keeps_the_signature_of_mlflow_and_short_examples() -> None:
    recipe, source = BY_NAME["mlflow_model"], source_of(EXPORTED / "sklearn_pickle" / "files")
    found = {
        "packages": {"mlflow": "3"},
        "warnings": [],
        "signature_inputs": [{"name": "age", "type": "double", "required": True}],
        "example": {"columns": ["age"], "data": [[41.0]]},
        "features": [f"feature_{at}" for at in range(5000)],
        "inputs": [{"name": "age", "datatype": "FP32", "shape": [-1, 1]}],
    }
    kept = lineage(source, recipe, {}, found, {})
    assert kept["facts"] == {name: found[name] for name in ("signature_inputs", "example")}


# -- a conversion whose recipe does not do as it should ----------------------------------------------------------------
def conversion(tmp_path: Path) -> Conversion:
    return Conversion("scikit_learn", EXPORTED / "sklearn_pickle" / "files", tmp_path / "target", {})


def test_a_recipe_takes_no_other_source(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="takes a booster in JSON or UBJ, and the source has none"):
        Conversion("xgboost_model", EXPORTED / "sklearn_pickle" / "files", tmp_path / "target", {})


def test_a_recipe_without_a_report_is_refused_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="ended with status -9 and no report: killed"):
        conversion(tmp_path).convert(Path("python"), lambda command, variables: (-9, "killed"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"error": 1, "advice": "", "packages": {}, "warnings": []}'])
def test_a_report_of_another_shape_is_none(text: str, tmp_path: Path) -> None:
    one = conversion(tmp_path)
    one.target.mkdir()
    (one.target / "report.json").write_text(text)
    assert one.report() == {}


def test_the_error_and_the_advice_of_a_recipe_are_one_sentence(tmp_path: Path) -> None:
    one = conversion(tmp_path)
    report = {"error": "the pickle is damaged", "advice": "save it anew", "packages": {}, "warnings": []}
    one.target.mkdir()
    (one.target / "report.json").write_text(json.dumps(report))
    with pytest.raises(Invalid, match=r"^the pickle is damaged: save it anew$"):
        one.convert(Path("python"), lambda command, variables: (1, ""))


def test_no_recipe_is_offered_for_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "model.pkl").touch()
    assert recipes_for(source_of(tmp_path)) == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model.pkl": b"{"}, "no file that ends in .json or .ubj: give the model's file such an ending, or add it"),
        ({"model.json": b""}, "the file 'model.json' is empty: upload it whole"),
        ({"a.json": b"{", "b.ubj": b"{"}, "several models: a.json, b.ubj: convert one at a time"),
    ],
)
def test_a_recipe_says_which_file_it_lacks(files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused) as caught:
        Work(tmp_path, tmp_path / "target", {}).file(".json", ".ubj")
    assert words in f"{caught.value.error}: {caught.value.advice}"


def test_an_error_that_no_recipe_foresaw_names_no_path_of_this_machine(tmp_path: Path, monkeypatch: Any) -> None:
    def convert(work: Work) -> None:
        json.loads("{") if not work.options else work.source.joinpath("inside").read_bytes()

    for number, (options, words) in enumerate(
        [("{}", "a file of the source is damaged or cut off (Expecting"), ('{"a": 1}', "directory: 'inside')")]
    ):
        (tmp_path / "options.json").write_text(options)
        target = tmp_path / f"target{number}"
        monkeypatch.setattr("sys.argv", ["recipe", str(tmp_path), str(target), str(tmp_path / "options.json")])
        with pytest.raises(SystemExit):
            main(convert, "numpy")
        said = json.loads((target / "report.json").read_text())["error"]
        assert words in said
        assert str(tmp_path) not in said


def test_a_converted_model_that_does_not_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"^it cannot run$"):
        conversion(tmp_path).compare({}, lambda command, variables: (1, "it cannot run"))
