"""The release of each version in the index: also after polls, failed changes and sleep, and for models of one name."""

import json

import numpy as np
import pytest

from serving.core.errors import ServingError
from tests.serving.in_process import core, index_rows, response
from tests.support import model_factory

pytestmark = [pytest.mark.asyncio, pytest.mark.long]
ONE = {"INPUT0": np.array([[1.0]], np.float32)}


def stamp(release: int, more: str = "", **aliases: int) -> str:
    values = {"slipway.release": release, "slipway.aliases": aliases}
    entries = [
        f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(json.dumps(value))} }} }}'
        for key, value in values.items()
    ]
    return "\n".join([*entries, more])


def reported(server):
    return {(row.name, row.version): (row.release, row.aliases) for row in index_rows(server)}


async def infer(server, name, version=""):
    return (await response(server, name, ONE, model_version=version)).model_version


async def test_a_poll_loads_a_release_and_keeps_the_serving_one_where_that_fails(tmp_path):
    model_factory.onnx_scale(tmp_path, extra=stamp(1, champion=1))
    async with core(tmp_path, model_control_mode="poll") as server:
        before = server._manager.resolve("scale", "")
        assert reported(server) == {("scale", "1"): (1, ("champion",))}
        model_factory.onnx_scale(tmp_path, extra=stamp(2, candidate=1))
        (tmp_path / "scale/1/model.onnx").touch()
        await server._manager.poller.poll()
        assert reported(server) == {("scale", "1"): (2, ("candidate",))}
        assert server._manager.resolve("scale", "candidate") is not before  # another file
        model_factory.onnx_scale(tmp_path, extra=stamp(3, candidate=5))
        failed = await server._manager.poller.poll()
        assert "alias 'candidate' names version 5" in failed[0][1].message
        assert reported(server) == {("scale", "1"): (2, ("candidate",))}
        assert await infer(server, "scale", "candidate") == 1


async def test_namesakes_have_releases_and_aliases_of_their_own(tmp_path):
    for number, folder in enumerate(("one", "two"), 1):
        (tmp_path / folder).mkdir()
        model_factory.onnx_scale(tmp_path / folder, extra=stamp(number, **{folder: 1}))
    folders = [tmp_path / "one", tmp_path / "two"]
    async with core(folders, model_namespacing=True, load_model=("scale",)) as server:
        rows = sorted((row.release, row.aliases) for row in index_rows(server))
        assert rows == [(1, ("one",)), (2, ("two",))]
        with pytest.raises(ServingError, match="cannot resolve the ambiguity"):
            await infer(server, "scale", "one")


async def test_a_sleeping_version_tells_its_release_and_wakes_by_its_alias(tmp_path):
    asleep = 'parameters { key: "slipway.residency" value { string_value: "{\\"mode\\": \\"on_demand\\"}" } }'
    model_factory.onnx_scale(tmp_path, extra=stamp(1, asleep, champion=1))
    async with core(tmp_path, load_model=("scale",)) as server:
        assert server._manager.resolve("scale", "champion").in_flight == 0
        model_factory.onnx_scale(tmp_path, extra=stamp(2, asleep, default=1))
        await server.load_model("scale")
        assert reported(server) == {("scale", "1"): (2, ("default",))}
        assert await infer(server, "scale", "default") == 1
        assert reported(server) == {("scale", "1"): (2, ("default",))}
        assert await infer(server, "scale") == 1


async def test_an_ensemble_sends_a_step_without_a_version_to_the_default(tmp_path):
    model_factory.onnx_scale(tmp_path, factor=3.0, version=1)
    model_factory.onnx_scale(tmp_path, factor=5.0, version=2, extra=stamp(1, "version_policy { all {} }", default=1))
    model_factory.pass_on_ensemble(tmp_path, "pipeline", "scale", max_batch_size=8)
    async with core(tmp_path, load_model=("pipeline",)) as server:
        answer = await response(server, "pipeline", ONE)
        assert next(iter(answer.outputs.values())).item() == 3.0


async def test_where_one_version_cannot_be_changed_in_place_none_is(tmp_path):
    model_factory.onnx_scale(tmp_path, version=1)
    both = "version_policy { all {} }"
    model_factory.onnx_scale(tmp_path, version=2, extra=stamp(1, both))
    async with core(tmp_path, load_model=("scale",)) as server:
        models = [server._manager.resolve("scale", version) for version in ("1", "2")]
        second = models[1]

        async def refuse(config):
            raise RuntimeError("no more threads")

        second._instances.reconfigure, before = refuse, second._instances.reconfigure
        group = "instance_group { count: 3 kind: KIND_CPU }"
        config = tmp_path / "scale/config.pbtxt"
        config.write_text(config.read_text().replace('string_value: "1"', 'string_value: "2"') + group)
        with pytest.raises(ServingError):
            await server.load_model("scale")
        assert [len(model.instances) for model in models] == [2, 2]
        assert [row[0] for row in reported(server).values()] == [1, 1]
        assert "slipway.release" in models[0].config.parameters
        assert models[0].config.parameters["slipway.release"].string_value == "1"
        second._instances.reconfigure = before
        await server.load_model("scale")
        assert [len(model.instances) for model in models] == [3, 3]
        assert [row[0] for row in reported(server).values()] == [2, 2]
