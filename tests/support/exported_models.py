"""Models that other tools exported (tests/exported_models), each with the answers of its tool, or the reason of its refusal.

`make formats` creates them again; tools/formats/makers/case.py describes their files.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import triton_to_np_dtype

FOLDER = Path(__file__).resolve().parents[1] / "exported_models"
Tensor = dict[str, Any]
"""A tensor in the JSON of V2."""


@dataclass(frozen=True)
class Exported:
    """said: words in the inspection's report on a served model. refused: words in the refusal of its files; "" if served."""

    name: str
    what: str
    tools: list[str]
    inputs: list[Tensor]
    outputs: list[Tensor]
    classes: dict[str, list[str]]
    tolerance: float
    said: str
    refused: str
    folder: Path

    @property
    def files(self) -> dict[str, Path]:
        """The files to upload, by the names that the tool gave them."""
        inside = self.folder / "files"
        return {path.relative_to(inside).as_posix(): path for path in sorted(inside.rglob("*")) if path.is_file()}

    def differences(self, client: grpc.InferenceServerClient, name: str = "") -> list[str]:
        """Send the inputs to a server. Return the differences between its answer and the tool's."""
        inputs = []
        for tensor in self.inputs:
            one = grpc.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
            inputs.append(one.set_data_from_numpy(_array(tensor)))
        answer = client.infer(name or self.name, inputs)
        return [wrong for expected in self.outputs if (wrong := self._difference(expected, answer))]

    def _difference(self, expected: Tensor, answer: grpc.InferResult) -> str:
        name, output = expected["name"], answer.get_output(expected["name"])
        if output is None:
            return f"{name} is missing"
        if output.datatype != expected["datatype"]:
            return f"{name} is {output.datatype}, not {expected['datatype']}"
        ours, theirs = answer.as_numpy(name).ravel(), _array(expected).ravel()
        if len(ours) != len(theirs):  # a number for each row has shape [rows] in the tool, [rows, 1] over the wire
            return f"{name} has {len(ours)} elements, not {len(theirs)}"
        exact = expected["datatype"] in ("BYTES", "BOOL")
        same = ours.tolist() == theirs.tolist() if exact else np.allclose(ours, theirs, self.tolerance, self.tolerance)
        return "" if same else f"{name} is {ours[:5].tolist()}, not {theirs[:5].tolist()}"


def _array(tensor: Tensor) -> np.ndarray:
    data = tensor["data"]
    if tensor["datatype"] == "BYTES":
        data = [text.encode() for text in data]
    return np.array(data, triton_to_np_dtype(tensor["datatype"])).reshape(tensor["shape"])


def exported_models(folder: Path = FOLDER) -> list[Exported]:
    """Return all exported models, sorted by name."""
    return [_read(path) for path in sorted(folder.glob("*/case.json"))]


def _read(path: Path) -> Exported:
    said = json.loads(path.read_text())
    return Exported(
        name=path.parent.name,
        what=said["what"],
        tools=said["tools"],
        inputs=said.get("inputs", []),
        outputs=said.get("outputs", []),
        classes=said.get("classes", {}),
        tolerance=said.get("tolerance", 0.0),
        said=said.get("said", ""),
        refused=said.get("refused", ""),
        folder=path.parent,
    )
