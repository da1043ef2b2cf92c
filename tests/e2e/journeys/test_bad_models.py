"""Models that cannot be served: one clear sentence each, the right status, and a server that goes on serving."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from repository.config import model_config
from serving.models.model_lifecycle import UNLOADED
from tests.support.model_factory import (
    onnx_add_sub,
    onnx_mlp,
    onnx_scale,
    python_model,
    tensors_text,
    torchscript_add_sub,
    torchscript_bert_classifier,
    write_config,
)
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

RESNET50 = """\
name: "resnet50"
platform: "tensorrt_plan"
max_batch_size: 64
input [ { name: "input" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
output [ { name: "output" data_type: TYPE_FP32 dims: [ 1000 ] } ]
dynamic_batching { preferred_batch_size: [ 8, 16, 32 ] max_queue_delay_microseconds: 5000 }
instance_group [ { kind: KIND_GPU count: 2 } ]
"""
BERT_CLASSIFIER = """\
name: "bert_classifier"
platform: "pytorch_libtorch"
max_batch_size: 32
input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ 128 ] },
        { name: "attention_mask" data_type: TYPE_INT64 dims: [ 128 ] } ]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { preferred_batch_size: [ 4, 8, 16 ] max_queue_delay_microseconds: 10000 }
version_policy { latest { num_versions: 2 } }
"""
ON_GPU = "instance_group [ { kind: KIND_GPU count: 1 } ]"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    """A server with one good model, to which the tests offer bad ones."""
    onnx_scale(repository, "good", 2.0)
    with ServerProcess(repository, "--model-control-mode=explicit", "--load-model=good") as running:
        yield running


def scaled(server: ServerProcess, model: str) -> float:
    """What the model makes of 1."""
    wire = tritonclient.http.InferInput("INPUT0", [1, 1], "FP32")
    wire.set_data_from_numpy(np.ones((1, 1), np.float32))
    with tritonclient.http.InferenceServerClient(server.http) as client:
        return float(client.infer(model, [wire]).as_numpy("OUTPUT0")[0, 0])


def reason(server: ServerProcess, model: str, version: str) -> tuple[str, str]:
    """State and reason of a version in the repository's index."""
    status, rows = server.post("/v2/repository/index")
    assert status == 200, rows
    return next((row["state"], row["reason"]) for row in rows if (row["name"], row["version"]) == (model, version))


def file_of(folder: Path) -> Path:
    return next(path for path in (folder / "1").iterdir())


def cut(folder: Path, share: float) -> None:
    path = file_of(folder)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def replace(folder: Path, old: str, new: str) -> None:
    path = folder / "config.pbtxt"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


# name -> (make the model, break its folder, status, what the sentence says)
BAD: dict[str, tuple[Callable[..., Path], Callable[[Path], Any], int, str]] = {
    "truncated_onnx": (onnx_mlp, lambda folder: cut(folder, 0.6), 400, "the ONNX file is truncated or damaged"),
    "text_named_onnx": (
        onnx_mlp,
        lambda f: file_of(f).write_text("hello\n" * 99),
        400,
        "ONNX model, but the file is text",
    ),
    "empty_onnx": (onnx_mlp, lambda folder: file_of(folder).write_bytes(b""), 400, "the ONNX file is empty"),
    "truncated_pt": (
        torchscript_add_sub,
        lambda folder: cut(folder, 0.8),
        400,
        "the PyTorch file is truncated or damaged",
    ),
    "text_named_pt": (
        torchscript_add_sub,
        lambda f: file_of(f).write_text("no"),
        400,
        "export model, but the file is text",
    ),
    "no_file": (onnx_add_sub, lambda folder: file_of(folder).unlink(), 404, "the version folder has no 'model.onnx'"),
    "no_version": (
        onnx_add_sub,
        lambda folder: shutil.rmtree(folder / "1"),
        400,
        "at least one version must be available",
    ),
    "wrong_dtype": (
        onnx_add_sub,
        lambda folder: replace(folder, "TYPE_FP32", "TYPE_INT32"),
        400,
        "input 'INPUT0' has data_type INT32, but the model expects FP32",
    ),
    "wrong_dims": (onnx_add_sub, lambda f: replace(f, "[4]", "[5]"), 400, "input 'INPUT0' has shape [-1, 5]"),
    "wrong_name": (
        onnx_add_sub,
        lambda folder: replace(folder, "INPUT1", "INPUT9"),
        400,
        "input 'INPUT9' is not in the model, whose inputs are 'INPUT0', 'INPUT1'",
    ),
    "unknown_field": (
        onnx_add_sub,
        lambda folder: replace(folder, "max_batch_size", "max_batchsize"),
        400,
        "unknown field 'max_batchsize' in ModelConfig; did you mean 'max_batch_size'?",
    ),
    "unknown_backend": (
        onnx_add_sub,
        lambda folder: replace(folder, "onnxruntime", "caffe"),
        400,
        "unknown backend 'caffe'",
    ),
    "another_name": (
        onnx_add_sub,
        lambda folder: replace(folder, '"another_name"', '"other"'),
        400,
        "the configuration's name is 'other', expected the folder's name 'another_name'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_model_is_refused_with_one_sentence_and_the_good_one_serves_on(server, repository, name):
    make, spoil, status, sentence = BAD[name]
    spoil(make(repository, name))
    answered, body = server.post(f"/v2/repository/models/{name}/load")
    assert (answered, sentence in body["error"]) == (status, True), body
    assert "\n" not in body["error"]
    assert str(repository) not in body["error"]
    assert scaled(server, "good") == 2.0
    assert server.get("/v2/health/live")[0] == 200
    assert server.get(f"/v2/models/{name}/ready")[0] == 400


def test_a_bad_model_is_refused_over_grpc_in_the_same_words(server, repository):
    cut(onnx_mlp(repository, "bad_by_grpc"), 0.5)
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        with pytest.raises(tritonclient.grpc.InferenceServerException) as error:
            client.load_model("bad_by_grpc")
        assert error.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert "the ONNX file is truncated or damaged" in error.value.message()
        assert not client.is_model_ready("bad_by_grpc")


def test_the_index_says_why_a_model_does_not_serve(server, repository):
    cut(onnx_mlp(repository, "explained"), 0.5)
    server.post("/v2/repository/models/explained/load")
    state, why = reason(server, "explained", "1")
    assert state == "UNAVAILABLE"
    assert why.startswith("the ONNX file is truncated or damaged")


def test_the_seeds_resnet50_says_what_is_missing(server, repository):
    folder = write_config(repository / "resnet50", RESNET50)
    (folder / "1").mkdir()
    (folder / "1" / "model.plan").write_bytes(b"ftrt" + bytes(1000))
    assert model_config.format(model_config.read(folder)) == model_config.format(model_config.parse(RESNET50))
    status, body = server.post("/v2/repository/models/resnet50/load")
    assert status == 503
    assert "model 'resnet50' needs TensorRT" in body["error"]
    assert "no CUDA device" in body["error"]


def test_the_seeds_bert_classifier_serves_its_two_latest_versions_on_the_cpu(server, repository):
    folder = write_config(repository / "bert_classifier", BERT_CLASSIFIER)
    for version in (1, 2, 3):
        torchscript_bert_classifier(repository, version=version, seed=version)
    assert server.post("/v2/repository/models/bert_classifier/load")[0] == 200
    inputs = [tritonclient.http.InferInput(name, [3, 128], "INT64") for name in ("input_ids", "attention_mask")]
    inputs[0].set_data_from_numpy(np.arange(384).reshape(3, 128))
    inputs[1].set_data_from_numpy(np.ones((3, 128), np.int64))
    answers = {}
    with tritonclient.http.InferenceServerClient(server.http) as client:
        for version in ("", "2", "3"):
            answers[version] = client.infer("bert_classifier", inputs, model_version=version).as_numpy("logits")
        with pytest.raises(tritonclient.http.InferenceServerException, match="version 1"):
            client.infer("bert_classifier", inputs, model_version="1")
        assert client.get_model_metadata("bert_classifier")["versions"] == ["2", "3"]
    assert answers[""].shape == (3, 2)
    assert np.array_equal(answers[""], answers["3"])
    assert not np.array_equal(answers["2"], answers["3"])
    assert (folder / "config.pbtxt").read_text() == BERT_CLASSIFIER


def test_a_model_for_a_gpu_falls_back_to_the_cpu_and_says_so(server, repository):
    onnx_scale(repository, "wants_gpu", 4.0, extra=ON_GPU)
    assert server.post("/v2/repository/models/wants_gpu/load")[0] == 200
    assert scaled(server, "wants_gpu") == 4.0
    state, why = reason(server, "wants_gpu", "1")
    assert state == "READY"
    assert "KIND_GPU" in why
    assert "run on the CPU" in why
    assert "model 'wants_gpu': the instance group asks for KIND_GPU" in server.log


def test_strict_devices_refuses_a_model_for_a_gpu(tmp_path):
    onnx_scale(tmp_path, "wants_gpu", extra=ON_GPU)
    onnx_scale(tmp_path, "good", 2.0)
    flags = "--strict-devices", "--model-control-mode=explicit", "--load-model=good"
    with ServerProcess(tmp_path, *flags) as server:
        status, body = server.post("/v2/repository/models/wants_gpu/load")
        assert status == 503
        assert "asks for KIND_GPU, but" in body["error"]
        assert scaled(server, "good") == 2.0


def test_a_server_told_to_go_on_starts_with_what_can_be_loaded(tmp_path):
    onnx_scale(tmp_path, "good", 2.0)
    cut(onnx_mlp(tmp_path, "bad"), 0.5)
    with ServerProcess(tmp_path, "--exit-on-error=false", "--strict-readiness=false") as server:
        assert scaled(server, "good") == 2.0
        assert reason(server, "bad", "1")[0] == "UNAVAILABLE"


def test_a_server_that_must_load_everything_ends_with_the_reason(tmp_path):
    cut(onnx_mlp(tmp_path, "bad"), 0.5)
    server = ServerProcess(tmp_path, wait="")
    try:
        server.start()
        assert server.process.wait(PATIENCE_S) == 1
        assert (
            "load failed for model 'bad': version 1 is at UNAVAILABLE state: the ONNX file is truncated or damaged"
            in server.log
        )
    finally:
        server.close()


# -- reloading ---------------------------------------------------------------------------------------------------------
def spoiled_file(folder: Path) -> None:
    cut(folder, 0.5)


def spoiled_configuration(folder: Path) -> None:
    replace(folder, "max_batch_size: 8", "max_batch_size: 8\nflavour: 3")


def contradicting_configuration(folder: Path) -> None:
    replace(folder, "TYPE_FP32", "TYPE_INT8")


@pytest.mark.parametrize("spoil", [spoiled_file, spoiled_configuration, contradicting_configuration])
def test_a_reload_that_fails_leaves_the_old_model_serving_and_reports_why(server, repository, spoil):
    name = spoil.__name__
    folder = onnx_scale(repository, name, 5.0)
    assert server.post(f"/v2/repository/models/{name}/load")[0] == 200
    spoil(folder)
    status, _ = server.post(f"/v2/repository/models/{name}/load")
    assert status == 400
    assert scaled(server, name) == 5.0
    assert server.get(f"/v2/models/{name}/ready")[0] == 200
    state, why = reason(server, name, "1")
    assert state == "READY"
    assert "the last reload failed" in why
    onnx_scale(repository, name, 6.0)
    assert server.post(f"/v2/repository/models/{name}/load")[0] == 200
    assert scaled(server, name) == 6.0
    assert reason(server, name, "1") == ("READY", "")


def test_a_python_model_that_no_longer_starts_leaves_the_old_one_serving(server, repository):
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() * 7)])
                    for request in requests
                ]
    """
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    config = f'name: "user_code" backend: "python" max_batch_size: 4 {tensors}'
    python_model(repository, "user_code", source, config)
    assert server.post("/v2/repository/models/user_code/load")[0] == 200
    python_model(repository, "user_code", "import a_package_that_is_not_there\n", config)
    status, body = server.post("/v2/repository/models/user_code/load")
    assert status == 400
    assert "ModuleNotFoundError: No module named 'a_package_that_is_not_there' (model.py, line 1" in body["error"]
    assert scaled(server, "user_code") == 7.0


def test_a_load_that_hangs_can_be_broken_off_and_keeps_nobody_from_unloading(server, repository, tmp_path):
    source = """
        import pathlib
        import time

        class TritonPythonModel:
            def initialize(self, args):
                pathlib.Path({file!r}).touch()
                time.sleep(600)

            def execute(self, requests):
                return []
    """
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    loading, repository_url = tmp_path / "loading", "/v2/repository/models/hangs"
    python_model(repository, "hangs", source.format(file=str(loading)), f'name: "hangs" backend: "python" {tensors}')
    ways = (
        ("/v2/slipway/models/hangs/load/break_off", "the load was broken off"),
        (f"{repository_url}/unload", UNLOADED),
    )
    with ThreadPoolExecutor() as pool:
        for path, why in ways:
            answer = pool.submit(server.post, f"{repository_url}/load")
            wait_until(loading.exists, what="the load")
            loading.unlink()
            assert server.post(path)[0] == 200
            status, body = answer.result(PATIENCE_S)
            assert f"the model's process was ended, for {why}, before it was ready" in body["error"], status
