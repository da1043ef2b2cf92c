"""`make bench`: requests per second and latency beside a plain FastAPI server, in one run; writes docs/benchmarks.md.

python -m benchmarks [--seconds 5] [--rounds 3] [--output docs/benchmarks.md]
"""

import argparse
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from benchmarks import grpc_load, http_load, wrk
from benchmarks.closed_loop import Outcome
from benchmarks.page import PAGE, write_comparison
from benchmarks.report import model_alone_us, render
from benchmarks.result import Result
from benchmarks.servers import cpu_seconds, fastapi, slipway

CLIENTS = (1, 8, 32)
FEATURES = np.random.default_rng(0).standard_normal((1, 512)).astype(np.float32)


class Subject(NamedTuple):
    """One row of the report: a name, the process that serves it, and its load (clients, seconds) -> Result."""

    name: str
    pid: int
    load: Callable[[int, int], Result]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each number; the median counts")
    parser.add_argument("--output", type=Path, default=PAGE)
    arguments = parser.parse_args()
    busy = os.getloadavg()[0]
    with slipway() as server, fastapi() as (address, pid):
        subjects = [
            Subject("FastAPI, JSON", pid, _http(address, "/predict", _plain_json(), {})),
            Subject("Slipway, HTTP JSON", server.pid, _http(server.http, "/v2/models/mlp/infer", *_v2_json())),
            Subject("Slipway, HTTP binary", server.pid, _http(server.http, "/v2/models/mlp/infer", *_v2_binary())),
            Subject("Slipway, gRPC", server.pid, _grpc(server.grpc)),
        ]
        for subject in subjects:
            subject.load(8, 1)
        results = _run(subjects, arguments.seconds, arguments.rounds)
    text = render(results, CLIENTS, model_alone_us(), arguments.seconds, arguments.rounds, busy)
    write_comparison(arguments.output, text)
    print(text)


def _run(subjects: list[Subject], seconds: int, rounds: int) -> dict[tuple[str, int], Result]:
    """(name, clients) -> the round with the median throughput. The subjects take turns, so that noise hits all alike."""
    results: dict[tuple[str, int], Result] = {}
    for clients in CLIENTS:
        taken: dict[str, list[Result]] = {subject.name: [] for subject in subjects}
        for _ in range(rounds):
            for subject in subjects:
                taken[subject.name].append(_measure(subject, clients, seconds))
        for name, found in taken.items():
            results[name, clients] = sorted(found, key=lambda one: one.per_second)[len(found) // 2]
    return results


def _measure(subject: Subject, clients: int, seconds: int) -> Result:
    before = cpu_seconds(subject.pid)
    result = subject.load(clients, seconds)
    used = cpu_seconds(subject.pid) - before
    if result.failures:
        raise SystemExit(f"{subject.name}: {result.failures} of {result.requests} requests failed")
    measured = Result(**{**vars(result), "cpu_us": used * 1e6 / result.requests})
    print(f"{subject.name}, {clients} clients: {measured.per_second:.0f} requests/s, {measured.cpu_us:.0f} us CPU each")
    return measured


def _http(address: str, path: str, body: bytes, headers: dict[str, str]) -> Callable[[int, int], Result]:
    headers = {"Content-Type": "application/json"} | headers

    def load(clients: int, seconds: int) -> Result:
        if shutil.which("wrk"):
            return wrk.measure(address, path, body, headers, clients, seconds)
        return _result(
            http_load.measure(address, http_load.http_request("POST", path, body, headers), clients, seconds)
        )

    return load


def _grpc(address: str) -> Callable[[int, int], Result]:
    message = grpc_load.infer_message("mlp", {"INPUT": FEATURES})
    return lambda clients, seconds: _result(grpc_load.measure(address, message, clients, seconds))


def _result(outcome: Outcome) -> Result:
    requests = len(outcome.latencies)
    return Result(requests, outcome.seconds, outcome.failures, outcome.percentile_ms(50), outcome.percentile_ms(99))


def _plain_json() -> bytes:
    return orjson.dumps({"features": FEATURES[0]}, option=orjson.OPT_SERIALIZE_NUMPY)


def _v2_json() -> tuple[bytes, dict[str, str]]:
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [1, 512], "data": FEATURES[0]}
    return orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY), {}


def _v2_binary() -> tuple[bytes, dict[str, str]]:
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [1, 512], "parameters": {"binary_data_size": 2048}}
    outputs = [{"name": "OUTPUT", "parameters": {"binary_data": True}}]
    header = orjson.dumps({"inputs": [tensor], "outputs": outputs})
    return header + FEATURES.tobytes(), {"Inference-Header-Content-Length": str(len(header))}


if __name__ == "__main__":
    main()
