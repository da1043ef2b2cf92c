"""Measures whether the server's memory grows when models are loaded and unloaded.

    python -m benchmarks.load_cycles --cycles 500 [--backend onnxruntime ...]

Each cycle loads a model, sends it one request and unloads it. The resident memory of the server and its child processes is read
after the unload has ended, as the median of the last ten cycles. The exit status is 1 if it has grown by over 5 % since
cycle 50.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.model_factory import (
    onnx_mlp,
    onnx_scale,
    python_scale,
    tensors_text,
    torchscript_add_sub,
    write_config,
)
from tests.support.serving_process import ServerProcess, wait_until

LIMIT = 1.05
WARMED_UP = 50
WINDOW = 10
TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}


@dataclass
class Cycles:
    """resident: the bytes of resident memory after each cycle."""

    backend: str
    seconds: float = 0.0
    resident: list[int] = field(default_factory=list)

    def median_before(self, cycle: int) -> float:
        return statistics.median(self.resident[max(0, cycle - WINDOW) : cycle])

    @property
    def growth(self) -> float:
        """Return the relative growth since cycle 50, or since the first third of the cycles if there are fewer."""
        return self.median_before(len(self.resident)) / self.median_before(min(WARMED_UP, len(self.resident) // 3)) - 1


def _onnxruntime(repository: Path) -> dict[str, object]:
    onnx_mlp(repository, "model", (512, 1024, 10))
    return {"name": "INPUT", "datatype": "FP32", "shape": [1, 512], "data": [1.0] * 512}


def _pytorch(repository: Path) -> list[dict[str, object]]:
    torchscript_add_sub(repository, "model")
    return [{"name": f"INPUT__{number}", "datatype": "FP32", "shape": [1, 4], "data": [1.0] * 4} for number in range(2)]


def _python(repository: Path) -> dict[str, object]:
    python_scale(repository, "model")
    return TENSOR


def _ensemble(repository: Path) -> dict[str, object]:
    onnx_scale(repository, "step")
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUT", "FP32", [1])])
    maps = 'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUT" }'
    step = f'ensemble_scheduling {{ step [ {{ model_name: "step" model_version: -1 {maps} }} ] }}'
    write_config(repository / "model", f'name: "model" platform: "ensemble" max_batch_size: 8 {tensors} {step}')
    (repository / "model" / "1").mkdir()
    return TENSOR


MODELS: dict[str, Callable[[Path], object]] = {
    "onnxruntime": _onnxruntime,
    "pytorch": _pytorch,
    "python": _python,
    "ensemble": _ensemble,
}


def measure(backend: str, cycles: int) -> Cycles:
    """Run the cycles on a separate server."""
    found = Cycles(backend)
    with tempfile.TemporaryDirectory() as folder:
        inputs = MODELS[backend](Path(folder))
        body = {"inputs": inputs if isinstance(inputs, list) else [inputs]}
        with ServerProcess(folder, "--model-control-mode=explicit", "--log-info=false") as server:
            started = time.monotonic()
            for _ in range(cycles):
                _cycle(server, body)
                found.resident.append(resident(server.pid))
            found.seconds = time.monotonic() - started
    return found


def _cycle(server: ServerProcess, body: object) -> None:
    for path, sent in (
        ("repository/models/model/load", {}),
        ("models/model/infer", body),
        ("repository/models/model/unload", {"parameters": {"unload_dependents": True}}),
    ):
        status, answer = server.post(f"/v2/{path}", sent)
        assert status == 200, (path, answer)
    wait_until(lambda: _is_gone(server), what="the end of unloading")


def _is_gone(server: ServerProcess) -> bool:
    """Return whether the model is unloaded and its memory is freed, which is the last step of an unload."""
    rows = server.post("/v2/repository/index")[1]
    return all(row.get("state", "UNAVAILABLE") == "UNAVAILABLE" for row in rows)


def resident(pid: int) -> int:
    """Return the resident bytes of a process and its children."""
    process = psutil.Process(pid)
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            total += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--backend", choices=MODELS, action="append")
    options = parser.parse_args()
    grown = False
    print(
        "| backend | MB after 50 | MB at the end | grown by | s for each cycle |\n| --- | ---: | ---: | ---: | ---: |"
    )
    for backend in options.backend or MODELS:
        found = measure(backend, options.cycles)
        first, last = found.median_before(WARMED_UP) / 1e6, found.median_before(options.cycles) / 1e6
        each = found.seconds / options.cycles
        print(f"| {backend} | {first:.1f} | {last:.1f} | {found.growth:.1%} | {each:.3f} |", flush=True)
        grown = grown or found.growth > LIMIT - 1
    sys.exit(grown)


if __name__ == "__main__":
    main()
