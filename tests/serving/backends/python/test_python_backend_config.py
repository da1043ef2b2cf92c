"""auto_complete_config, execution environments, and loading a Python model as the server does."""

import gc
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import TYPE_FP32, TYPE_INT32, ModelConfig, ModelInstanceGroup

from repository.config import model_config
from serving.backends.child import completion as child_completion
from serving.backends.python.backend import PythonBackend
from serving.configuration.effective_config import auto_complete_config
from serving.core.errors import Code, ServingError
from tests.serving import in_process
from tests.serving.in_process import core
from tests.serving.instances import IDENTITY, infer, instance_of, python_instance, written_model
from tests.support.model_factory import python_model, write_config
from tests.support.serving_process import new_descendants


def completing(body: str) -> str:
    return f"""
        import os
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                {body}
                return config

            def execute(self, requests):
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                    for request in requests
                ]
    """


WHOLE = (
    'config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}); '
    'config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}); '
    "config.set_max_batch_size(4); config.set_dynamic_batching()"
)


def completed(tmp_path: Path, body: str, text: str = "") -> ModelConfig:
    folder = python_model(tmp_path, "model", completing(body), text)
    return auto_complete_config(model_config.read(folder), folder, 1)


def test_a_model_without_a_configuration_completes_itself_and_serves(tmp_path):
    folder = python_model(tmp_path, "model", completing(WHOLE))
    write_config(folder, "")
    config = auto_complete_config(model_config.read(folder), folder, 1)
    assert (config.name, config.backend, config.max_batch_size) == ("model", "python", 4)
    assert (config.input[0].name, config.input[0].data_type, list(config.input[0].dims)) == ("INPUT0", TYPE_FP32, [-1])
    assert config.HasField("dynamic_batching")
    assert [(group.kind, group.count) for group in config.instance_group] == [(ModelInstanceGroup.KIND_CPU, 1)]
    with instance_of(folder) as instance:
        assert infer(instance, np.ones((1, 3), np.float32))["OUTPUT0"].shape == (1, 3)


@pytest.mark.parametrize(
    "source",
    [
        "from whole import TritonPythonModel",
        "from whole import *",
        "import whole\n\nTritonPythonModel = whole.TritonPythonModel",
        "from whole import TritonPythonModel as Whole\n\nclass TritonPythonModel(Whole):\n    pass",
        "from whole import completing\n\n@completing\nclass TritonPythonModel:\n    def execute(self, requests):\n        pass",
    ],
)
def test_a_completion_that_comes_from_an_imported_module_runs(tmp_path, monkeypatch, source):
    """From wherever the model's Python finds it, as in Triton; here by PYTHONPATH."""
    library = tmp_path / "library"
    library.mkdir()
    decorator = """

        def completing(cls):
            cls.auto_complete_config = TritonPythonModel.auto_complete_config
            return cls
    """
    (library / "whole.py").write_text(textwrap.dedent(completing(WHOLE)) + textwrap.dedent(decorator))
    monkeypatch.setenv("PYTHONPATH", str(library))
    folder = python_model(tmp_path, "model", source, "")
    config = auto_complete_config(model_config.read(folder), folder, 1)
    assert (config.max_batch_size, [entry.name for entry in config.input]) == (4, ["INPUT0"])


def test_fields_that_the_configuration_has_already_are_kept(tmp_path):
    text = (
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: [-1] optional: true } instance_group { count: 3 kind: KIND_CPU } '
        'parameters { key: "k" value { string_value: "v" } }'
    )
    config = completed(tmp_path, WHOLE, text)
    assert len(config.input) == 1
    assert config.input[0].optional
    assert config.instance_group[0].count == 3
    assert config.parameters["k"].string_value == "v"


@pytest.mark.parametrize(
    ("body", "text", "expected"),
    [
        (WHOLE, "max_batch_size: 8", "has max_batch_size 8, but auto_complete_config sets 4"),
        (WHOLE, 'input { name: "INPUT0" data_type: TYPE_INT32 dims: [-1] }', "data_type TYPE_INT32 for input 'INPUT0'"),
        (WHOLE, 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [7] }', r"dims \[7\] for output 'OUTPUT0'"),
        (WHOLE, "sequence_batching { }", "has sequence_batching, but auto_complete_config sets dynamic_batching"),
        ('config.add_input({"name": "A"})', "", "is missing 'data_type'"),
        ('config.add_input({"name": "A", "colour": 1})', "", "has no property 'colour'"),
        ('config.add_input({"name": "A", "data_type": "FP32", "dims": []})', "", "not valid: .*FP32"),
        ('config.set_model_transaction_policy({"speed": 1})', "", "has no property 'speed'"),
        ('config.as_dict()["name"] = "other"', "", "must not change the model's name"),
        ('config = "yes"', "", "must return the pb_utils.ModelConfig"),
        ('raise RuntimeError("no model")', "", r"RuntimeError: no model \(model.py, line 9, in auto_complete_config\)"),
        ("os._exit(4)", "", "ended with exit status 4 in auto_complete_config"),
    ],
)
def test_a_completion_that_contradicts_or_fails_is_refused_with_the_reason(tmp_path, body, text, expected):
    with pytest.raises(ServingError, match=expected) as error:
        completed(tmp_path, body, text)
    assert str(tmp_path) not in error.value.message
    assert not new_descendants()


def test_a_completion_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(child_completion, "COMPLETE_TIMEOUT_S", 0.5)
    with pytest.raises(ServingError, match=r"auto_complete_config took longer than 0\.5 s") as error:
        completed(tmp_path, "time.sleep(60)")
    assert error.value.code is Code.INVALID_ARG
    assert not new_descendants()


def test_as_dict_shows_the_configuration_with_its_defaults(tmp_path):
    body = (
        "seen = config.as_dict(); "
        "config.add_input({\"name\": f\"{seen['name']}_{seen['max_batch_size']}_{len(seen['input'])}\", "
        '"data_type": "TYPE_INT32", "dims": seen["output"][0]["dims"]})'
    )
    config = completed(tmp_path, body, 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [2, -1] }')
    assert (config.input[0].name, config.input[0].data_type, list(config.input[0].dims)) == (
        "model_0_0",
        TYPE_INT32,
        [2, -1],
    )


def test_a_model_that_completes_nothing_starts_no_process_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(child_completion, "ChildProcess", None)
    folder = written_model(tmp_path, IDENTITY)
    assert auto_complete_config(model_config.read(folder), folder, 1).max_batch_size == 8


@pytest.mark.parametrize("value", ["yes", "no"])
def test_inputs_are_on_the_host_whatever_the_model_allows(tmp_path, value):
    source = IDENTITY.replace("return [", "assert all(r.inputs()[0].is_cpu() for r in requests)\n            return [")
    extra = f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "{value}" }} }}'
    with python_instance(tmp_path, source, extra=extra) as instance:
        assert infer(instance, np.ones((1, 1), np.float32))["OUTPUT0"] == 1


def test_where_inputs_may_be_is_yes_or_no(tmp_path):
    extra = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "maybe" } }'
    with (
        pytest.raises(ServingError, match="FORCE_CPU_ONLY_INPUT_TENSORS must be 'yes' or 'no', not 'maybe'"),
        python_instance(tmp_path, IDENTITY, extra=extra),
    ):
        pass


@pytest.mark.asyncio
async def test_settings_of_tritons_shared_memory_are_taken(tmp_path):
    names = "shm-default-byte-size", "shm-growth-byte-size", "shm-region-prefix-name", "stub-timeout-seconds"
    written_model(tmp_path, IDENTITY)
    settings = tuple(("python", name, "67108864") for name in names)
    async with core(tmp_path, backend_config=settings, load_model=("model",)) as server:
        outputs = await in_process.infer(server, "model", {"INPUT0": np.ones((1, 1), np.float32)})
    assert outputs["OUTPUT0"] == 1


@pytest.mark.asyncio
async def test_a_model_may_have_no_inputs_and_no_outputs(tmp_path):
    """As in Triton, also without a configuration; one that batches needs an input to tell how many rows a request has."""
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse(parameters={"inputs": len(r.inputs())}) for r in requests]
    """
    python_model(tmp_path, "bare", source, 'backend: "python"')
    python_model(tmp_path, "plain", source, None)
    python_model(tmp_path, "rows", source, 'backend: "python" max_batch_size: 4')
    async with core(tmp_path, load_model=("*",)) as server:
        for model in ("bare", "plain"):
            answer = await in_process.response(server, model, {})
            assert (answer.outputs, answer.parameters) == ({}, {"inputs": 0})
            assert not server.model_metadata(model).inputs
            with pytest.raises(ServingError, match="unexpected inference input 'IN'"):
                await in_process.infer(server, model, {"IN": np.ones(1, np.float32)})
        with pytest.raises(ServingError, match="batch-size must be from 1 to 4 for 'rows', got 0"):
            await in_process.infer(server, "rows", {})


class Garbage:
    """Goes with the next collection of garbage, wherever that happens, and lets another thread run meanwhile."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0.0001)


def test_many_models_are_completed_at_the_same_time(tmp_path: Path) -> None:
    """CPython's parser fails where one thread is interrupted in it and another one comes."""
    method = "\n".join(f"    def method_{number}(self): return [one for one in (1, 2)]" for number in range(100))
    model = tmp_path / "model" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(f"class TritonPythonModel:\n{method}\n")
    config = ModelConfig(name="model", backend="python", default_model_filename=model.name)

    def complete(_: int) -> None:
        for _ in range(3):
            Garbage()
        PythonBackend.complete_config(config, model.parent)

    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(complete, range(64)))
    finally:
        gc.set_threshold(*thresholds)
