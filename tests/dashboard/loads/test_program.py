"""The load generator's program: a line for each window, the warm-up first, and one sentence if it cannot go on."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dashboard.loads.outcome import Outcome
from dashboard.loads.program import Plan, plan_from_json, plan_to_json, spread_of, windows
from dashboard.loads.requests import v2_binary
from tests.support.model_factory import onnx_identity
from tests.support.ports import HOST, free_port
from tests.support.serving_process import ROOT, ServerProcess

REQUEST = v2_binary("identity", {"INPUT0": np.ones((1, 4), np.float32)})
# A window in which no request is answered would not be stable, so none is as short as a busy machine may pause a process.
SHORT = {"warmup_s": 0.3, "window_s": 0.3, "most_windows": 4}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = tmp_path_factory.mktemp("program")
    onnx_identity(models, "identity")
    with ServerProcess(Path(models)) as server:
        yield server.http


def program(plan: Plan) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "dashboard.loads"],
        cwd=ROOT,
        input=plan_to_json(plan),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = Plan("host:1", [REQUEST], [1, 2.5], open_loop=True, spread=0.1, seed=3)
    assert plan_from_json(plan_to_json(plan)) == plan


def test_each_load_has_its_warm_up_and_its_windows(address: str) -> None:
    found = list(windows(Plan(address, [REQUEST], [1, 2], spread=10.0, least_windows=3, **SHORT)))
    assert [(one.load, one.number, one.stable) for one in found] == [
        (load, number, number == 3) for load in (1, 2) for number in range(4)
    ]
    assert all(one.outcome.requests > 0 and one.outcome.mean_ms > 0 for one in found)


def test_a_load_that_is_never_stable_ends_after_the_most_windows(address: str) -> None:
    found = list(windows(Plan(address, [REQUEST], [50], open_loop=True, spread=0.0, **SHORT)))
    assert [one.number for one in found] == [0, 1, 2, 3, 4]
    assert not found[-1].stable


def test_the_spread_is_that_of_throughput_or_latency_whichever_is_larger() -> None:
    steady = [Outcome(100, 1.0, 0, 1.0, p95, 3.0) for p95 in (1.0, 2.0, 3.0)]
    assert spread_of(steady) == 0.5
    assert spread_of(steady[:2]) != spread_of(steady[:2])  # NaN


def test_the_program_prints_a_line_of_json_for_each_window(address: str) -> None:
    done = program(Plan(address, [REQUEST], [1], spread=10.0, **SHORT))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["number"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["spread"] is None
    assert rows[1]["outcome"]["p99_ms"] > 0


def test_a_server_that_cannot_be_reached_is_one_sentence() -> None:
    done = program(Plan(f"{HOST}:{free_port()}", [REQUEST], [1]))
    assert done.returncode == 1
    assert done.stderr.startswith("the server cannot be reached: ")
    assert len(done.stderr.splitlines()) == 1
