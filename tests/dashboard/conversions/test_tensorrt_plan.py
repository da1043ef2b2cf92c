"""The recipe of TensorRT plans tells a double of TensorRT what to build; a GPU is needed to run a plan (tests/gpu)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dashboard.conversions.conversion import LOCKS, Conversion, run_unconfined
from dashboard.conversions.recipes.table import BY_NAME
from dashboard.environments.locks import read_lock
from dashboard.shared.exceptions import Invalid
from tests.dashboard.conversions.artefacts import dense_bytes
from tests.support.model_factory import helper, onnx_bytes

DOUBLE = Path(__file__).parent / "tensorrt_double"
STRONGLY_TYPED = 2  # 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED


def tokens_bytes() -> bytes:
    node = helper.make_node("Identity", ["tokens"], ["y"])
    return onnx_bytes([node], [("tokens", "FP32", ["rows", "length"])], [("y", "FP32", ["rows", "length"])])


def convert(tmp_path: Path, content: bytes, config: str = "", fails: str = "", **options: Any) -> dict[str, Any]:
    """Run the recipe's program beside the double. Return its report, with the double's plan in `plan`."""
    source, target, given = tmp_path / "source", tmp_path / "target", tmp_path / "options.json"
    source.mkdir()
    (source / "dense.onnx").write_bytes(content)
    if config:
        (source / "config.pbtxt").write_text(config)
    given.write_text(json.dumps(BY_NAME["tensorrt_plan"].checked(options)))
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(BY_NAME["tensorrt_plan"].program),
        str(source),
        str(target),
        str(given),
    ]
    subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(DOUBLE), "TENSORRT_DOUBLE": fails},
        check=False,
        capture_output=True,
    )
    report: dict[str, Any] = json.loads((target / "report.json").read_text())
    plan = target / "model" / "model.plan"
    return {**report, "plan": json.loads(plan.read_bytes()) if plan.exists() else None}


def test_a_model_becomes_a_strongly_typed_plan_in_fp16_with_a_profile_for_its_batches(tmp_path: Path) -> None:
    report = convert(tmp_path, dense_bytes(), workspace_mib=64)
    assert (report["error"], report["warnings"]) == ("", [])
    assert (report["format"], report["precision"]) == ("plan", "FP16")
    assert report["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    plan = report["plan"]
    assert plan["profiles"] == [{"x": [[1, 4], [32, 4], [32, 4]]}]
    assert (plan["flags"], plan["tf32"], plan["WORKSPACE"]) == (STRONGLY_TYPED, False, 64 << 20)
    weights = onnx.load(plan["model"]).graph.initializer
    assert {one.data_type for one in weights if one.name.startswith("w")} == {onnx.TensorProto.FLOAT16}
    with np.load(tmp_path / "target" / "samples.npz") as samples, np.load(tmp_path / "target" / "answers.npz") as own:
        assert samples["x"].shape == (32, 4)  # the plan is compared at its best shape
        assert own["y"].dtype == np.float32
        np.testing.assert_allclose(own["y"], samples["x"] @ np.linspace(-1, 1, 32).reshape(4, 8), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("precision", "tf32", "judged_as"), [("TF32", True, "FP16"), ("FP32", False, None)])
def test_a_plan_of_more_bits_is_built_of_the_file_itself(
    tmp_path: Path, precision: str, tf32: bool, judged_as: str | None
) -> None:
    report = convert(tmp_path, dense_bytes(), precision=precision)
    assert report["plan"]["model"] == str(tmp_path / "source" / "dense.onnx")
    assert (report["plan"]["tf32"], report.get("precision")) == (tf32, judged_as)
    assert "WORKSPACE" not in report["plan"]


@pytest.mark.parametrize(
    ("config", "options", "profile"),
    [
        (
            "max_batch_size: 64 dynamic_batching { preferred_batch_size: [8, 16] } input { name: 'tokens' dims: [12] }",
            {},
            [[1, 12], [16, 12], [64, 12]],
        ),
        ("max_batch_size: 64 input { name: 'tokens' dims: [12] }", {"max_batch_size": 4}, [[1, 12], [4, 12], [4, 12]]),
        ("max_batch_size: 0 input { name: 'tokens' dims: [2, 12] }", {}, [[2, 12], [2, 12], [2, 12]]),
        ("", {"shapes": {"tokens": [[1, 8], [2, 16], [4, 64]]}}, [[1, 8], [2, 16], [4, 64]]),
    ],
    ids=["config", "option over config", "no batches", "shapes"],
)
def test_the_profile_comes_from_the_configuration_and_the_options(
    tmp_path: Path, config: str, options: dict[str, Any], profile: list[list[int]]
) -> None:
    report = convert(tmp_path, tokens_bytes(), config, **options)
    assert report["error"] == ""
    assert report["plan"]["profiles"] == [{"tokens": profile}]


@pytest.mark.parametrize(
    ("content", "options", "fails", "words"),
    [
        (tokens_bytes(), {}, "", "input 'tokens' has the shape [-1, -1], and TensorRT needs to know how large"),
        (tokens_bytes(), {"shapes": {"x": []}}, "", "the model has no input 'x'"),
        (
            tokens_bytes(),
            {"shapes": {"tokens": [[1, 8], [4, 4], [8, 8]]}},
            "",
            "the option 'shapes' has [[1, 8], [4, 4]",
        ),
        (dense_bytes(), {"shapes": {"x": [[1, 4], [4, 4], [8, 5]]}}, "", "for input 'x', whose shape is [-1, 4]"),
        (dense_bytes(), {"shapes": {"x": [[1, 4], 2, None]}}, "", "the option 'shapes' has"),
        (dense_bytes(), {}, "no GPU", "TensorRT 11.0.0 finds no GPU that it can use (CUDA initialization failure"),
        (dense_bytes(), {}, "operator", "TensorRT 11.0.0 cannot read the model (No importer registered for op: Own)"),
        (dense_bytes(), {}, "memory", "cannot build a plan (Could not find any implementation for node MatMul)"),
    ],
    ids=["sizes unknown", "no such input", "not in order", "fixed size", "no shapes", "no GPU", "operator", "memory"],
)
def test_what_tensorrt_cannot_build_is_refused_with_its_reason_and_an_advice(
    tmp_path: Path, content: bytes, options: dict[str, Any], fails: str, words: str
) -> None:
    report = convert(tmp_path, content, fails=fails, **options)
    assert report["error"].startswith(words) or words in report["error"]
    assert report["advice"]
    assert report["plan"] is None


def test_texts_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["text"], ["y"])
    content = onnx_bytes([node], [("text", "BYTES", ["rows", 1])], [("y", "BYTES", ["rows", 1])])
    assert convert(tmp_path, content)["error"] == "input 'text' is text, which TensorRT does not have"


def test_the_answers_are_the_servers_own_backends_which_says_what_it_lacks(tmp_path: Path) -> None:
    """The comparison fails at the double's plan: without a GPU for want of one, with a GPU because it is none."""
    report = convert(tmp_path, dense_bytes())
    conversion = Conversion("tensorrt_plan", tmp_path / "source", tmp_path / "target", {})
    with pytest.raises(Invalid) as refused:
        conversion.compare(report, run_unconfined)
    assert refused.value.message.startswith("the server's own runtime cannot run the converted model: ")
    assert "TensorRT" in refused.value.message
    assert "\n" not in refused.value.message


def test_the_environment_takes_tensorrt_from_the_product_alone(tmp_path: Path) -> None:
    lock = read_lock(LOCKS / "tensorrt.txt")
    assert lock.hashed
    assert not [name for name in lock.entries if name.startswith("tensorrt")]
    assert "tensorrt-cu13" in {*lock.missing, *lock.borrowed}
    if lock.missing:
        assert lock.remedy == "requirements/gpu.txt"
