"""Where instances go on a machine without a GPU, and what runs before a model is ready."""

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from tests.serving.in_process import core, index, infer
from tests.support import model_factory

pytestmark = pytest.mark.asyncio
ONE = {"INPUT0": np.array([[1.0]], np.float32)}
GPU = "instance_group { kind: KIND_GPU count: 2 }"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """This file is about machines without one."""
    monkeypatch.setattr("serving.core.devices.gpu_count", lambda: 0)


async def test_kind_gpu_falls_back_to_the_cpu_with_a_warning_that_the_index_shows(tmp_path):
    model_factory.onnx_scale(tmp_path, extra=GPU)
    async with core(tmp_path, load_model=("scale",)) as server:
        assert (await infer(server, "scale", ONE))["OUTPUT0"].tolist() == [[2.0]]
        state, reason = index(server)["scale", "1"]
        assert state == "READY"
        assert "KIND_GPU" in reason
        assert "run on the CPU" in reason
        assert reason.count("KIND_GPU") == 1


async def test_with_strict_devices_kind_gpu_fails_to_load(tmp_path):
    model_factory.onnx_scale(tmp_path, extra=GPU)
    async with core(tmp_path, strict_devices=True) as server:
        with pytest.raises(ServingError, match="asks for KIND_GPU, but") as caught:
            await server.load_model("scale")
        assert caught.value.code is Code.UNAVAILABLE


async def test_kind_auto_and_kind_cpu_run_on_the_cpu_without_a_word(tmp_path):
    model_factory.onnx_scale(
        tmp_path, extra="instance_group { kind: KIND_CPU count: 2 } instance_group { kind: KIND_AUTO count: 1 }"
    )
    async with core(tmp_path, load_model=("scale",), strict_devices=True) as server:
        assert index(server)["scale", "1"] == ("READY", "")
        names = [instance.name for instance in server._manager.resolve("scale", "").instances]
        assert names == ["scale_0_0", "scale_0_1", "scale_1_0"]


async def test_a_passive_group_has_no_instances_and_secondary_devices_are_warned_of(tmp_path):
    extra = "instance_group { name: 'idle' passive: true } instance_group { name: 'busy' secondary_devices { device_id: 0 } }"
    model_factory.onnx_scale(tmp_path, extra=extra)
    model_factory.onnx_scale(tmp_path, "idle", extra="instance_group { passive: true }")
    async with core(tmp_path, load_model=("scale",)) as server:
        assert {one.name.partition("_")[0] for one in server._manager.resolve("scale", "").instances} == {"busy"}
        assert "secondary_devices" in index(server)["scale", "1"][1]
        with pytest.raises(ServingError, match="every instance group is passive"):
            await server.load_model("idle")


WARMUP = """model_warmup {{ name: "sample" batch_size: 2 count: 3
    inputs {{ key: "INPUT0" value {{ data_type: TYPE_FP32 dims: [1] {data} }} }} }}"""


@pytest.mark.parametrize("data", ["zero_data: true", "random_data: true", 'input_data_file: "one"'])
async def test_warm_up_runs_before_the_model_is_ready_and_is_not_counted(tmp_path, data):
    folder = model_factory.onnx_scale(tmp_path, extra=WARMUP.format(data=data))
    (folder / "warmup").mkdir()
    (folder / "warmup" / "one").write_bytes(np.float32(1).tobytes())
    async with core(tmp_path, load_model=("scale",)) as server:
        assert server.model_ready("scale"), index(server)
        assert server.model_statistics("scale").model_stats[0].inference_count == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('input_data_file: "absent"', "not in the model's warmup folder"),
        ('input_data_file: "../config.pbtxt"', "does not name a file inside the model's folder"),
        ('input_data_file: "two"', r"needs 4 bytes for shape \[1\], its file has 8"),
    ],
)
async def test_a_warm_up_that_cannot_be_made_fails_the_load_with_the_reason(tmp_path, data, message):
    folder = model_factory.onnx_scale(tmp_path, extra=WARMUP.format(data=data))
    (folder / "warmup").mkdir()
    (folder / "warmup" / "two").write_bytes(bytes(8))
    async with core(tmp_path) as server:
        with pytest.raises(ServingError, match=message):
            await server.load_model("scale")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('model_warmup { name: "w" batch_size: 1 }', "gives no input 'INPUT0'"),
        ('model_warmup { name: "w" batch_size: 1 count: 4000000000 INPUT }', "asks for 4000000000 requests"),
    ],
)
async def test_a_warm_up_sample_that_is_incomplete_or_endless_is_refused(tmp_path, text, message):
    given = 'inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }'
    model_factory.onnx_scale(tmp_path, extra=text.replace("INPUT }", given + " }"))
    async with core(tmp_path) as server:
        with pytest.raises(ServingError, match=message) as caught:
            await server.load_model("scale")
        assert caught.value.code is Code.INVALID_ARG


async def test_a_sample_without_a_batch_size_is_skipped(tmp_path):
    model_factory.onnx_scale(tmp_path, extra='model_warmup { name: "w" }')
    async with core(tmp_path, load_model=("scale",)) as server:
        assert server.model_ready("scale")


SAMPLE = '{ key: "%s" value { data_type: TYPE_FP32 dims: 1 zero_data: true } }'


@pytest.mark.parametrize("names", [("INPUT",), ("INPUT", "START", "STATE")])
async def test_a_sample_of_a_stateful_model_may_leave_controls_and_states_out(tmp_path, names):
    inputs = " ".join(f"inputs {SAMPLE % name}" for name in names)
    model_factory.onnx_sequence_sum(tmp_path, "sum", extra=f'model_warmup {{ name: "w" batch_size: 2 {inputs} }}')
    async with core(tmp_path, load_model=("sum",)) as server:
        fields = {"sequence_id": 1, "sequence_start": True}
        answer = await infer(server, "sum", {"INPUT": np.ones((1, 1), np.float32)}, **fields)
        assert answer["OUTPUT"].item() == 1


async def test_a_warm_up_that_the_model_refuses_fails_the_load(tmp_path):
    wrong = WARMUP.format(data="zero_data: true").replace("dims: [1]", "dims: [3, 3]")
    model_factory.onnx_scale(tmp_path, extra=wrong)
    async with core(tmp_path) as server:
        with pytest.raises(ServingError, match="failed to run warmup"):
            await server.load_model("scale")
