"""One exported model with the answers of the tool that made it: what a program of this folder writes.

    <folder>/<case>/files/...    what a person would upload, under the names that the tool gave
    <folder>/<case>/case.json    who made it, and inputs with the outputs that they must give, as tensors of KServe V2

The programs run in environments of the tools, so nothing of Slipway is imported here.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

_DATATYPES = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "bool": "BOOL", "object": "BYTES",
} | {f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)}  # fmt: skip


class Case:
    """A case being made: files are written under `files`, then `served` or `refused` says what is to come of them."""

    def __init__(self, name: str, what: str, tools: str) -> None:
        """Tools: the names of packages, whose versions are noted."""
        self.folder = Path(sys.argv[1]) / name
        self.files = self.folder / "files"
        self.files.mkdir(parents=True)
        self._said: dict[str, Any] = {
            "what": what,
            "tools": [f"{tool} {version(tool).partition('+')[0]}" for tool in tools.split()],
        }

    def path(self, name: str) -> str:
        """Return where to write a file of that name."""
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
        """Write what the model must answer. classes: output -> the names of its classes. said: what a person is told."""
        self._write(
            inputs=_tensors(inputs),
            outputs=_tensors(outputs),
            tolerance=tolerance,
            classes=classes or {},
            said=said,
        )

    def refused(self, said: str) -> None:
        """Write with which words, at least, the files must be refused."""
        self._write(refused=said)

    def _write(self, **more: Any) -> None:
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in {**self._said, **more}.items()]
        (self.folder / "case.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(self.folder.name, flush=True)


def _tensors(arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [_tensor(name, np.asarray(array)) for name, array in arrays.items()]


def _tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    if array.dtype.kind == "U":
        array = array.astype(object)
    # Nine digits tell any FP32 from any other.
    data = [float(f"{value:.9g}") if isinstance(value, float) else value for value in array.ravel().tolist()]
    return {"name": name, "datatype": _DATATYPES[array.dtype.name], "shape": list(array.shape), "data": data}
