"""Lets PyPI's torchvision, which is built for CUDA, be imported beside a PyTorch for the CPU.

Its library of operators cannot be loaded there, and torchvision describes two of the operators at import, which fails while
they are not declared. If an import fails for that reason alone, they are declared and the import is repeated; a call of one of
them fails as before.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_OPERATORS = ("nms", "qnms")
_SCHEMA = "{}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_PACKAGE = "torchvision"

_declared: list[object] = []  # keeps the library of operators for the life of the process


def find_torchvision_operators() -> None:
    """Watch for the import of torchvision from now on, which costs nothing without one."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds torchvision as Python does, once, and loads it again where the first load fails for its operators."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_twice(module: ModuleType) -> None:
                if (
                    self in sys.meta_path
                ):  # not before: transformers looks whether there is a torchvision, and imports it later
                    sys.meta_path.remove(self)
                try:
                    load(module)
                except RuntimeError as error:
                    if f"operator {_PACKAGE}::" not in str(error):
                        raise
                    _declare_operators()
                    for loaded in [one for one in sys.modules if one.startswith(f"{_PACKAGE}.")]:
                        del sys.modules[loaded]
                    load(module)

            spec.loader.exec_module = load_twice  # type: ignore[method-assign]
        return spec


def _declare_operators() -> None:
    import torch

    library = torch.library.Library(_PACKAGE, "DEF")
    for name in _OPERATORS:
        library.define(_SCHEMA.format(name))
    _declared.append(library)
