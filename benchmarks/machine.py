"""The commit and the machine of a measurement, and the CPU time that a server used."""

import os
import platform
import subprocess
from pathlib import Path

import onnxruntime
import psutil

from serving.compiled.modules import build_folder
from tests.support.serving_process import ROOT, descendants


def commit(root: Path = ROOT) -> str:
    """Return the measured commit, with a note if files differ from it. Files in docs/ may differ: benchmarks write them."""
    try:
        name = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", ".", ":!docs")
    except (OSError, subprocess.CalledProcessError):
        return "unknown (no git checkout)"
    return f"{name} with changes that are not committed" if changed else name


def machine() -> str:
    """Return one line that describes the machine."""
    memory = psutil.virtual_memory().total / 1e9
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return (
        f"{_cpu()}, {os.cpu_count()} cores, {memory:.0f} GB memory, {system}; "
        f"Python {platform.python_version()}, ONNX Runtime {onnxruntime.__version__}; "
        f"Slipway's modules of a request's path {'compiled' if build_folder().is_dir() else 'interpreted'}"
    )


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process and its descendants, including those that have ended."""
    return sum(own_cpu_seconds(one) for one in (pid, *descendants(pid)))


def own_cpu_seconds(pid: int) -> float:
    """Return the user and system time of one process and of its children that have ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0  # the process has just ended, and the times of its parent include it
    return float(times.user + times.system + times.children_user + times.children_system)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"
