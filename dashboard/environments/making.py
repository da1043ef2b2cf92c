"""Makes an environment: once, by one process at a time, whole or not at all."""

import contextlib
import fcntl
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dashboard.environments.locks import Lock, product_packages
from dashboard.shared.exceptions import DashboardError, StorageFull, Unavailable

WHOLE = "whole"  # an empty file, written last: without it the folder is what a killed process left
IN_USE = "in-use.lock"
_POLL_SECONDS = 0.5
_KEPT_LINES = 200
_REFUSAL = re.compile(r"Could not fetch URL .*")
_FETCHING = re.compile(r"Collecting ([\w.-]+?)==|Processing (?:\S*/)?([\w.]+)-")  # from an index, from a folder

Tell = Callable[[float, str], None]
"""Is called with percent and a sentence, twice a second or more. What it raises ends the making, and nothing stays."""


@dataclass(frozen=True, slots=True)
class Environment:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """Return the variables for a process: PATH begins with the environment's programs, and the product's are removed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return {**kept, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(self.folder)}


@contextlib.contextmanager
def environment(lock: Lock, root: Path, tell: Tell) -> Iterator[Environment]:
    """Give the environment of a lock for a block, made first if it is not there. Nothing removes it during the block.

    Raises Unavailable and StorageFull, with one sentence, and whatever `tell` raises.
    """
    root.mkdir(parents=True, exist_ok=True)
    folder = root / lock.folder_name
    with folder.with_suffix(".lock").open("w") as making:
        _wait_for(making, lock, tell)
        if not (folder / WHOLE).exists():
            _make(folder, lock, making, tell)
        used = (folder / IN_USE).open("a")
        fcntl.flock(used, fcntl.LOCK_SH)
    with used:
        tell(100, f"The environment '{lock.name}' is ready.")
        yield Environment(folder)


def is_ready(lock: Lock, root: Path) -> bool:
    """Return whether the environment is there, so that nothing has to be fetched."""
    return (root / lock.folder_name / WHOLE).exists()


def _wait_for(making: IO[str], lock: Lock, tell: Tell) -> None:
    while True:
        try:
            fcntl.flock(making, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            tell(0, f"Another job makes the environment '{lock.name}'.")
            _pause(_POLL_SECONDS)


def _pause(seconds: float) -> None:
    """Wait without using the processor."""
    with selectors.DefaultSelector() as nothing:
        nothing.select(seconds)


def _make(folder: Path, lock: Lock, making: IO[str], tell: Tell) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if lock.missing:
            names = ", ".join(lock.missing)
            raise Unavailable(f"{names} is missing in the product's own environment: install {lock.remedy}")
        step = f"Making the environment '{lock.name}'."
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        if (lines := _run(command, making, lambda line: None, lambda: tell(0, step))) is not None:
            raise sentence_of("\n".join(lines), lock)
        if lock.entries:
            _install(folder, lock, making, tell)
        if lock.borrowed:  # at the end of sys.path: the environment's own packages go first
            packages = next(folder.glob("lib/python*/site-packages"))
            (packages / "product.pth").write_text(f"{product_packages()}\n")
        (folder / WHOLE).touch()
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise sentence_of(str(error), lock) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _install(folder: Path, lock: Lock, making: IO[str], tell: Tell) -> None:
    """Fetch and install the entries of a lock by pip, which compares every file with its hash."""
    wanted = folder / "requirements.txt"
    wanted.write_text("\n".join(lock.entries.values()) + "\n")
    strict = ["--require-hashes", "--only-binary=:all:"] if lock.hashed else []
    python = str(folder / "bin" / "python")
    # --no-deps: the lock is complete, and what it lacks is borrowed.
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--progress-bar=off",
        "--no-input",
    ]
    count, step = 0, f"Fetching {len(lock.entries)} packages."

    def read(line: str) -> None:
        nonlocal count, step
        if found := _FETCHING.match(line):
            count += 1
            step = f"Fetching {found[1] or found[2]} ({count} of {len(lock.entries)})."
        elif line.startswith("Installing collected packages"):
            count, step = len(lock.entries), f"Installing {count} packages."

    share = 90 / len(lock.entries)
    log = folder / "pip.log"  # an index that refuses is told there alone
    command += [*strict, "--log", str(log), "-r", str(wanted)]
    lines = _run(command, making, read, lambda: tell(2 + share * count, step))
    if lines is not None:
        refusals = _REFUSAL.findall(log.read_text(errors="replace")) if log.exists() else []
        raise sentence_of("\n".join([*refusals, *lines]), lock)


def _run(
    command: list[str], making: IO[str], read: Callable[[str], None], tell: Callable[[], None]
) -> list[str] | None:
    """Run a command, and return None, or its last lines if it failed. What `tell` raises ends the command.

    making: the locked file. The command has it too, so that it stays locked until the command ends, even if this process is
    killed: otherwise the next process would make the environment while the command still writes into it.
    """
    variables = {"PIP_RETRIES": "2", "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | os.environ
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=variables,
        start_new_session=True,
        pass_fds=(making.fileno(),),
    )
    assert process.stdout is not None
    said, rest = [], b""
    try:
        os.set_blocking(process.stdout.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                tell()
                if selector.select(_POLL_SECONDS):
                    data = os.read(process.stdout.fileno(), 1 << 16)
                    if not data:
                        break
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        said.append(line.decode(errors="replace"))
                        read(said[-1])
                        tell()
        status = process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    return said[-_KEPT_LINES:] if status else None


# The words are pip's, urllib3's and the C library's; the first that is found gives the sentence. {0} is a part of the words.
_SENTENCES: tuple[tuple[str, type[DashboardError], str], ...] = (
    (r"No space left on device|Errno 28|Disk quota", StorageFull, "the disk is full: free some space, then try again"),
    (
        r"DO NOT MATCH THE HASHES",
        Unavailable,
        "the package index sent a file that the lock does not have: ask who looks after the index, and try again",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        Unavailable,
        "the certificate of the package index cannot be verified: give pip its authority with PIP_CERT",
    ),
    (
        r"(?:HTTP error|status code:?|Client Error:?|Server Error:?) ?([45]\d\d)|\b([45]\d\d) (?:Client|Server) Error",
        Unavailable,
        "the package index refuses with status {0}: check its address and credentials in PIP_INDEX_URL",
    ),
    (
        r"NewConnectionError|ConnectTimeout|ReadTimeout|Name or service not known|Temporary failure in name resolution"
        r"|Connection refused|Connection broken|Network is unreachable|ProxyError|NameResolutionError",
        Unavailable,
        "the package index cannot be reached: connect this machine, give pip a proxy or a mirror (PIP_PROXY, PIP_INDEX_URL), "
        "or copy the folder 'environments' from a machine that has it",
    ),
    (
        r"(?:No matching distribution found for|requirement) ([\w.-]+==[\w.+-]+)",
        Unavailable,
        "the package index has no wheel of {0} for this Python and machine: run the product with another Python, or give pip "
        "an index that has it (PIP_EXTRA_INDEX_URL)",
    ),
    (
        r"No module named pip",
        Unavailable,
        "the product's Python has no pip: run python -m ensurepip in its environment",
    ),
)


def sentence_of(said: str, lock: Lock) -> DashboardError:
    """Return the error for the words with which the making of an environment failed."""
    start = f"the environment '{lock.name}' could not be made: "
    for words, kind, sentence in _SENTENCES:
        if found := re.search(words, said):
            part = next((group for group in found.groups() if group), "")
            return kind(start + sentence.format(part))
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["pip failed without a word"]
    return Unavailable(start + errors[-1].removeprefix("ERROR:").strip()[:300])
