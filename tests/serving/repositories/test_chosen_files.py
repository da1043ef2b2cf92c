"""Which configuration and which file a model is loaded with (--model-config-name, cc_model_filenames), and how often."""

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import parse
from serving.cli.command_line import parse as parse_options
from serving.core import devices
from serving.core.errors import Code, ServingError
from tests.serving.gate import until
from tests.serving.in_process import core
from tests.support import model_factory

CUSTOM = 'max_batch_size: 3 backend: "onnxruntime"'
ON_GPU = """name: "m" default_model_filename: "model.onnx" instance_group { kind: KIND_GPU gpus: [1] }
cc_model_filenames { key: "9.0" value: "hopper.onnx" }"""


def _custom(folder, text=CUSTOM):
    (folder / "configs").mkdir()
    (folder / "configs" / "h100.pbtxt").write_text(text)


@pytest.mark.asyncio
async def test_a_custom_configuration_is_used_where_a_model_has_it(tmp_path):
    _custom(model_factory.onnx_scale(tmp_path, "with"))
    model_factory.onnx_scale(tmp_path, "without")
    async with core(tmp_path, model_config_name="h100", load_model=("*",)) as server:
        assert server.model_config("with").max_batch_size == 3
        assert server.model_config("without").max_batch_size == 8
    async with core(tmp_path, load_model=("with",)) as server:
        assert server.model_config("with").max_batch_size == 8


@pytest.mark.asyncio
async def test_poll_mode_takes_up_a_custom_configuration_that_comes_and_goes(tmp_path):
    folder = model_factory.onnx_scale(tmp_path)
    poll = {"model_control_mode": "poll", "repository_poll_secs": 0.05, "model_config_name": "h100"}
    async with core(tmp_path, **poll) as server:
        assert server.model_config("scale").max_batch_size == 8
        _custom(folder)
        await until(lambda: server.model_config("scale").max_batch_size == 3, "the custom configuration")
        (folder / "configs" / "h100.pbtxt").unlink()
        await until(lambda: server.model_config("scale").max_batch_size == 8, "the default configuration")


@pytest.mark.asyncio
async def test_without_a_gpu_the_default_file_is_loaded(tmp_path):
    model_factory.onnx_scale(tmp_path, extra='cc_model_filenames { key: "9.0" value: "absent.onnx" }')
    async with core(tmp_path, load_model=("scale",)) as server:
        assert server.model_ready("scale")


def test_the_file_for_the_gpus_compute_capability_is_chosen(monkeypatch):
    capabilities = {0: "8.0", 1: "9.0"}
    monkeypatch.setattr(devices, "compute_capability", lambda gpu: capabilities.get(gpu, ""))
    config = parse(ON_GPU)
    assert devices.model_filename(config) == "hopper.onnx"
    config.instance_group[0].gpus[:] = [0]
    assert devices.model_filename(config) == "model.onnx"
    assert devices.model_filename(ModelConfig(default_model_filename="x")) == "x"


def test_a_gpu_that_is_used_beyond_its_limit_takes_no_more_models(monkeypatch):
    monkeypatch.setattr(devices, "used_memory", lambda gpu: 0.75)
    config = parse(ON_GPU)
    devices.refuse_on_full_gpus(config, {0: 0.1, 1: 0.8})
    with pytest.raises(ServingError, match="75% of the memory of GPU 1 is in use, over the limit of 50%") as caught:
        devices.refuse_on_full_gpus(config, {1: 0.5})
    assert caught.value.code is Code.UNAVAILABLE


@pytest.mark.asyncio
async def test_a_load_that_fails_is_tried_again(tmp_path, caplog):
    folder = model_factory.onnx_scale(tmp_path)
    (folder / "1" / "model.onnx").write_bytes(b"not a model")
    async with core(tmp_path, model_load_retry_count=2) as server:
        with pytest.raises(ServingError, match="load failed for model 'scale'"):
            await server.load_model("scale")
    assert caplog.text.count("trying again") == 2


@pytest.mark.parametrize(
    "flag",
    [
        "--model-config-name=a/b",
        "--model-config-name=../x",
        "--model-load-gpu-limit=0:2",
        "--model-load-retry-count=-1",
    ],
)
def test_flags_that_make_no_sense_are_refused(tmp_path, flag, capsys):
    with pytest.raises(SystemExit):
        parse_options([f"--model-repository={tmp_path}", flag])
    assert flag.partition("=")[0] in capsys.readouterr().err
