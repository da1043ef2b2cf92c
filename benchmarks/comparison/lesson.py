"""Runs framework_benchmark.py unchanged, the script with which a lesson compares FastAPI, TorchServe and Triton.

The script calls three fixed addresses: FastAPI on port 8080, TorchServe on 8085, and a Triton with a model named "model" on
8000. Slipway runs in place of Triton. The script does not check the status of an answer, so this module first checks
an answer of each server.
"""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.comparison.encodings import plain, v2
from benchmarks.folders import REPOSITORY
from benchmarks.servers import process
from benchmarks.servers.commands import fastapi_command, run_peer, torchserve_command
from benchmarks.servers.environments import CannotInstall
from benchmarks.servers.models import write
from benchmarks.servers.process import CannotStart

SCRIPT = Path(__file__).with_name("framework_benchmark.py")
FASTAPI, TORCHSERVE, TRITON = 8080, 8085, 8000  # the ports that the script calls


def run() -> dict[str, str]:
    """Return the output of the script as "output", or as "reason" the reason why the script could not run."""
    try:
        with ExitStack() as stack:
            torchserve = plain("/predictions/model")[0].request
            stack.enter_context(run_peer("fastapi", fastapi_command(1), plain()[0].request, FASTAPI))
            stack.enter_context(run_peer("torchserve", torchserve_command("model"), torchserve, TORCHSERVE))
            slipway = process.slipway(write(REPOSITORY, ["model"]), ["model"], [f"--http-port={TRITON}"])
            running = stack.enter_context(slipway)
            process.ask(running.http, v2("model")[0].request)
            return {"output": _output()}
    except (CannotInstall, CannotStart, OSError, subprocess.SubprocessError) as error:
        return {"reason": str(error)}


def _output() -> str:
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    print(done.stdout, flush=True)
    return done.stdout
