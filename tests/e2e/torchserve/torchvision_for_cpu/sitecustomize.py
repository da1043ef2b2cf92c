"""Lets PyPI's torchvision, which is built for CUDA, be imported beside a PyTorch for the CPU; Python imports this as it starts.

Its operators' library cannot be loaded there, and then it fails over two of them that it expects: they are declared here.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_kept = []


class _DeclaresOperators(MetaPathFinder):
    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.origin:
            _declare_what_is_missing(Path(spec.origin).parent)
        return spec


def _declare_what_is_missing(package: Path) -> None:
    import torch

    try:
        for library in package.glob("_C*.so"):
            torch.ops.load_library(library)
    except OSError:
        operators = torch.library.Library("torchvision", "DEF")
        operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(operators)


sys.meta_path.insert(0, _DeclaresOperators())
