"""The recipe of TensorRT plans on a GPU: an ONNX model becomes a plan that answers like its source."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard.confinement.bounds import Limits
from dashboard.confinement.program import nvidia_devices, run
from dashboard.confinement.promises import Promise
from dashboard.conversions.conversion import Conversion
from dashboard.shared.exceptions import Invalid
from serving.core.devices import Device
from tests.dashboard.conversions.artefacts import dense_bytes
from tests.serving.backends.driving import infer, instance_of
from tests.support.exported_models import FOLDER as EXPORTED

pytest.importorskip("tensorrt", reason="the Python package 'tensorrt' is not installed")

GPU = Device("gpu", 0)
_LIMITS = Limits(
    memory_bytes=32 << 30, cpu_seconds=100, wall_seconds=300, processes=4096, file_bytes=1 << 30, output_bytes=1 << 20
)


def convert(source: Path, tmp_path: Path, **options: Any) -> dict[str, Any]:
    """Do all steps of a conversion to target/, the comparison on the GPU among them. Return the lineage."""
    conversion = Conversion("tensorrt_plan", source, tmp_path / "target", options)
    return conversion.run(tmp_path / "environments", lambda percent, step: None)


def dense(tmp_path: Path, scale: float = 1.0) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "dense.onnx").write_bytes(dense_bytes(scale))
    return tmp_path / "source"


@pytest.mark.parametrize(("precision", "most"), [("FP16", 2e-2), ("TF32", 2e-2), ("FP32", 1e-4)])
def test_a_plan_answers_as_its_source_within_its_precision(precision: str, most: float, tmp_path: Path) -> None:
    lineage = convert(dense(tmp_path), tmp_path, precision=precision, max_batch_size=16)
    assert lineage["difference"]["sentence"] == ""
    assert lineage["difference"]["maximum"] <= most
    assert "tensorrt-cu13" in lineage["packages"]
    folder = tmp_path / "served"
    (folder / "1").mkdir(parents=True)
    (tmp_path / "target" / "model" / "model.plan").rename(folder / "1" / "model.plan")
    rows = np.random.default_rng(1).standard_normal((16, 4)).astype(np.float32)
    with instance_of(folder, device=GPU) as instance:
        for count in (1, 7, 16):
            found = infer(instance, x=rows[:count])["y"]
            np.testing.assert_allclose(found, rows[:count] @ np.linspace(-1, 1, 32).reshape(4, 8), atol=most * 4)


def test_a_model_of_texts_of_any_length_becomes_a_plan_for_its_range(tmp_path: Path) -> None:
    names = ("input_ids", "attention_mask", "token_type_ids")
    shapes = {name: [[1, 4], [4, 8], [8, 16]] for name in names}
    lineage = convert(EXPORTED / "hf_bert" / "files", tmp_path, shapes=shapes)
    assert lineage["difference"]["sentence"] == ""


def test_a_model_that_fp16_cannot_hold_is_refused_for_its_difference(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"output 'y' differs from the source's"):
        convert(dense(tmp_path, scale=1e6), tmp_path)


@pytest.mark.parametrize("with_devices", [True, False])
def test_a_confined_program_uses_the_gpu_with_its_devices_alone(with_devices: bool, tmp_path: Path) -> None:
    lines: list[str] = []
    ended = run(
        [sys.executable, "-c", "import torch; print(torch.cuda.is_available() and torch.ones(3).cuda().sum().item())"],
        folder=tmp_path,
        reads=[],
        devices=nvidia_devices() if with_devices else [],
        limits=_LIMITS,
        environment={"PATH": "/usr/bin:/bin"},
        check=lambda: None,
        on_line=lines.append,
        given_up=tuple(Promise),
    )
    assert ended.status == 0, ended.sentence
    assert lines[-1] == ("3.0" if with_devices else "False")
