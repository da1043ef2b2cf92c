"""The layouts of KServe's samples, each served by the runtime's own arguments, and asked over both protocols.

The layouts are those of docs/samples of KServe 0.20, and of its storage initializer; small models stand for the samples' own.
"""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.e2e.extensions.clients import PROTOCOLS, client_of
from tests.support.kserve import KServeProcess
from tests.support.model_factory import onnx_scale, tensors_text, write_config, write_torchscript
from tests.support.saved_model import ENVIRONMENT, needs_tensorflow, saved_model
from tests.support.serving_process import ServerProcess, wait_until

ISVC = "sample"
SCALE = {"INPUT0": np.array([[3.0]], np.float32)}
IMAGE = {"INPUT__0": np.ones((1, 3, 32, 32), np.float32)}


def cifar10(repository: Path) -> None:
    """As triton/torchscript has it: a folder of a model with its configuration, in TorchScript."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    write_torchscript(repository, "cifar10", net)
    tensors = tensors_text("input", [("INPUT__0", "FP32", [3, 32, 32])]) + tensors_text(
        "output", [("OUTPUT__0", "FP32", [10])]
    )
    head = 'name: "cifar10"\nplatform: "pytorch_libtorch"\nmax_batch_size: 1\n'
    write_config(repository / "cifar10", f"{head}{tensors}instance_group [{{ count: 1 kind: KIND_CPU }}]")


def onnx_file(path: Path) -> None:
    """Write a model of one file with any name."""
    scratch = path.parent / ".scratch"
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(onnx_scale(scratch, config=None) / "1" / "model.onnx", path)
    shutil.rmtree(scratch)


def of_hugging_face(folder: Path) -> None:
    onnx_file(folder / "model.onnx")
    for name in ("config.json", "tokenizer.json", "README.md"):
        (folder / name).write_text("{}")
    (folder / ".cache" / "huggingface").mkdir(parents=True)


def on_a_volume(folder: Path) -> None:
    (folder / "lost+found").mkdir(parents=True)
    onnx_file(folder / "1" / "model.onnx")
    (folder / "lost+found").chmod(0)


def linked(folder: Path) -> None:
    """As the storage initializer leaves what is on the node: links that lead out of the folder."""
    onnx_scale(folder.parent / "elsewhere")
    folder.mkdir()
    (folder / "scale").symlink_to(folder.parent / "elsewhere" / "scale")


# layout -> how the folder is made, and the model that clients name
SCALED: dict[str, tuple[Callable[[Path], None], str]] = {
    "v1beta1/onnx: a repository without configurations": (
        lambda at: onnx_file(at / "onnx-model/1/model.onnx"),
        "onnx-model",
    ),
    "v1beta1/onnx: one's own model.onnx": (lambda at: onnx_file(at / "model.onnx"), ISVC),
    "storage/uri: a file with any name": (lambda at: onnx_file(at / "frozen-4.onnx"), ISVC),
    "storage/pvc: folders of versions": (on_a_volume, ISVC),
    "storage/hf: a folder of Hugging Face with model.onnx": (of_hugging_face, ISVC),
    "file://: links": (linked, "scale"),
}


def check(server: ServerProcess, model: str, inputs: dict[str, np.ndarray], output: str) -> np.ndarray:
    """Ask a model by each stock client, as KServe's probes do too. Return what it answers."""
    answers = []
    for kind in PROTOCOLS:
        with client_of(server, kind) as client:
            assert client.call("is_server_ready")
            assert client.call("is_model_ready", model)
            answers.append(client.infer(model, inputs).outputs[output])
    np.testing.assert_array_equal(*answers)
    return answers[0]


@pytest.mark.parametrize("layout", SCALED)
def test_a_layout_is_served(layout: str, tmp_path: Path) -> None:
    make, model = SCALED[layout]
    make(tmp_path / "models")
    with KServeProcess("slipway-server", tmp_path / "models", ISVC) as server:
        assert check(server, model, SCALE, "OUTPUT0").item() == 6.0
        kind = "one model" if model == ISVC else "a repository"
        assert f"models' is {kind}" in server.log


def test_the_sample_of_torchscript_keeps_its_models_name(tmp_path: Path) -> None:
    """v1beta1/triton/torchscript, from a file system that nobody may write."""
    cifar10(tmp_path)
    (tmp_path / "cifar10").chmod(0o500)
    tmp_path.chmod(0o500)
    with KServeProcess("slipway-server", tmp_path, "torchscript-cifar") as server:
        assert check(server, "cifar10", IMAGE, "OUTPUT__0").shape == (1, 10)


def test_models_come_and_go_as_the_agent_puts_them(tmp_path: Path) -> None:
    """multimodelserving/triton: without a storageUri KServe adds the explicit mode, and its agent loads each TrainedModel."""
    models = tmp_path / "models"
    models.mkdir()
    with KServeProcess("slipway-server", models, "triton-mms", "--model-control-mode=explicit") as server:
        for make, name in ((cifar10, "cifar10"), (onnx_scale, "scale")):
            make(models)
            (models / name / "SUCCESS.0a1b").write_text("{}")
            assert server.post(f"/v2/repository/models/{name}/load")[0] == 200
        check(server, "cifar10", IMAGE, "OUTPUT__0")
        assert check(server, "scale", SCALE, "OUTPUT0").item() == 6.0
        shutil.rmtree(models / "cifar10")
        assert server.post("/v2/repository/models/cifar10/unload")[0] == 200
        wait_until(lambda: server.get("/v2/models/cifar10/ready")[0] != 200, what="the end of the model")
        assert server.get("/v2/health/ready")[0] == 200


def test_the_folder_of_an_image_beside_the_server_comes_after_its_start(tmp_path: Path) -> None:
    """oci://: the image's container links its own files where the server looks for them."""
    models, image = tmp_path / "models", tmp_path / "image"
    onnx_file(image / "model.onnx")
    server = KServeProcess("slipway-server", models, ISVC, wait="", environment={"MODEL_INIT_MODE": "async"})
    later = threading.Timer(0.5, os.symlink, (f"/proc/{os.getpid()}/root{image}", models))
    later.start()
    with server:
        wait_until(server.read_addresses, what="the listeners")
        wait_until(lambda: server.get("/v2/health/ready")[0] == 200, what="readiness")
        assert check(server, ISVC, SCALE, "OUTPUT0").item() == 6.0


@needs_tensorflow
def test_an_export_of_tensorflow_is_served_under_its_number(tmp_path: Path) -> None:
    """v1beta1/tensorflow: flowers/0001/saved_model.pb, without a configuration."""
    saved_model(tmp_path / "made")
    models = tmp_path / "models"
    shutil.copytree(tmp_path / "made" / "saved" / "1" / "model.savedmodel", models / "0001")
    write_config(models, ENVIRONMENT)
    with KServeProcess("slipway-server", models, ISVC) as server:
        doubled = check(server, ISVC, {"x": np.ones((1, 4), np.float32), "word": np.array([[b"a"]], object)}, "double")
        assert doubled.tolist() == [[2.0] * 4]


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("model.joblib", b"\x80\x04", "export the model as ONNX, from scikit-learn with skl2onnx"),
        ("model.json", b'{"learner": {}}', "convert the model to ONNX with convert_xgboost"),
        ("model.txt", b"tree\nversion=v4\n", "convert the model to ONNX with convert_lightgbm"),
    ],
)
def test_a_model_of_another_server_is_refused_with_what_to_do(
    file: str, content: bytes, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_bytes(content)
    (tmp_path / "model-settings.json").write_text('{"implementation": "mlserver_sklearn.SKLearnModel"}')
    server = KServeProcess("slipway-server", tmp_path, ISVC, wait="")
    with server:
        assert server.process is not None
        assert server.process.wait(60) == 1
        assert sentence in server.log
