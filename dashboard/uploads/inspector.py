"""Runs `python -m serving.inspect` in a separate process, with limits on its memory, time and written files.

This module imports no model and no framework: a file that crashes its reader, or makes it loop, ends only that process.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, cast

from django.conf import settings

from dashboard.jobs.context import JobContext
from dashboard.models.upload_json import Proposal
from dashboard.shared.exceptions import Invalid

MAX_ANSWER_BYTES = 4 << 20
MAX_WRITE_BYTES = 1 << 30
_POLL_SECONDS = 0.5
# The child sets its limits before it reads the model. RLIMIT_DATA counts written memory, because CUDA reserves address
# space freely.
_LAUNCHER = """
import resource, runpy, sys
memory, seconds, size = map(int, sys.argv[1:4])
for limit, value in (("DATA", memory), ("CPU", seconds), ("FSIZE", size), ("CORE", 0)):
    number = getattr(resource, "RLIMIT_" + limit)
    hard = resource.getrlimit(number)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))
sys.argv = ["serving.inspect", *sys.argv[4:]]
runpy.run_module("serving.inspect", run_name="__main__", alter_sys=True)
"""
_DEFAULTS: Proposal = {
    "format": "unknown",
    "backend": "",
    "filename": "",
    "inputs": [],
    "outputs": [],
    "names": [],
    "executes_code": True,
    "problems": [],
    "config": "",
}


def run_inspector(version_dir: Path, *, name: str, config_file: Path | None, context: JobContext) -> Proposal:
    """Return the report of serving.inspect about a folder of model files. Raises Invalid if there is no report."""
    command = [str(version_dir), "--name", name]
    if config_file is not None:
        command += ["--config", str(config_file)]
    with tempfile.TemporaryDirectory(dir=version_dir.parent) as scratch, tempfile.TemporaryFile() as output:
        with tempfile.TemporaryFile() as errors:
            status = _run(command, Path(scratch), output, errors, context)
            said = _tail(errors)
        for line in said:
            context.log(line)
        if status != 0:
            raise Invalid(_reason(status, said))
        return _parsed(output)


def _run(command: list[str], scratch: Path, output: IO[bytes], errors: IO[bytes], context: JobContext) -> int:
    limits = (settings.INSPECT_MEMORY_BYTES, settings.INSPECT_TIMEOUT, MAX_WRITE_BYTES)
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, *map(str, limits), *command],
        cwd=settings.BASE_DIR,
        env=_environment(scratch),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )
    try:
        _wait(process, context)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode


def _wait(process: subprocess.Popen[bytes], context: JobContext) -> None:
    deadline = time.monotonic() + settings.INSPECT_TIMEOUT
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)
            return
        context.check_cancelled()
        if time.monotonic() > deadline:
            raise Invalid(f"the inspection took longer than {settings.INSPECT_TIMEOUT} seconds")


def _environment(scratch: Path) -> dict[str, str]:
    """Return an environment without the dashboard's secrets, and with a home folder that is removed afterwards."""
    kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return {**environment, "HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}


def _tail(errors: IO[bytes]) -> list[str]:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 8192))
    return errors.read().decode(errors="replace").splitlines()[-40:]


def _reason(status: int, said: list[str]) -> str:
    if -status in (signal.SIGKILL, signal.SIGXCPU):
        return "the inspection needed more time or memory than it is allowed"
    if status < 0:
        return f"the model file made its reader crash ({signal.Signals(-status).name})"
    if status == 1 and len(said) == 1:
        return said[0]
    return "the file could not be inspected; the job's log has the reader's own words"


def _parsed(output: IO[bytes]) -> Proposal:
    output.seek(0)
    text = output.read(MAX_ANSWER_BYTES + 1)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or len(text) > MAX_ANSWER_BYTES:
        raise Invalid("the inspection gave no answer that can be read")
    return cast(Proposal, {**_DEFAULTS, **answer})
