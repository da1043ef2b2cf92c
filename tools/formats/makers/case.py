"""An exported model with the answers of its tool. The programs of this folder write such cases.

    <folder>/<case>/files/...    the files to upload, with the names that the tool gave them
    <folder>/<case>/case.json    the tools that made the model, and inputs with their expected outputs, as tensors of KServe V2

The programs run in the environments of the tools, so this module imports nothing of Slipway.
"""

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

_DATATYPES = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "bool": "BOOL", "object": "BYTES",
} | {f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)}  # fmt: skip


class Case:
    """A case to write: a program writes files under `files`, then calls `served` or `refused` with the expected result."""

    def __init__(self, name: str, what: str, tools: str) -> None:
        """tools: the names of packages, separated by spaces; their versions are written, too."""
        self.folder = Path(sys.argv[1]) / name
        self.files = self.folder / "files"
        self.files.mkdir(parents=True)
        self._said: dict[str, Any] = {
            "what": what,
            "tools": [f"{tool} {_version(tool)}" for tool in tools.split()],
        }

    def path(self, name: str) -> str:
        """Return the path for a file with this name."""
        path = self.files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(path)

    def served(
        self,
        inputs: dict[str, np.ndarray],
        outputs: dict[str, np.ndarray],
        *,
        tolerance: float = 1e-5,
        classes: dict[str, list[str]] | None = None,
        said: str = "",
    ) -> None:
        """Write the expected answer. classes: output -> the names of its classes. said: words that the inspection must say."""
        self._write(
            inputs=_tensors(inputs),
            outputs=_tensors(outputs),
            tolerance=tolerance,
            classes=classes or {},
            said=said,
        )

    def refused(self, said: str) -> None:
        """Write the words that the refusal of the files must contain."""
        self._write(refused=said)

    def _write(self, **more: Any) -> None:
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in {**self._said, **more}.items()]
        (self.folder / "case.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(self.folder.name, flush=True)


def _version(tool: str) -> str:
    """Return the version of a package; ONNX Runtime is that of the product, which may be its build for GPUs."""
    try:
        found = version(tool)
    except PackageNotFoundError:
        found = version(f"{tool}-gpu")
    return found.partition("+")[0]


def _tensors(arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [_tensor(name, np.asarray(array)) for name, array in arrays.items()]


def _tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    if array.dtype.kind == "U":
        array = array.astype(object)
    # With nine digits, any two FP32 numbers differ.
    data = [float(f"{value:.9g}") if isinstance(value, float) else value for value in array.ravel().tolist()]
    return {"name": name, "datatype": _DATATYPES[array.dtype.name], "shape": list(array.shape), "data": data}
