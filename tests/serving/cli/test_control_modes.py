"""The model control modes none, poll and explicit: which models load, and when."""

import shutil

import pytest

from serving.core.errors import Code, ServingError
from tests.serving.gate import until
from tests.serving.in_process import core, index
from tests.support import model_factory

pytestmark = pytest.mark.asyncio


async def test_mode_none_loads_everything_and_refuses_control(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, model_control_mode="none") as server:
        assert server.model_ready("scale")
        with pytest.raises(ServingError, match="not allowed") as caught:
            await server.unload_model("scale")
        assert caught.value.code is Code.UNAVAILABLE


async def test_a_model_that_fails_at_start_ends_the_server_unless_told_otherwise(tmp_path):
    (tmp_path / "bad" / "1").mkdir(parents=True)
    with pytest.raises(ServingError, match="failed to load all models"):
        async with core(tmp_path, model_control_mode="none", exit_on_error=True):
            pass


async def test_poll_mode_follows_the_folder(tmp_path):
    model_factory.onnx_scale(tmp_path, "first")
    async with core(tmp_path, model_control_mode="poll", repository_poll_secs=0.05) as server:
        assert server.model_ready("first")
        model_factory.onnx_scale(tmp_path, "second")
        await until(lambda: server.model_ready("second"), "the new model")
        shutil.rmtree(tmp_path / "first")
        await until(lambda: not server.model_ready("first"), "the deletion")
        assert server.model_ready("second")


async def test_poll_mode_takes_up_a_model_that_was_half_copied_when_it_is_whole(tmp_path):
    folder = model_factory.onnx_scale(tmp_path, "late")
    whole = (folder / "1" / "model.onnx").read_bytes()
    (folder / "1" / "model.onnx").write_bytes(whole[: len(whole) // 2])
    async with core(tmp_path, model_control_mode="poll", repository_poll_secs=0.05) as server:
        assert index(server)["late", "1"][0] == "UNAVAILABLE"
        (folder / "1" / "model.onnx").write_bytes(whole)
        await until(lambda: server.model_ready("late"), "the whole model")


async def test_explicit_mode_lists_what_is_on_disk_and_loads_on_request(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path) as server:
        assert index(server) == {("scale", ""): ("", "")}
        assert len(server.known_models(ready=True)) == 0
        await server.load_model("scale")
        assert index(server) == {("scale", "1"): ("READY", "")}


async def test_a_model_in_two_repositories_is_refused_and_the_others_serve(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in ((first, "scale"), (second, "scale"), (second, "other")):
        model_factory.onnx_scale(folder, name)
    async with core([first, second]) as server:
        with pytest.raises(
            ServingError, match=r"failed to load 'scale', .*: model appears in two or more repositories"
        ) as caught:
            await server.load_model("scale")
        assert caught.value.code is Code.INVALID_ARG
        await server.load_model("other")
        assert index(server)["scale", ""] == ("UNAVAILABLE", "model appears in two or more repositories")


async def test_poll_mode_unloads_a_model_that_comes_to_be_in_two_repositories(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    model_factory.onnx_scale(first)
    second.mkdir()
    async with core([first, second], model_control_mode="poll", repository_poll_secs=0.05) as server:
        assert server.model_ready("scale")
        model_factory.onnx_scale(second)
        await until(lambda: not server.model_ready("scale"), "the end of the ambiguous model")
        shutil.rmtree(first / "scale")
        await until(lambda: server.model_ready("scale"), "the model that is left")
