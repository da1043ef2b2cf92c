"""Models of one name in several repositories: the meaning of a name where a model is missing, broken or in a cycle."""

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from tests.serving.in_process import core, infer
from tests.support.model_factory import onnx_scale, pass_on_ensemble

pytestmark = pytest.mark.asyncio

CONFIG = """{"name": "part", "backend": "onnxruntime", "max_batch_size": 4,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1]}]}"""


@pytest.fixture
def repositories(tmp_path):
    """Each with "part", which doubles in the first and triples in the second, and an ensemble of it in the first."""
    first, second = tmp_path / "first", tmp_path / "second"
    onnx_scale(first, "part", 2.0, max_batch_size=4)
    onnx_scale(second, "part", 3.0, max_batch_size=4)
    pass_on_ensemble(first, "whole", "part")
    return [first, second]


async def factor(server, model: str) -> float:
    outputs = await infer(server, model, {"INPUT0": np.ones((1, 1), np.float32)})
    return float(outputs["OUTPUT0"][0, 0])


async def test_a_broken_model_of_the_ensembles_own_repository_is_not_replaced_in_silence(repositories):
    (repositories[0] / "part" / "1" / "model.onnx").write_bytes(b"broken")
    async with core(repositories, model_namespacing=True) as server:
        with pytest.raises(ServingError, match="load failed for model 'part': version 1 is"):
            await server.load_model("part")
        with pytest.raises(ServingError, match="load failed for model 'part': version 1 is"):
            await server.load_model("whole")
        assert not server.ready()


async def test_loading_a_name_loads_every_model_that_it_can_and_reports_the_others(repositories):
    for repository in repositories:
        (repository / "part" / "1" / "model.onnx").write_bytes(b"broken")
    async with core(repositories, model_namespacing=True) as server:
        with pytest.raises(ServingError) as caught:
            await server.load_model("part")
        assert caught.value.message.count("load failed for model 'part': version 1 is") == 2
        onnx_scale(repositories[1], "part", 3.0, max_batch_size=4)
        with pytest.raises(ServingError) as caught:
            await server.load_model("part")
        assert caught.value.message.count("load failed for model") == 1


async def test_an_ensemble_of_a_namesake_in_another_repository_is_no_cycle(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    pass_on_ensemble(first, "outer", "inner")
    pass_on_ensemble(second, "inner", "outer")
    async with core([first, second], model_namespacing=True) as server:
        with pytest.raises(ServingError, match="contains itself"):
            await server.load_model("outer")
        onnx_scale(second, "outer", 5.0, max_batch_size=4)
        await server.load_model("inner")
        await server.load_model("outer")
        assert await factor(server, "inner") == 5.0


async def test_files_of_a_load_request_make_one_more_model(repositories):
    content = (repositories[1] / "part" / "1" / "model.onnx").read_bytes()
    async with core(repositories, model_namespacing=True) as server:
        await server.load_model("part", CONFIG, {"file:1/model.onnx": content})
        assert await factor(server, "part") == 3.0
        await server.load_model("whole")
        assert await factor(server, "whole") == 2.0
        with pytest.raises(ServingError, match="ambiguity") as caught:
            await factor(server, "part")
        assert caught.value.code is Code.INVALID_ARG
        await server.unload_model("part")
        with pytest.raises(ServingError, match="unloaded") as caught:
            await factor(server, "part")
        assert caught.value.code is Code.UNAVAILABLE


async def test_without_namespacing_the_repositories_are_one(repositories):
    async with core(repositories) as server:
        with pytest.raises(ServingError, match=r"failed to load 'part', .*: model appears in two or more repositories"):
            await server.load_model("whole")


async def test_a_cycle_through_the_own_namespace_is_found_while_a_namesake_stands_in(tmp_path):
    """Until "part" of its own repository is loaded, the step means that of the other one."""
    first, second = tmp_path / "first", tmp_path / "second"
    onnx_scale(second, "part", 3.0, max_batch_size=4)
    pass_on_ensemble(first, "whole", "part")
    async with core([first, second], model_namespacing=True, load_model=("whole",)) as server:
        pass_on_ensemble(first, "part", "whole")
        with pytest.raises(ServingError, match="ensemble 'part' contains itself"):
            await server.load_model("part")
