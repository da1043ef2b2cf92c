"""The machine of a measurement."""

import os
import platform
from pathlib import Path

import psutil

from dashboard.servers.selectors import servers


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_of() -> dict[str, object]:
    """Return the facts of this machine that decide its speed."""
    return {
        "cores": cores(),
        "processor": _processor(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "gpus": _gpus(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _gpus() -> object:
    """Return the GPUs in the last report of the bundled server."""
    for server in servers().filter(bundled=True):
        state = getattr(server, "state", None)
        return state.info.get("gpus", []) if state is not None else []
    return []
