"""`python -m serving.inspect`: the format of a file by its content, its signature, its problems, a configuration for it."""

import json
import resource
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from repository.config import model_config
from serving.configuration.effective_config import auto_complete_config
from serving.inspection.report import inspect
from tests.serving.backends.cases import AddSub, write_export
from tests.serving.backends.test_onnx_files import external_model
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S

NOISE = np.random.default_rng(3).bytes(500)

PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils
open({marker!r}, "w")

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        text = {{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}}
        config.add_input(text)
        config.add_output({{"name": "LENGTH", "data_type": "TYPE_INT64", "dims": [1]}})
        config.set_max_batch_size(16)
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("LENGTH", None)]) for request in requests]
"""


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "serving.inspect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)


def errors(report: dict) -> list[str]:
    return [problem["message"] for problem in report["problems"] if problem["severity"] == "error"]


def warned(report: dict) -> list[str]:
    return [problem["message"] for problem in report["problems"] if problem["severity"] == "warning"]


@pytest.fixture
def onnx_file(tmp_path) -> Path:
    folder = model_factory.onnx_add_sub(tmp_path / "repository", config=None)
    return (folder / "1" / "model.onnx").rename(tmp_path / "adder.onnx")


def script(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(AddSub()).save(str(path))
    return path


def test_the_command_prints_one_json_object(onnx_file):
    done = run(onnx_file)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["format"] == "onnx"
    assert report["backend"] == "onnxruntime"
    assert report["filename"] == "model.onnx"
    assert report["opset"] == model_factory.OPSET
    assert report["executes_code"] is False
    assert report["problems"] == []
    assert report["inputs"][0] == {"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}
    assert [tensor["name"] for tensor in report["outputs"]] == ["OUTPUT0", "OUTPUT1"]


def test_a_path_that_is_not_there_is_status_1(tmp_path):
    done = run(tmp_path / "missing.onnx")
    assert done.returncode == 1
    assert done.stderr == "there is no such file or folder\n"
    assert done.stdout == ""


def test_the_proposed_configuration_is_the_one_that_the_server_completes(onnx_file, tmp_path):
    proposed = model_config.parse(inspect(onnx_file, "adder")["config"])
    folder = tmp_path / "adder"
    (folder / "1").mkdir(parents=True)
    onnx_file.rename(folder / "1" / "model.onnx")
    assert auto_complete_config(proposed, folder, 1) == auto_complete_config(type(proposed)(), folder, 1)
    assert proposed.max_batch_size == 4
    assert proposed.HasField("dynamic_batching")


# -- formats -----------------------------------------------------------------------------------------------------------
def test_the_content_decides_and_not_the_name(onnx_file, tmp_path):
    onnx_file.rename(tmp_path / "upload.bin")
    assert inspect(tmp_path / "upload.bin")["format"] == "onnx"
    assert inspect(script(tmp_path / "also.bin"))["format"] == "torchscript"


def test_torchscript_without_an_example_names_its_inputs_and_warns(tmp_path):
    report = inspect(script(tmp_path / "model.pt"))
    assert report["executes_code"] is True
    assert [tensor["name"] for tensor in report["inputs"]] == ["a", "b"]
    assert [tensor["name"] for tensor in report["outputs"]] == ["OUTPUT__0", "OUTPUT__1"]
    assert not errors(report)
    assert "does not say the datatypes and shapes" in warned(report)[0]
    assert [entry.name for entry in model_config.parse(report["config"]).input] == ["a", "b"]


def test_torchscript_with_an_example_has_a_signature(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).save(str(tmp_path / "model.pt"))
    report = inspect(tmp_path / "model.pt")
    assert report["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 3]}]
    assert report["outputs"] == [{"name": "OUTPUT__0", "datatype": "FP32", "shape": [-1, 2]}]
    assert "used as the batch" in warned(report)[0]
    assert report["signature"]["example"]  # other shapes may do as well


def test_a_torch_export_archive_is_no_aotinductor_package(tmp_path):
    folder = write_export(tmp_path, "model", AddSub(), torch.ones(2, 3), torch.ones(2, 3))
    report = inspect(folder / "1")
    assert (report["format"], report["filename"]) == ("torch_export", "model.pt2")
    assert report["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, 3]}
    with zipfile.ZipFile(tmp_path / "compiled.pt2", "w") as archive:
        archive.writestr("model/archive_format", "pt2")
        archive.writestr("model/data/aotinductor/model/code.so", b"\x7fELF")
    report = inspect(tmp_path / "compiled.pt2")
    assert (report["format"], report["executes_code"]) == ("aotinductor", True)
    assert 'platform: "torch_aoti"' in report["config"]


def test_model_py_is_read_and_never_run(tmp_path):
    marker = tmp_path / "ran"
    (tmp_path / "model.py").write_text(PYTHON_MODEL.format(marker=str(marker)))
    report = json.loads(run(tmp_path / "model.py").stdout)
    assert report["format"] == "python"
    assert report["executes_code"] is True
    assert report["problems"] == []
    assert report["inputs"] == [{"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}]
    assert report["outputs"] == [{"name": "LENGTH", "datatype": "INT64", "shape": [-1, 1]}]
    assert model_config.parse(report["config"]).max_batch_size == 16
    assert not marker.exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class TritonPythonModel:\n  def execute(", "line 2: '(' was never closed"),
        ("class Model:\n  pass", "has no class TritonPythonModel"),
        ("class TritonPythonModel:\n  pass", "class TritonPythonModel has no method 'execute'"),
        ("\0\1\2", "the source is no Python text"),
        ("-" * 100000 + "1", "the source is no Python text"),
    ],
)
def test_problems_of_model_py_are_reported(source, expected, tmp_path):
    (tmp_path / "model.py").write_text(source)
    assert expected in errors(inspect(tmp_path / "model.py"))[0]


def safetensors() -> bytes:
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    return len(header).to_bytes(8, "little") + header + bytes(4)


@pytest.mark.parametrize(
    ("name", "content", "format_", "expected"),
    [
        ("a.onnx", b"no model, but words\n", "text", "expected an ONNX model by the name, but the file is text"),
        ("a.pt", b"no model, but words\n", "text", "expected a TorchScript model by the name, but the file is text"),
        ("notes.txt", b"no model, but words\n", "text", "the file is text, not a model"),
        ("a.onnx", b"", "onnx", "the file is empty"),
        ("a.onnx", NOISE, "onnx", "ONNX"),
        ("a.pt", b"PK\x03\x04" + NOISE, "torchscript", "zip archive that is truncated or damaged"),
        ("a.zip", b"PK\x03\x04" + NOISE, "zip", "zip archive that is truncated or damaged"),
        ("a.pt", b"\x80\x02}q\x00.", "pickle", "so it is not loaded"),
        ("a.safetensors", safetensors(), "safetensors", "weights without the graph"),
        ("a.onnx", safetensors(), "safetensors", "weights without the graph"),
        ("a.h5", b"\x89HDF\r\n\x1a\n" + NOISE, "keras", "export it as ONNX"),
        ("a.json", b'{"learner":{"attributes":{}}}', "xgboost", "convert_xgboost"),
        ("a.ubj", b"{L" + bytes(7) + b"\x07learner{L", "xgboost", "convert_xgboost"),
        ("a.txt", b"tree\nversion=v4\n", "lightgbm", "convert_lightgbm"),
        ("a.cbm", b"CBM1" + NOISE, "catboost", 'format="onnx"'),
        ("a.joblib", b"x^" + NOISE, "pickle", "skl2onnx"),
        ("a.tflite", bytes(4) + b"TFL3" + NOISE, "tflite", "--tflite"),
        ("a.gguf", b"GGUF" + NOISE, "gguf", "llama"),
        ("a.bin", b"\x00\xff" * 400, "unknown", "no format that this server knows"),
    ],
)
def test_a_file_that_is_no_model_is_explained_in_one_sentence(name, content, format_, expected, tmp_path):
    (tmp_path / name).write_bytes(content)
    report = inspect(tmp_path / name)
    assert report["format"] == format_
    (message,) = errors(report)
    assert expected in message
    assert str(tmp_path) not in message


def test_a_truncated_onnx_file_is_an_onnx_file_with_a_problem(onnx_file):
    onnx_file.write_bytes(onnx_file.read_bytes()[:100])
    report = inspect(onnx_file)
    assert report["format"] == "onnx"
    assert errors(report) == ["the ONNX file is truncated or damaged: its 100 bytes end in the middle of the model"]


def test_an_archive_that_leads_out_of_its_folder_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.writestr("../../evil.py", "")
    assert errors(inspect(tmp_path / "models.zip")) == ["the archive holds '../../evil.py', which leads out of it"]


def test_a_plan_is_recognised_and_a_missing_tensorrt_is_a_warning(tmp_path):
    (tmp_path / "model.engine").write_bytes(b"ftrt" + bytes(100))
    report = inspect(tmp_path / "model.engine")
    assert (report["format"], report["backend"], report["filename"]) == ("tensorrt", "tensorrt", "model.plan")


# -- models that cannot be served --------------------------------------------------------------------------------------
def onnx_with(tmp_path: Path, operator: str = "Identity", opset: int = 17) -> Path:
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_an_opset_that_is_too_new_is_a_problem_and_the_signature_is_still_there(tmp_path):
    report = inspect(onnx_with(tmp_path, opset=9999))
    assert "needs opset 9999" in errors(report)[0]
    assert report["inputs"][0]["name"] == "x"


def test_an_operator_that_the_runtime_lacks_is_a_problem(tmp_path):
    assert "Unheard" in errors(inspect(onnx_with(tmp_path, operator="Unheard")))[0]


def test_external_data_outside_the_folder_is_a_problem(tmp_path):
    from tests.serving.backends.test_onnx_files import external_model

    (tmp_path / "model.onnx").write_bytes(external_model("../weights.bin").SerializeToString())
    assert "leads out of it" in errors(inspect(tmp_path / "model.onnx"))[0]


# -- folders and configurations ----------------------------------------------------------------------------------------
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 438013677\n"
PAGE = b"<!DOCTYPE html>\n<html><title>Sign in</title></html>"
PULL, DOWNLOAD = "run `git lfs pull`", "download the file itself"


@pytest.mark.parametrize(
    ("beside", "named", "remedy"),
    [
        ({"model.onnx": None, "weights.bin": POINTER}, "weights.bin", PULL),
        ({"model.onnx": None, "weights.bin": PAGE}, "weights.bin", DOWNLOAD),
        ({"model.py": b"x = 1", "parts/weights.pt": POINTER}, "parts/weights.pt", PULL),
        ({"model.py": POINTER}, "", PULL),
        ({"model.py": PAGE}, "", DOWNLOAD),
        ({"model.mar": POINTER}, "", PULL),
        ({"model.mar": PAGE}, "", DOWNLOAD),
        ({"model.py": b"x = 1", "config.pbtxt": PAGE}, "config.pbtxt", DOWNLOAD),
    ],
)
def test_a_download_in_place_of_a_file_is_named_as_one(beside, named, remedy, tmp_path):
    """Two numbers of weights fit into a pointer: without a look at it the model would be served with its letters."""
    for name, content in beside.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(external_model("weights.bin", length=0).SerializeToString() if content is None else content)
    [error] = [message for message in errors(inspect(tmp_path)) if remedy in message]
    assert named in error


def test_a_pointer_in_an_archive_of_torchserve_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.mar", "w") as archive:
        manifest = {"model": {"modelName": "m", "handler": "image_classifier", "serializedFile": "weights.pt"}}
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("weights.pt", POINTER)
    [error] = errors(inspect(tmp_path))
    assert error.startswith("'weights.pt': ")
    assert PULL in error


def test_a_model_folder_is_read_with_its_configuration_and_highest_version(tmp_path):
    model_factory.onnx_identity(tmp_path, dims=[3], version=1, config=None)
    folder = model_factory.onnx_identity(tmp_path, dims=[5], version=2, extra="version_policy { all { } }")
    report = inspect(folder)
    assert not errors(report)
    assert report["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 5]}]
    assert model_config.parse(report["config"]).HasField("version_policy")


def test_the_signature_of_the_file_does_not_depend_on_a_configuration(onnx_file, tmp_path):
    text = 'max_batch_size: 8 input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: 4 } }\n'
    (tmp_path / "given.pbtxt").write_text(text + 'input { name: "INPUT1" }')
    report = json.loads(run(onnx_file, "--config", tmp_path / "given.pbtxt").stdout)
    assert report["inputs"][0]["shape"] == [-1, 2, 2]
    assert report["signature"] == json.loads(run(onnx_file).stdout)["signature"]
    assert report["signature"]["inputs"][0] == {"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}


def test_a_configuration_that_contradicts_the_file_is_a_problem_and_stays_as_it_is(onnx_file, tmp_path):
    text = 'max_batch_size: 8\ninput { name: "INPUT0" data_type: TYPE_INT8 dims: 4 } input { name: "INPUT1" }\n'
    (tmp_path / "given.pbtxt").write_text(text)
    report = json.loads(run(onnx_file, "--config", tmp_path / "given.pbtxt").stdout)
    assert errors(report) == ["input 'INPUT0' has data_type INT8, but the model expects FP32"]
    assert model_config.parse(report["config"]) == model_config.parse(text)
    assert report["inputs"][0]["datatype"] == "FP32"


def test_a_partial_configuration_is_completed(onnx_file, tmp_path):
    (tmp_path / "given.pbtxt").write_text("max_batch_size: 16 instance_group { count: 3 kind: KIND_CPU }")
    report = inspect(onnx_file, "adder", tmp_path / "given.pbtxt")
    config = model_config.parse(report["config"])
    assert (config.name, config.max_batch_size, config.instance_group[0].count) == ("adder", 16, 3)
    assert [entry.name for entry in config.input] == ["INPUT0", "INPUT1"]


def test_a_configuration_for_another_backend_is_a_problem(onnx_file, tmp_path):
    (tmp_path / "given.pbtxt").write_text('backend: "pytorch"')
    report = inspect(onnx_file, "adder", tmp_path / "given.pbtxt")
    assert errors(report) == ["the configuration's backend is 'pytorch', but the file is for onnxruntime"]


def test_a_configuration_that_does_not_parse_is_a_problem_and_the_file_is_still_read(onnx_file, tmp_path):
    (tmp_path / "given.pbtxt").write_text("max_batchsize: 16")
    report = inspect(onnx_file, "adder", tmp_path / "given.pbtxt")
    assert "unknown field 'max_batchsize'" in errors(report)[0]
    assert [tensor["name"] for tensor in report["inputs"]] == ["INPUT0", "INPUT1"]


def test_a_folder_without_a_model_is_status_1(tmp_path):
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text("nothing here")
    done = run(tmp_path)
    assert done.returncode == 1
    assert "the folder holds no model file" in done.stderr


def test_a_folder_without_a_model_is_explained_by_its_files(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors())
    report = inspect(tmp_path)
    assert report["format"] == "safetensors"
    assert "optimum-cli export onnx" in report["problems"][0]["code"]


def test_a_model_under_a_name_that_no_server_looks_for_is_an_error(onnx_file, tmp_path):
    folder = tmp_path / "version"
    folder.mkdir()
    onnx_file.rename(folder / "adder.bin")
    assert errors(inspect(folder)) == [
        "'adder.bin' is onnx by its content: give it the ending .onnx, as the server expects"
    ]


def test_several_models_in_a_folder_are_named(tmp_path):
    for name in ("decoder.onnx", "encoder.onnx"):
        (tmp_path / name).write_bytes(b"x")
    assert "several models: decoder.onnx, encoder.onnx; publish each as its own model" in run(tmp_path).stderr


def test_missing_weights_are_named_with_the_file_to_add(tmp_path):
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="adder.onnx.data")
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "graph", tensors[:1], tensors[1:], [weight])
    (tmp_path / "adder.onnx").write_bytes(helper.make_model(graph, ir_version=9).SerializeToString())
    report = inspect(tmp_path / "adder.onnx")
    assert report["missing"] == ["adder.onnx.data"]
    assert "weights are in 'adder.onnx.data', which is missing" in errors(report)[0]


@pytest.mark.parametrize(
    ("producer", "remedy"),
    [("pytorch", "dynamic_shapes="), ("tf2onnx", "--inputs x[-1,2]"), ("skl2onnx", "[None, n_features]")],
)
def test_a_batch_of_one_is_reported_with_the_lines_of_another_export(producer, remedy, tmp_path):
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", tensors[:1], tensors[1:])
    model = helper.make_model(graph, ir_version=9, producer_name=producer, opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    (problem,) = inspect(tmp_path / "model.onnx")["problems"]
    assert "takes one row at a time, because it was exported with a batch of 1" in problem["message"]
    assert remedy in problem["code"]


def test_a_folder_with_an_ensemble_is_one(tmp_path):
    model_factory.write_config(
        tmp_path / "pipeline", 'platform: "ensemble" ensemble_scheduling { step { model_name: "a" } }'
    )
    assert inspect(tmp_path / "pipeline")["format"] == "ensemble"


# -- cost --------------------------------------------------------------------------------------------------------------
def test_the_process_limits_itself_below_its_parents_limits(onnx_file):
    code = (
        "import resource, serving.inspect as i; resource.setrlimit(resource.RLIMIT_CPU, (50, 60)); i.limit_resources(); "
        "print(*resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_DATA)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    soft, hard, heap = map(int, done.stdout.split())
    assert (soft, hard) == (50, 60)
    assert heap != resource.RLIM_INFINITY


def test_a_file_with_large_weights_is_described_in_little_memory(tmp_path):
    """900 MB of weights (a hole in the file) are neither read nor loaded to say what the model is."""
    content = onnx_with(tmp_path).read_bytes()
    size = 900 << 20
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        # TensorProto.raw_data (field 9) inside an initializer (field 5) of a second piece of the graph (field 7):
        # protobuf merges the pieces of a message that comes twice.
        raw = b"\x4a" + varint(size)
        tensor = b"\x08" + varint(size) + b"\x10\x02" + b"\x42\x01w"
        initializer = b"\x2a" + varint(len(tensor) + len(raw) + size)
        graph = graph_of(content)
        head = b"\x3a" + varint(len(graph) + len(initializer) + len(tensor) + len(raw) + size)
        file.write(b"\x08\x09\x42\x02\x10\x11" + head + graph + initializer + tensor + raw)
        file.truncate(file.tell() + size)
    code = (
        "from pathlib import Path; from serving.inspection.report import inspect; "
        f"report = inspect(Path({str(path)!r})); assert report['inputs'][0]['name'] == 'x', report; "
        "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 400 << 10  # KiB


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def graph_of(content: bytes) -> bytes:
    import onnx

    return onnx.load_from_string(content).graph.SerializeToString()


def test_damaged_files_never_break_the_inspection(tmp_path, onnx_file):
    random = np.random.default_rng(1)
    sources = [onnx_file, script(tmp_path / "model.pt")]
    for number in range(20):
        source = sources[number % 2]
        content = bytearray(source.read_bytes())
        for _ in range(3):
            content[random.integers(len(content))] = random.integers(256)
        path = tmp_path / f"damaged{number}{source.suffix}"
        path.write_bytes(content[: random.integers(1, len(content) + 1)])
        report = inspect(path)
        assert all("\n" not in message for message in errors(report))
