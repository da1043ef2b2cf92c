"""BaseHandler and the files that it loads: weights with a class, TorchScript, exported programs, ONNX."""

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.serving.in_process import core
from tests.serving.torchserve.handlers.driving import ask, send
from tests.support.torchserve_archives import model

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.scale
"""
HANDLER = """
import json
from ts.torch_handler.base_handler import BaseHandler

class Rows(BaseHandler):
    def preprocess(self, data):
        return super().preprocess([json.loads(bytes(row.get("data") or row.get("body"))) for row in data])

    def get_insights(self, tensor_data, raw_data, target):
        return [f"{bytes(raw_data).decode()} {target}"]

    def describe_handle(self):
        return {"mapping": self.mapping, "device": str(self.device), "compiled": "pt2" in self.model_yaml_config}
"""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def saved(save: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


def scripted() -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, which archives hold for years yet
        return saved(lambda file: torch.jit.save(torch.jit.script(Net()), file))


def exported() -> bytes:
    program = torch.export.export(Net(), (torch.ones(2, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    return saved(lambda file: torch.export.save(program, file))


def onnx_net() -> bytes:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "y")]
    two = helper.make_tensor("two", TensorProto.FLOAT, [1], [2.0])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "net", tensors[:1], tensors[1:], [two])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(onnx.ModelProto.SerializeToString(made))


class Metrics:
    """Takes the names of times."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add_time(self, name: str, *_: object) -> None:
        self.names.append(name)


WEIGHTS = {"net.py": NET, "net.pt": saved(lambda file: torch.save(Net().state_dict(), file))}
EAGER = {"modelFile": "net.py", "serializedFile": "net.pt"}


def handler_of(
    tmp_path: Path, files: dict[str, Any], cls: Any = None, settings: dict[str, Any] | None = None, **named: str
) -> Any:
    """Return a BaseHandler that has loaded the model of these files, in this process."""
    from ts.context import Context
    from ts.torch_handler.base_handler import BaseHandler

    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    handler = (cls or BaseHandler)()
    manifest = {"model": {"modelName": "net", **named}}
    handler.initialize(
        Context("net", str(tmp_path), manifest, 1, None, "0.12.0", model_yaml_config=settings, metrics=Metrics())
    )
    return handler


@pytest.mark.parametrize("kind", ["eager", "torchscript", "exported", "onnx"])
def test_base_handler_loads_each_kind_of_serialized_file(kind: str, importable: Path) -> None:
    name, made = {"torchscript": ("net.pt", scripted), "exported": ("net.pt2", exported)}.get(
        kind, ("net.onnx", onnx_net)
    )
    files, named = (WEIGHTS, EAGER) if kind == "eager" else ({name: made()}, {"serializedFile": name})
    handler = handler_of(importable, files, **named)
    data = handler.preprocess([[1.0, 2.0, 3.0]])
    assert handler.postprocess(handler.inference(data)) == [[2.0, 4.0, 6.0]]


@pytest.mark.parametrize(
    ("files", "named", "sentence"),
    [
        (WEIGHTS, {"serializedFile": "net.pt"}, "net.pt holds weights and no TorchScript"),
        (
            {**WEIGHTS, "net.py": "x = 1\n"},
            EAGER,
            "net.py must define one class of a torch.nn.Module, but there is none",
        ),
        ({**WEIGHTS, "net.pt": saved(lambda file: torch.save({"a": Path("x")}, file))}, EAGER, "more than tensors"),
        ({}, EAGER, "the archive has no net.pt"),
        ({}, {}, "neither a model file nor a serialized file"),
    ],
)
def test_a_model_that_cannot_be_loaded_names_the_problem_of_its_archive(
    files: dict[str, Any], named: dict[str, str], sentence: str, importable: Path
) -> None:
    with pytest.raises((RuntimeError, ValueError), match=sentence):
        handler_of(importable, files, **named)


@pytest.mark.asyncio
async def test_predictions_explanations_and_descriptions_reach_their_methods(tmp_path: Path) -> None:
    files = {**WEIGHTS, "index_to_name.json": json.dumps({"0": ["n01", "cat"]})}
    config = {"pt2": {"compile": {"enable": False, "backend": "eager"}}}
    model(tmp_path, "net", handler=HANDLER, files=files, config=config, **EAGER)
    parts = [("body", None, b"[1, 2, 3]")]
    async with core(tmp_path, load_model=("net",)) as server:
        predicted = await ask(server, "net", b"[1, 2, 3]")
        explained = await send(server, "net", [*parts, ("target", None, b"7")], torchserve_explain=True)
        described = await send(server, "net", parts, [("describe", "True")])
    assert json.loads(predicted) == [2.0, 4.0, 6.0]
    assert explained.outputs["data"][0, 0] == b"[1, 2, 3] bytearray(b'7')"
    assert json.loads(described.outputs["data"][0, 0]) == {"mapping": {"0": "cat"}, "device": "cpu", "compiled": True}


def test_a_model_that_a_handler_makes_itself_is_set_to_evaluate(importable: Path) -> None:
    from ts.torch_handler.base_handler import BaseHandler

    class Own(BaseHandler):
        def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
            return torch.nn.Dropout(0.5)

    handler = handler_of(importable, WEIGHTS, Own, **EAGER)
    assert handler.inference(torch.ones(64)).tolist() == [1.0] * 64


@pytest.mark.parametrize(
    ("pt2", "compiled"),
    [
        ({"compile": {"enable": True, "backend": "eager"}}, True),
        ({"compile": {"enable": False, "backend": "eager"}}, False),
        ({"backend": "eager", "dynamic": True}, True),
        ("eager", True),
        ({"backend": "nobody's"}, False),
        ({"export": {"aot_compile": True}}, False),
    ],
)
def test_each_form_of_pt2_says_whether_the_model_is_compiled(pt2: Any, compiled: bool, importable: Path) -> None:
    handler = handler_of(importable, WEIGHTS, settings={"pt2": pt2}, **EAGER)
    assert isinstance(handler.model, torch._dynamo.OptimizedModule) == compiled
    assert handler.model(torch.ones(3)).tolist() == [2.0] * 3


def test_a_profiled_handlers_methods_are_measured(importable: Path) -> None:
    handler = handler_of(importable, WEIGHTS, settings={"handler": {"profile": True}}, **EAGER)
    context = Metrics()
    handler.context = type("Context", (), {"model_yaml_config": {"handler": {"profile": True}}, "metrics": context})
    handler.postprocess(handler.inference(handler.preprocess([1.0, 2.0, 3.0])))
    assert context.names == ["ts_handler_preprocess", "ts_handler_inference", "ts_handler_postprocess"]


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "highest"), ((9, 0), "high")])
@pytest.mark.usefixtures("importable")
def test_products_of_matrices_may_be_made_in_tf32_where_the_gpu_can(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is a double: no machine of the tests has one."""
    from ts.torch_handler.base_handler import use_tensor_cores

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    try:
        use_tensor_cores()
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")
