"""Makes PyPI's torchvision, which is built for CUDA, importable together with a PyTorch for the CPU.

torchvision's library of operators cannot be loaded with such a PyTorch. At import, torchvision describes two of the operators,
which fails because they are not declared. If an import fails only for that reason, this module declares the operators and
repeats the import. A call of one of these operators still fails.
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
    """Watch for the import of torchvision from now on. The watch costs nothing if torchvision is never imported."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds torchvision once, as Python does, and loads it again if the first load fails because of its operators."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_twice(module: ModuleType) -> None:
                if (
                    self in sys.meta_path
                ):  # only now: transformers first checks whether torchvision exists, and imports it later
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
