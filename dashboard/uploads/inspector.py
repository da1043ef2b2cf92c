"""Runs `python -m serving.inspect` as a confined program, with limits on its memory, time and written files.

This module imports no model and no framework: a file that crashes its reader, or makes it loop, ends only that process.
"""

import json
import os
import signal
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import IO, cast

from django.conf import settings

from dashboard.confinement.bounds import Bound, Limits, Outcome
from dashboard.confinement.program import nvidia_devices, run
from dashboard.confinement.promises import Promise
from dashboard.jobs.context import JobContext
from dashboard.models.upload_json import Proposal
from dashboard.shared.exceptions import Invalid

MAX_ANSWER_BYTES = 4 << 20
MAX_WRITE_BYTES = 1 << 30
_MAX_MESSAGE_BYTES = 64 << 20
_MAX_PROCESSES = 128 + 16 * (os.cpu_count() or 1)  # frameworks start threads for each core
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
    command = [sys.executable, "-m", "serving.inspect", str(version_dir), "--name", name]
    reads = [version_dir]
    if config_file is not None:
        command += ["--config", str(config_file)]
        reads.append(config_file)
    said: deque[str] = deque(maxlen=40)
    with tempfile.TemporaryDirectory(dir=version_dir.parent) as scratch, tempfile.TemporaryFile() as output:
        packages = link_packages(Path(scratch), "repository", "serving")
        ended = run(
            command,
            folder=Path(scratch),
            directory=packages,
            reads=[*reads, *(link.resolve() for link in packages.iterdir())],
            devices=nvidia_devices(),
            limits=inspection_limits(),
            environment=plain_environment(Path(scratch)),
            check=context.check_cancelled,
            on_line=said.append,
            output=output,
            # Files that can be code are read only for people who may upload code, so that an inspection goes on with
            # what the machine has.
            given_up=tuple(Promise),
        )
        for line in said:
            context.log(line)
        if ended.status != 0:
            raise Invalid(_reason(ended, list(said)))
        return _parsed(output)


def link_packages(scratch: Path, *names: str) -> Path:
    """Return a folder with these packages of the product alone: beside them may lie the data folder."""
    packages = scratch / "packages"
    packages.mkdir()
    for name in names:
        (packages / name).symlink_to(settings.BASE_DIR / name)
    return packages


def inspection_limits() -> Limits:
    return Limits(
        memory_bytes=settings.INSPECT_MEMORY_BYTES,
        cpu_seconds=settings.INSPECT_TIMEOUT,
        wall_seconds=settings.INSPECT_TIMEOUT,
        processes=_MAX_PROCESSES,
        file_bytes=MAX_WRITE_BYTES,
        output_bytes=_MAX_MESSAGE_BYTES,
    )


def plain_environment(scratch: Path) -> dict[str, str]:
    """Return an environment without the dashboard's secrets, and with a home folder that is removed afterwards."""
    kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return {**environment, "HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}


def _reason(ended: Outcome, said: list[str]) -> str:
    if ended.bound == Bound.WALL:
        return f"the inspection took longer than {settings.INSPECT_TIMEOUT} seconds"
    if ended.bound is not None or ended.status == -signal.SIGKILL:
        return "the inspection needed more time or memory than it is allowed"
    if ended.status < 0:
        return f"the model file made its reader crash ({signal.Signals(-ended.status).name})"
    if ended.status == 1 and len(said) == 1:
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
