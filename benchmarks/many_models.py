"""Measures the server with a repository of a thousand small models.

    python -m benchmarks.many_models --models 1000

The program reports the seconds until the server is ready, the median milliseconds of its index, and its share of a core while
idle. It measures explicit mode and poll mode. The exit status is 1 if the start takes more than 60 s, the index more than
50 ms, or the idle server more than 2 % of a core.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.machine import cpu_seconds
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ServerProcess

READY_S, INDEX_MS, IDLE_SHARE = 60.0, 50.0, 0.02
ONE_INSTANCE = """
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


@dataclass(frozen=True)
class Result:
    mode: str
    ready_s: float
    index_ms: float
    idle_share: float
    resident_mb: float

    @property
    def within_limits(self) -> bool:
        return self.ready_s < READY_S and self.index_ms < INDEX_MS and self.idle_share < IDLE_SHARE


def write_models(repository: Path, count: int) -> None:
    for number in range(count):
        onnx_scale(repository, f"model_{number:04}", extra=ONE_INSTANCE)


def measure(repository: Path, mode: str, idle_s: float, poll_s: float = 15.0) -> Result:
    """Measure the server in one mode. idle_s: the idle time to measure, which should cover several polls of the repository."""
    flags = [f"--model-control-mode={mode}", "--log-info=false"]
    flags += ["--load-model=*"] if mode == "explicit" else [f"--repository-poll-secs={poll_s}"]
    started = time.monotonic()
    with ServerProcess(repository, *flags, timeout_s=300) as server:
        ready = time.monotonic() - started
        index = [_index_ms(server) for _ in range(11)]
        before, since = cpu_seconds(server.pid), time.monotonic()
        time.sleep(idle_s)
        idle = (cpu_seconds(server.pid) - before) / (time.monotonic() - since)
        resident = psutil.Process(server.pid).memory_info().rss / 1e6
    return Result(mode, ready, statistics.median(index), idle, resident)


def _index_ms(server: ServerProcess) -> float:
    started = time.monotonic()
    status, rows = server.post("/v2/repository/index")
    took = (time.monotonic() - started) * 1000
    assert status == 200
    assert all(row["state"] == "READY" for row in rows)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--idle-seconds", type=float, default=35.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder), options.models)
        results = [measure(Path(folder), mode, options.idle_seconds) for mode in ("explicit", "poll")]
    print("| mode | ready s | index ms | idle, of a core | resident MB |\n| --- | ---: | ---: | ---: | ---: |")
    for one in results:
        print(f"| {one.mode} | {one.ready_s:.1f} | {one.index_ms:.1f} | {one.idle_share:.2%} | {one.resident_mb:.0f} |")
    sys.exit(not all(one.within_limits for one in results))


if __name__ == "__main__":
    main()
