"""Loading, reloading and unloading: a model keeps serving until its successor is ready."""

import asyncio
import os
import shutil

import fsspec
import numpy as np
import pytest

from repository.remote.address import parse
from repository.remote.content_cache import ContentCache
from serving.core.errors import Code, ServingError
from tests.serving.gate import until
from tests.serving.in_process import core, index, infer
from tests.support import model_factory

pytestmark = [pytest.mark.asyncio, pytest.mark.long]
ONE = {"INPUT0": np.array([[1.0]], np.float32)}


async def _factor(server, version=""):
    return float((await infer(server, "scale", ONE, model_version=version))["OUTPUT0"][0, 0])


async def test_a_model_serves_after_loading_and_is_refused_before(tmp_path):
    model_factory.onnx_scale(tmp_path, factor=3.0)
    async with core(tmp_path) as server:
        with pytest.raises(ServingError) as caught:
            await _factor(server)
        assert caught.value.code is Code.NOT_FOUND
        assert not server.model_ready("scale")
        await server.load_model("scale")
        assert await _factor(server) == 3.0
        assert server.model_ready("scale")


async def test_loading_an_unchanged_model_does_nothing(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",)) as server:
        before = server._manager.resolve("scale", "")
        await server.load_model("scale")
        assert server._manager.resolve("scale", "") is before


async def test_a_changed_file_is_reloaded_and_statistics_go_on(tmp_path):
    model_factory.onnx_scale(tmp_path, factor=2.0)
    async with core(tmp_path, load_model=("scale",)) as server:
        assert await _factor(server) == 2.0
        model_factory.onnx_scale(tmp_path, factor=5.0)
        await server.load_model("scale")
        assert await _factor(server) == 5.0
        assert server.model_statistics("scale").model_stats[0].inference_stats.success.count == 2


async def test_a_changed_instance_count_or_batching_is_applied_without_a_reload(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",)) as server:
        model = server._manager.resolve("scale", "")
        model_factory.onnx_scale(
            tmp_path,
            extra="instance_group { count: 3 kind: KIND_CPU } dynamic_batching { max_queue_delay_microseconds: 5 }",
        )
        shutil.copystat(tmp_path, tmp_path / "scale")
        await server.load_model("scale")
        assert server.model_config("scale").instance_group[0].count == 3
        assert await _factor(server) == 2.0
        assert len(server._manager.resolve("scale", "").instances) == 3
        assert model.statistics is server._manager.resolve("scale", "").statistics


async def test_a_failing_reload_keeps_the_old_version_and_reports_the_reason(tmp_path):
    folder = model_factory.onnx_scale(tmp_path, factor=2.0)
    async with core(tmp_path, load_model=("scale",)) as server:
        (folder / "1" / "model.onnx").write_bytes(b"not a model")
        with pytest.raises(ServingError) as caught:
            await server.load_model("scale")
        assert "version 1" in caught.value.message
        assert await _factor(server) == 2.0
        state, reason = index(server)["scale", "1"]
        assert state == "READY"
        assert "what was loaded before keeps serving" in reason


async def test_a_new_version_that_fails_leaves_the_previous_one_serving(tmp_path):
    model_factory.onnx_scale(tmp_path, factor=2.0)
    async with core(tmp_path, load_model=("scale",)) as server:
        (tmp_path / "scale" / "2").mkdir()
        (tmp_path / "scale" / "2" / "model.onnx").write_bytes(b"half")
        with pytest.raises(ServingError):
            await server.load_model("scale")
        assert await _factor(server) == 2.0
        assert index(server)["scale", "2"][0] == "UNAVAILABLE"


async def test_the_version_policy_decides_which_versions_serve(tmp_path):
    for version in (1, 2, 3):
        model_factory.onnx_scale(
            tmp_path, factor=float(version), version=version, extra="version_policy { latest { num_versions: 2 } }"
        )
    async with core(tmp_path, load_model=("scale",)) as server:
        assert await _factor(server) == 3.0
        assert await _factor(server, "2") == 2.0
        with pytest.raises(ServingError) as caught:
            await _factor(server, "1")
        assert caught.value.code is Code.NOT_FOUND
        assert list(server.model_metadata("scale").versions) == ["2", "3"]
        model_factory.onnx_scale(tmp_path, factor=3.0, version=3, extra="version_policy { specific { versions: [1] } }")
        await server.load_model("scale")
        assert await _factor(server) == 1.0
        await until(lambda: index(server)["scale", "3"] == ("UNAVAILABLE", "replaced under the version policy"))


async def test_two_loads_at_once_are_one_load(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path) as server:
        await asyncio.gather(*(server.load_model("scale") for _ in range(20)))
        assert await _factor(server) == 2.0


async def test_an_unloaded_model_is_refused_with_the_reason_and_loads_again(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",)) as server:
        await server.unload_model("scale")
        with pytest.raises(ServingError, match="no available versions: unloaded") as caught:
            await _factor(server)
        assert caught.value.code is Code.UNAVAILABLE
        await server.load_model("scale")
        assert await _factor(server) == 2.0


async def test_requests_never_fail_while_a_model_is_reloaded(tmp_path):
    model_factory.onnx_scale(tmp_path, factor=1.0, extra="dynamic_batching { }")
    async with core(tmp_path, load_model=("scale",)) as server:
        stop = asyncio.Event()
        answers = 0

        async def client() -> None:
            nonlocal answers
            while not stop.is_set():
                assert await _factor(server) >= 1.0
                answers += 1

        clients = [asyncio.create_task(client()) for _ in range(8)]
        for round_ in range(5):
            model_factory.onnx_scale(tmp_path, factor=float(round_ + 2), extra="dynamic_batching { }")
            await server.load_model("scale")
            assert await _factor(server) == round_ + 2
        stop.set()
        await asyncio.gather(*clients)
        assert answers > 0


async def test_a_config_override_replaces_config_pbtxt_until_the_model_is_unloaded_or_its_files_change(tmp_path):
    folder = model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",)) as server:
        override = """{"backend": "onnxruntime", "max_batch_size": 2,
            "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [1]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1]}]}"""
        await server.load_model("scale", override)
        await server.load_model("scale")
        assert server.model_config("scale").max_batch_size == 2
        with pytest.raises(ServingError, match="at least one version must be available under the version policy"):
            await server.load_model("scale", '{"version_policy": {"specific": {"versions": [9]}}}')
        await server.load_model("scale")
        assert server.model_config("scale").max_batch_size == 2
        os.utime(folder / "config.pbtxt", (1e9, 1e9))
        await server.load_model("scale")
        assert server.model_config("scale").max_batch_size == 8
        await server.load_model("scale", override)
        await server.unload_model("scale")
        await server.load_model("scale")
        assert server.model_config("scale").max_batch_size == 8


async def test_files_of_a_load_request_replace_the_version_folders(tmp_path):
    model_factory.onnx_scale(tmp_path, factor=2.0)
    other = tmp_path / "elsewhere"
    model_factory.onnx_scale(other, factor=9.0)
    content = (other / "scale" / "1" / "model.onnx").read_bytes()
    shutil.rmtree(other)
    async with core(tmp_path, load_model=("scale",)) as server:
        with pytest.raises(ServingError, match=r"failed to poll from model repository: .* need the configuration"):
            await server.load_model("scale", files={"file:7/model.onnx": content})
        for number, way in enumerate(("/", "//", "./", "here/../"), 1):
            await server.load_model("scale", '{"backend": "onnxruntime"}', {f"file:{way}{number}/model.onnx": content})
            assert await _factor(server, str(number)) == 9.0
        await server.load_model("scale", '{"backend": "onnxruntime"}', {"file:7/model.onnx": content})
        assert await _factor(server, "7") == 9.0
        with pytest.raises(ServingError):
            await server.load_model("scale", "{}", {"file:../../escape": content})
        assert not (tmp_path.parent / "escape").exists()


async def test_loading_a_model_that_does_not_exist_is_not_found(tmp_path):
    async with core(tmp_path) as server:
        for name in ("absent", "../etc", ".hidden", ""):
            with pytest.raises(ServingError) as caught:
                await server.load_model(name)
            assert caught.value.code in (Code.NOT_FOUND, Code.INVALID_ARG)


async def test_one_broken_model_does_not_keep_others_from_loading(tmp_path):
    model_factory.onnx_scale(tmp_path, "good")
    (tmp_path / "bad" / "1").mkdir(parents=True)
    async with core(tmp_path, load_model=("*",)) as server:
        assert server.model_ready("good")
        assert "backend" in index(server)["bad", "1"][1]
        assert not server.ready(), "strict readiness waits for every model that was asked for"
    async with core(tmp_path, load_model=("*",), strict_readiness=False) as server:
        assert server.ready()


async def test_a_server_does_not_become_ready_while_a_broken_model_is_tried_again(tmp_path):
    bad = model_factory.onnx_scale(tmp_path, "bad") / "1" / "model.onnx"
    whole = bad.read_bytes()
    bad.write_bytes(b"no model")
    async with core(tmp_path, load_model=("*",)) as server:
        said = set()
        again = asyncio.create_task(server.load_model("bad"))
        while not again.done():
            said.add(server.ready())
            await asyncio.sleep(0)
        assert isinstance(again.exception(), ServingError)
        assert said == {False}
        bad.write_bytes(whole)
        await server.load_model("bad")
        assert server.ready()


async def test_a_model_that_is_deleted_while_its_new_version_is_copied_is_unloaded(tmp_path, monkeypatch):
    store, folder = fsspec.filesystem("memory"), f"/{tmp_path.name}"
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("scale", "stays"):  # a bucket without any model would count as one that cannot be listed
        model_factory.onnx_scale(tmp_path, name)
        store.put(str(tmp_path / name), f"{folder}/{name}", recursive=True)
    place = ContentCache.place

    def place_and_delete(self, *arguments):
        place(self, *arguments)
        if store.exists(f"{folder}/scale"):
            store.rm(f"{folder}/scale", recursive=True)

    options = {"model_control_mode": "poll", "repository_poll_secs": 1000.0, "repository_cache_folder": cache}
    async with core([parse(f"memory:/{folder}")], **options) as server:
        assert server.model_ready("scale")
        store.cp_file(f"{folder}/scale/1/model.onnx", f"{folder}/scale/2/model.onnx")
        monkeypatch.setattr(ContentCache, "place", place_and_delete)
        for _ in range(4):  # a change counts when it is seen twice
            await server._manager.poller.poll()
        assert not server.model_ready("scale")


async def test_a_backends_command_line_setting_is_the_default_of_its_models_parameter(tmp_path):
    settings = (("onnxruntime", "intra_op_thread_count", "1"), ("pytorch", "INFERENCE_MODE", "true"))
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",), backend_config=settings) as server:
        parameters = server.model_config("scale").parameters
        assert parameters["intra_op_thread_count"].string_value == "1"
        assert "INFERENCE_MODE" not in parameters


async def test_without_completion_a_partial_configuration_is_refused(tmp_path):
    model_factory.onnx_scale(tmp_path, "whole")
    model_factory.onnx_scale(tmp_path, "partial", config=None)
    async with core(tmp_path, load_model=("*",), disable_auto_complete_config=True) as server:
        assert server.model_ready("whole")
        assert not server.model_ready("partial")
    async with core(tmp_path, load_model=("*",)) as server:
        assert server.model_ready("partial")


async def test_one_version_that_fails_fails_the_load_and_none_of_the_new_ones_serves(tmp_path):
    everything = "version_policy { all {} }"
    folder = model_factory.onnx_scale(tmp_path, factor=1.0, extra=everything)
    model_factory.onnx_scale(tmp_path, factor=2.0, version=2, extra=everything)
    (folder / "3").mkdir()
    async with core(tmp_path) as server:
        with pytest.raises(ServingError, match="load failed for model 'scale': version 3 is at UNAVAILABLE state: "):
            await server.load_model("scale")
        assert not server.model_ready("scale")
        for version in ("1", "2"):
            assert index(server)["scale", version][0] != "READY"
            assert index(server)["scale", version][1].startswith(
                "not loaded, because version 3 is at UNAVAILABLE state"
            )
        (folder / "3").rmdir()
        await server.load_model("scale")
        assert list(server.model_metadata("scale").versions) == ["1", "2"]


@pytest.mark.parametrize("late", [True, False], ids=["found while it is built", "found in its configuration"])
async def test_a_reload_in_which_one_version_fails_keeps_the_old_models(tmp_path, late):
    """A changed version that could be loaded is let go of too: the versions of a load belong together."""
    everything = "version_policy { all {} }"
    folder = model_factory.onnx_scale(tmp_path, factor=1.0, extra=everything)
    async with core(tmp_path, load_model=("scale",)) as server:
        model_factory.onnx_scale(tmp_path, factor=5.0, extra=everything)
        model_factory.onnx_scale(tmp_path, factor=2.0, version=2, extra=everything)
        model_factory.onnx_scale(tmp_path, factor=3.0, version=3, extra=everything)
        if late:
            (folder / "3" / "slipway.pbtxt").write_text(
                'model_warmup { name: "w" batch_size: 1 inputs { key: "INPUT0" '
                'value { data_type: TYPE_FP32 dims: 1 input_data_file: "missing" } } }'
            )
        else:
            (folder / "3" / "model.onnx").write_bytes(b"no model")
        with pytest.raises(ServingError, match="load failed for model 'scale': version 3 is at UNAVAILABLE state: "):
            await server.load_model("scale")
        assert await _factor(server) == 1.0
        assert list(server.model_metadata("scale").versions) == ["1"]
        shown = index(server)
        assert shown["scale", "1"][0] == "READY"
        assert ("what was loaded before keeps serving" in shown["scale", "1"][1]) == late
        await until(lambda: {index(server)["scale", v][0] for v in "23"} == {"UNAVAILABLE"}, "the end of the others")
        entries = server._manager._models.get(("scale", "")).versions.values()
        await until(lambda: sum(len(one.models) for one in entries) == 1, "the end of what was built in vain")
        shutil.rmtree(folder / "3")
        await server.load_model("scale")
        assert (await _factor(server, "1"), await _factor(server, "2")) == (5.0, 2.0)


async def test_without_a_configuration_a_strict_server_passes_a_model_over_and_is_ready(tmp_path):
    model_factory.onnx_scale(tmp_path, "whole")
    (model_factory.onnx_scale(tmp_path, "bare") / "config.pbtxt").unlink()
    async with core(tmp_path, load_model=("*",), disable_auto_complete_config=True) as server:
        assert server.ready()
        assert server.model_ready("whole")
        assert "failed to open text file for read bare/config.pbtxt" in index(server)["bare", ""][1]
        for version in ("", "1"):
            with pytest.raises(ServingError, match="Request for unknown model: 'bare' is not found") as caught:
                server.model_metadata("bare", version)
            assert caught.value.code is Code.NOT_FOUND


async def test_folders_that_are_no_versions_are_logged(tmp_path, caplog):
    folder = model_factory.onnx_scale(tmp_path)
    for name in ("003", "abc", "warmup", "configs", ".old"):
        (folder / name).mkdir()
    async with core(tmp_path, load_model=("scale",)):
        pass
    assert "ignore version directory '003' which contains leading zeros in its directory name" in caplog.text
    assert "ignore version directory 'abc' which fails to convert to integral number" in caplog.text
    assert caplog.text.count("ignore version directory") == 2
