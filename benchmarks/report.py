"""The measurements as docs/benchmarks.md, and what they are measured against: the machine, the model alone."""

import datetime
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.result import Result
from tests.support.model_factory import onnx_mlp

BASELINE = "FastAPI, JSON"

TEMPLATE = """\
# Benchmarks

Written by `make bench` on {date}. A multilayer perceptron 512-1024-1024-10 (FP32) on the CPU, one row for each request.

* **Slipway**: the model in ONNX Runtime with one thread, one instance, `dynamic_batching {{ }}`.
* **FastAPI**: `benchmarks/fastapi_baseline.py` under uvicorn, one process: the same layers in PyTorch with one thread, one
  forward pass for each request.

All rows of a table come from one run, in which the servers took turns; each number is the median of {rounds} measurements
of {seconds} s. Figures of different runs or machines do not compare. Each client has one request under way.

Machine: {machine}, PyTorch {torch}.
Load: {http_client} for HTTP, `benchmarks/grpc_load.py` for gRPC, on the same machine: they take CPU from the servers.
Load average of the machine before the run: {busy:.1f}.

{tables}
Server CPU is the user and system time of the server's process, all threads, divided by the requests; it holds the model's
own computing, which in this process takes {batch1:.0f} us for one row and {batch16:.0f} us a row in batches of 16, about what
32 clients bring together.

Against FastAPI with 32 clients: {ratios}.
"""


def render(
    results: Mapping[tuple[str, int], Result],
    clients: Sequence[int],
    alone_us: Mapping[int, float],
    seconds: int,
    rounds: int,
    busy: float,
) -> str:
    """The page."""
    most = clients[-1]
    names = list(dict.fromkeys(name for name, _ in results))
    base = results[BASELINE, most].per_second
    ratios = [f"{name} {results[name, most].per_second / base:.1f} x" for name in names if name != BASELINE]
    return TEMPLATE.format(
        date=datetime.date.today().isoformat(),
        seconds=seconds,
        rounds=rounds,
        busy=busy,
        machine=machine(),
        torch=version("torch"),
        http_client="wrk with one thread" if shutil.which("wrk") else "`benchmarks/http_load.py`",
        tables="\n".join(_table(results, names, count) for count in clients),
        batch1=alone_us[1],
        batch16=alone_us[16],
        ratios=", ".join(ratios),
    )


def _table(results: Mapping[tuple[str, int], Result], names: Sequence[str], clients: int) -> str:
    lines = [
        f"## {clients} client{'s' if clients > 1 else ''}\n",
        "| server | requests/s | p50 ms | p99 ms | server CPU us | against FastAPI |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    base = results[BASELINE, clients].per_second
    for name in names:
        one = results[name, clients]
        lines.append(
            f"| {name} | {one.per_second:,.0f} | {one.p50_ms:.2f} | {one.p99_ms:.2f} | {one.cpu_us:.0f} "
            f"| {one.per_second / base:.1f} x |"
        )
    return "\n".join(lines) + "\n"


def model_alone_us(seconds: float = 1.0) -> dict[int, float]:
    """Batch size -> microseconds for one row, in this process, on one thread."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        onnx_mlp(Path(folder), "mlp")
        session = onnxruntime.InferenceSession(
            Path(folder, "mlp", "1", "model.onnx"), settings, providers=["CPUExecutionProvider"]
        )
    found = {}
    for size in (1, 16):
        rows = np.ones((size, 512), np.float32)
        count = 0
        start = time.process_time()
        while time.process_time() - start < seconds:
            session.run(None, {"INPUT": rows})
            count += size
        found[size] = (time.process_time() - start) * 1e6 / count
    return found


def machine() -> str:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return (
        f"{_cpu()}, {os.cpu_count()} cores, {memory:.0f} GB memory, {system}; "
        f"Python {platform.python_version()}, ONNX Runtime {onnxruntime.__version__}"
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"
