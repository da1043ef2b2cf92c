"""Models made by others: those that the onnx package brings, loaded without a configuration, answer as ONNX Runtime does."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.serving.in_process import core, infer

SAMPLES = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOLDERS = sorted(
    folder for kind in ("simple", "pytorch-operator", "pytorch-converted") for folder in (SAMPLES / kind).glob("test_*")
)[::3]


def inputs_of(folder: Path, session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    found = {}
    for index, node in enumerate(session.get_inputs()):
        content = (folder / "test_data_set_0" / f"input_{index}.pb").read_bytes()
        found[node.name] = numpy_helper.to_array(onnx.TensorProto.FromString(content))
    return found


def as_text(array: np.ndarray) -> np.ndarray:
    return np.array([one.decode() if isinstance(one, bytes) else str(one) for one in array.ravel()])


@pytest.mark.asyncio
async def test_models_of_the_onnx_package_answer_as_onnx_runtime_does(tmp_path: Path) -> None:
    served = []
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    async with core(tmp_path) as server:
        for folder in FOLDERS:
            try:
                session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
                inputs = inputs_of(folder, session)
                expected = session.run(None, inputs)
            except Exception:  # training operators, sequences, and data that is made elsewhere
                continue
            shutil.copytree(folder, tmp_path / folder.name / "1", ignore=shutil.ignore_patterns("test_data_set_*"))
            await server.load_model(folder.name)
            config = server.model_config(folder.name)
            shapes = {entry.name: len(entry.dims) + bool(config.max_batch_size) for entry in config.input}
            sent = {
                name: array.astype(object) if array.dtype.kind in "US" else array.reshape(array.shape or (1,))
                for name, array in inputs.items()
            }
            sent = {
                name: array.reshape(array.shape + (1,) * (shapes[name] - array.ndim)) for name, array in sent.items()
            }
            answer = await infer(server, folder.name, sent)
            for node, wanted in zip(session.get_outputs(), expected, strict=True):
                found = answer[node.name]
                if wanted.dtype.kind in "OUS":
                    assert as_text(found).tolist() == as_text(wanted).tolist(), folder.name
                else:
                    assert found.dtype == wanted.dtype, folder.name
                    np.testing.assert_allclose(found.ravel(), wanted.ravel(), rtol=1e-3, atol=1e-6, err_msg=folder.name)
            served.append(folder.name)
    assert len(served) > 25, served
