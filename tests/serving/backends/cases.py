"""The models of the contract suite: the same small functions written for each array backend."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.support import model_factory


class Case(NamedTuple):
    """`identity` and `add_sub` write a model with batching and return its folder; `filename` is its file.

    integer_parameter: the name of a parameter that the backend reads as an integer. model_of: what an instance holds and must
    not hold once it is closed. no_rows: whether a batch may have none (torch.export fixes a least size).
    """

    name: str
    filename: str
    identity: Callable[[Path, str], Path]
    add_sub: Callable[[Path], Path]
    datatypes: tuple[str, ...]
    integer_parameter: str
    model_of: Callable[[Any], object]
    no_rows: bool = True


class Identity(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a


class AddSub(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b


_NUMERIC = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64",
)  # fmt: skip

_OF_TORCHSCRIPT = tuple(name for name in _NUMERIC if name not in ("UINT16", "UINT32", "UINT64"))


def _torch_dtype(datatype: str) -> torch.dtype:
    from serving.backends.pytorch.tensors import DATATYPES

    return {name: dtype for dtype, name in DATATYPES.items()}[datatype]


def _text(folder: Path, inputs: list[tuple[str, str]], outputs: list[tuple[str, str]]) -> None:
    text = f'name: "{folder.name}"\nbackend: "pytorch"\nmax_batch_size: 8\n'
    for kind, tensors in (("input", inputs), ("output", outputs)):
        text += model_factory.tensors_text(kind, [(name, datatype, [4]) for name, datatype in tensors])
    model_factory.write_config(folder, text)


def _script_identity(root: Path, datatype: str) -> Path:
    model_factory.write_torchscript(root, "identity", Identity())
    _text(root / "identity", [("INPUT0", datatype)], [("OUTPUT0", datatype)])
    return root / "identity"


def _script_add_sub(root: Path) -> Path:
    model_factory.write_torchscript(root, "add_sub", AddSub())
    names = ("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1")
    _text(root / "add_sub", *([(name, "FP32") for name in group] for group in names))
    return root / "add_sub"


def write_export(root: Path, name: str, module: torch.nn.Module, *example: torch.Tensor, most: int = 64) -> Path:
    """<root>/<name>/1/model.pt2, with a free first dimension of at most `most`."""
    folder = root / name / "1"
    folder.mkdir(parents=True)
    batch = torch.export.Dim("batch", min=1, max=most)
    shapes = tuple({0: batch} for _ in example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module.eval(), example, dynamic_shapes=shapes)
        torch.export.save(program, folder / "model.pt2")
    return root / name


def _export_identity(root: Path, datatype: str) -> Path:
    class Clone(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return a.clone()

    folder = write_export(root, "identity", Clone(), torch.zeros((2, 4), dtype=_torch_dtype(datatype)))
    _text(folder, [("INPUT0", datatype)], [("OUTPUT0", datatype)])
    return folder


def _export_add_sub(root: Path) -> Path:
    folder = write_export(root, "add_sub", AddSub(), torch.ones(2, 4), torch.ones(2, 4))
    names = ("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1")
    _text(folder, *([(name, "FP32") for name in group] for group in names))
    return folder


_PYTORCH: tuple[str, Callable[[Any], object]] = ("INTRA_OP_THREAD_COUNT", lambda instance: instance._model.call)
CASES = (
    Case(
        "onnxruntime",
        "model.onnx",
        lambda root, datatype: model_factory.onnx_identity(root, datatype=datatype, dims=[4]),
        lambda root: model_factory.onnx_add_sub(root),
        (*_NUMERIC, "BYTES"),
        "intra_op_thread_count",
        lambda instance: instance._session,
    ),
    Case("torchscript", "model.pt", _script_identity, _script_add_sub, _OF_TORCHSCRIPT, *_PYTORCH),
    Case("torch_export", "model.pt2", _export_identity, _export_add_sub, _NUMERIC, *_PYTORCH, no_rows=False),
)
