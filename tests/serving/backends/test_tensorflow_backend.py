"""TensorFlow SavedModels, in an environment that has TensorFlow: this one, or that of TENSORFLOW_PYTHON."""

import sys
from pathlib import Path

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from tests.serving.in_process import core, infer
from tests.support.model_factory import write_config
from tests.support.saved_model import ENVIRONMENT, HERE, needs_tensorflow, saved_model


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("tensorflow")
    saved_model(repository)
    return repository


@needs_tensorflow
@pytest.mark.asyncio
async def test_a_saved_model_is_completed_from_its_signature_and_serves_from_a_process_of_its_own(repository):
    async with core(repository) as server:
        await server.load_model("saved")
        config = server.model_config("saved")
        assert (config.platform, config.backend) == ("tensorflow_savedmodel", "tensorflow")
        assert config.default_model_filename == "model.savedmodel"
        assert config.max_batch_size == 4
        assert {tensor.name for tensor in config.input} == {"x", "word"}
        assert {tensor.name: list(tensor.dims) for tensor in config.output} == {"double": [4], "shouted": [1]}
        words = np.array([[b"one"], [b"tw\xff"]], object)
        outputs = await infer(server, "saved", {"x": np.ones((2, 4), np.float32), "word": words})
        assert np.array_equal(outputs["double"], np.full((2, 4), 2, np.float32))
        assert outputs["shouted"].tolist() == [[b"ONE"], [b"TW\xff"]]
        assert "tensorflow" not in sys.modules


@needs_tensorflow
@pytest.mark.asyncio
async def test_a_configuration_that_contradicts_the_signature_is_refused(repository):
    wrong = 'max_batch_size: 4 input [ { name: "x" data_type: TYPE_INT32 dims: [ 4 ] } ]'
    write_config(repository / "saved", wrong + ENVIRONMENT)
    async with core(repository) as server:
        with pytest.raises(ServingError, match=r"INT32.*FP32") as caught:
            await server.load_model("saved")
        assert caught.value.code is Code.INVALID_ARG


@pytest.mark.skipif(HERE, reason="TensorFlow is installed")
@pytest.mark.asyncio
async def test_without_tensorflow_the_error_names_the_packages_to_install(tmp_path):
    folder = tmp_path / "saved" / "1" / "model.savedmodel"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"")
    async with core(tmp_path) as server:
        with pytest.raises(ServingError, match=r"pip install -r requirements/tensorflow\.txt") as caught:
            await server.load_model("saved")
        assert caught.value.code is Code.UNAVAILABLE


@pytest.mark.asyncio
async def test_a_folder_without_a_saved_model_is_refused(tmp_path):
    (tmp_path / "saved" / "1" / "model.savedmodel").mkdir(parents=True)
    async with core(tmp_path) as server:
        with pytest.raises(ServingError, match=r"saved_model\.pb") as caught:
            await server.load_model("saved")
        assert caught.value.code is Code.INVALID_ARG
