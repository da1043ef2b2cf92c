"""The memory and file descriptors of the processes of `manage.py up`, by task."""

import psutil

from benchmarks.soak.record import Usage

# Part of a command line -> the task. The first entry that matches is used.
TASKS = {
    "child_program/__main__.py": "Python children",
    "serving.workers.program": "frontend workers",
    "-m serving": "inference server",
    "daphne": "dashboard",
    "manage.py watch": "watch",
    "celery": "worker",
    "guardian": "guardian",
    "manage.py up": "manage.py up",
}


def task_of(process: psutil.Process) -> str:
    """Return the task of a process; "other" for a helper that runs for a short time."""
    line = " ".join(process.cmdline())
    return next((task for part, task in TASKS.items() if part in line), "other")


def found(pid: int) -> dict[str, list[psutil.Process]]:
    """Return task -> processes, for a process and its descendants."""
    tasks: dict[str, list[psutil.Process]] = {}
    top = psutil.Process(pid)
    for process in (top, *top.children(recursive=True)):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                tasks.setdefault(task_of(process), []).append(process)
        except psutil.Error:
            continue
    return tasks


def usage(pid: int) -> dict[str, Usage]:
    held: dict[str, Usage] = {}
    for task, processes in found(pid).items():
        for process in processes:
            try:
                resident, descriptors = process.memory_info().rss, process.num_fds()
            except psutil.Error:
                continue
            one = held.setdefault(task, Usage())
            one.processes += 1
            one.resident += resident
            one.descriptors += descriptors
    return held
