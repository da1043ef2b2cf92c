"""Checks of this machine. None needs the database."""

import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.utils import timezone

from dashboard.alerts.facts import Facts
from dashboard.alerts.table import default_kind
from dashboard.doctor.check import NotMade
from dashboard.servers.additions import listeners, ports_by_host
from dashboard.shared import heartbeat
from dashboard.shared.environment import BASE_DIR
from dashboard.shared.startup import sentence
from dashboard.supervisor.commands import PARTS, ports
from dashboard.supervisor.preflight import check_ports
from dashboard.web.static_files import StaticFiles

LOCKS = ("server", "torch", "dashboard", "examples")  # in requirements/; the others are installed where they are wanted
REQUIREMENTS = BASE_DIR / "requirements"
TEMPLATES = BASE_DIR / "templates"
MOUNTS = Path("/proc/self/mountinfo")
DRIVER = Path("/proc/driver/nvidia/version")
_SECRETS = ("secret_key", "control_key", "infer_key", "server.args", "db.sqlite3")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)[\s\\]*(;?)", re.MULTILINE)
_STATIC = re.compile(r"""{%\s*static\s+["']([^"']+)["']\s*%}""")
_NAMED = 3  # so many are named, and the others counted
_GPU_TIMEOUT_S = 120.0
_LOOK_AT_GPU = "import torch; print(torch.version.cuda or '-', torch.cuda.is_available())"
_LATE_S = 3  # NFS shows the times of files late by up to so many seconds
_NFS_LATE_S = 60  # by default


def named(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def of_alerts(*kinds: str) -> Callable[[], Iterator[str]]:
    """Return a check that tells what these alerts would tell."""

    def find() -> Iterator[str]:
        facts = Facts(timezone.now())
        for kind in map(default_kind, kinds):
            for found in kind.find(facts):
                # A title may begin with a name, which keeps its small letter.
                name = ("Model " if kind.of_model else "Process ") if found.title[0].islower() else ""
                detail = f"{sentence(found.detail)} " if found.detail else ""
                yield f"{name}{found.title}. {detail}{kind.do}"

    return find


class Folder(NamedTuple):
    path: Path
    words: str


def _folders() -> list[Folder]:
    """Return the data folder, and the shared folder if it is another one."""
    found = [Folder(settings.DATA_DIR, "data folder (SLIPWAY_DATA)")]
    if settings.SHARED_DIR != settings.DATA_DIR:
        found.append(Folder(settings.SHARED_DIR, "shared folder (SLIPWAY_SHARED)"))
    return found


def packages() -> Iterator[str]:
    missing, other = [], []
    for name, pinned in _pins().items():
        try:
            found = version(name).partition("+")[0]  # without the label of a build, such as +cpu
        except PackageNotFoundError:
            if "" in pinned:
                missing.append(name)
            continue
        if found not in pinned:
            other.append(f"{name} {found} (not {' or '.join(filter(None, pinned))})")
    what = "run make, or pip install -r requirements.txt, in the environment of Slipway, and start it again"
    if missing:
        yield f"Python packages are missing: {named(missing)}; {what}"
    if other:
        yield f"Python packages are not those of this release: {named(other)}; {what}"


def _pins() -> dict[str, list[str]]:
    """Return the versions that the locks pin of each package, and "" if every machine needs it. A marker may choose one."""
    found: dict[str, list[str]] = {}
    for lock in LOCKS:
        with suppress(FileNotFoundError):
            for name, pinned, marker in _PIN.findall((REQUIREMENTS / f"{lock}.txt").read_text()):
                found.setdefault(name, []).extend([pinned] if marker else [pinned, ""])
    return found


def static_files() -> Iterator[str]:
    files = StaticFiles()
    wanted = {name for path in TEMPLATES.rglob("*.html") for name in _STATIC.findall(path.read_text())}
    missing = sorted(name for name in wanted if files.get(name) is None)
    if missing:
        yield f"Files of the pages are missing: {named(missing)}; install this release again"


def rights() -> Iterator[str]:
    for folder, words in _folders():
        parts = [folder, *(path for path in sorted(folder.iterdir()) if path.is_dir())] if _usable(folder) else [folder]
        closed = [f"'{path.name}'" for path in parts if not _usable(path)]
        if closed:
            yield (
                f"This account may not use {named(closed)} of the {words}: give the folder and all in it to the account that "
                "runs Slipway, with chown -R"
            )
    in_data = [settings.DATA_DIR / name for name in _SECRETS]
    for path in [*in_data, Path(settings.AUTH_FILE)]:
        with suppress(OSError):
            # Nobody else reaches a file in a folder that is closed to them.
            if path.stat().st_mode & 0o044 and path.parent.stat().st_mode & 0o011:
                yield f"Other accounts of this machine may read {path.name}: run chmod 600 on it, and chmod 700 on its folder"


def _usable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)


def writing() -> Iterator[str]:
    what = {
        errno.ENOSPC: "its disk is full; free some space",
        errno.EDQUOT: "the quota of this account is used up; free some space",
        errno.EROFS: "its file system is read-only; look for errors of the disk, and mount it for writing",
    }
    for folder, words in _folders():
        try:
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            reason = what.get(error.errno or 0, f"{error.strerror}; give it to the account that runs Slipway")
            yield f"The {words} cannot be written: {reason}"


def shared_folder() -> Iterator[str]:
    if settings.SHARED_DIR == settings.DATA_DIR:
        raise NotMade("SLIPWAY_SHARED is not set")
    kind, options = _mount(settings.SHARED_DIR.resolve())
    if not kind.startswith("nfs"):
        return
    if options.get("vers", "4").startswith(("2", "3")):
        yield f"The shared folder is mounted with NFS {options['vers']}, whose locks may fail: mount it with vers=4.2"
    late_s = 0 if "noac" in options else int(options.get("acregmax", _NFS_LATE_S))
    if late_s > _LATE_S:
        yield (
            f"The mount of the shared folder shows changes up to {late_s} s late, so that a removed token still infers: mount "
            "it with actimeo=1"
        )


def _mount(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the type of a folder's file system, and the options of its mount.

    Source: Linux, Documentation/filesystems/proc.rst, 3.5 /proc/<pid>/mountinfo.
    """
    best, found = -1, ("", "")
    for line in MOUNTS.read_text().splitlines():
        fields = line.split()
        end = fields.index("-")
        place = Path(fields[4].encode().decode("unicode_escape"))
        if folder.is_relative_to(place) and len(place.parts) >= best:
            best, found = len(place.parts), (fields[end + 1], f"{fields[5]},{fields[end + 3]}")
    pairs = (option.partition("=") for option in found[1].split(","))
    return found[0], {name: value for name, _, value in pairs}


def free_ports() -> Iterator[str]:
    if any(heartbeat.lives(one) for one in heartbeat.processes_here()):
        raise NotMade("Slipway runs on this data folder and listens on them")
    check_ports(settings.DASHBOARD_HOST, ports(PARTS))
    for host, own in ports_by_host(listeners()).items():
        check_ports(host, own)
    return iter(())


def gpu() -> Iterator[str]:
    if not DRIVER.exists():
        raise NotMade("this machine has no NVIDIA driver")
    command = [sys.executable, "-c", _LOOK_AT_GPU]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GPU_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        yield "The GPU does not answer: look at nvidia-smi and at the kernel's messages, and restart the machine"
        return
    cuda, _, works = done.stdout.strip().rpartition(" ")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        yield f"PyTorch cannot be imported ({last[:200]}): install the packages of this release again"
    elif cuda == "-":
        yield "PyTorch is its build for CPUs, and the machine has a GPU: install PyPI's build, with pip install torch"
    elif works != "True":
        yield f"PyTorch's CUDA {cuda} does not run with the NVIDIA driver: update the driver, or install an older CUDA build"
