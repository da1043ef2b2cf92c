"""Runs a program that nobody trusts: `run` starts its launcher, passes its lines on, watches its bounds, and ends it."""

import marshal
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from dashboard.confinement.bounds import Bound, Limits, Outcome, outcome
from dashboard.confinement.promises import LAUNCHER, Promise, Protections, protections
from dashboard.confinement.usage import bound_passed_by_files, bound_passed_by_processes
from dashboard.shared.exceptions import Unavailable

_MEASURE_SECONDS = 0.1
_CHECK_SECONDS = 0.5
_LONGEST_LINE = 1 << 16
# What programs read of the system: libraries, time zones, settings without secrets, the machine's description. Not all of
# /usr, because applications have their data below /usr/src and /usr/local.
_LIBRARIES = ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "include", "share")
_SYSTEM = (
    *(f"{prefix}/{name}" for prefix in ("", "/usr", "/usr/local") for name in _LIBRARIES),
    *("/nix/store", "/usr/local/nvidia", "/usr/local/cuda"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/etc/os-release", "/etc/ssl/openssl.cnf", "/etc/fonts"),
    *("/etc/pki/tls/openssl.cnf", "/etc/crypto-policies/back-ends"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/filesystems", "/proc/version", "/proc/sys/vm"),
    *("/proc/devices", "/proc/modules", "/sys/devices", "/sys/bus/pci", "/sys/kernel/mm"),
)
_PYTHON = tuple(f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in (*_LIBRARIES, "pyvenv.cfg"))
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def run(
    command: Sequence[str],
    *,
    folder: Path,
    reads: Sequence[Path],
    limits: Limits,
    environment: Mapping[str, str],
    check: Callable[[], None],
    on_line: Callable[[str], None],
    directory: Path | None = None,
    devices: Sequence[Path] = (),
    output: IO[bytes] | None = None,
    given_up: Sequence[Promise] = (),
    found: Protections | None = None,
) -> Outcome:
    """Run a command until it ends or a bound ends it. When this returns or raises, nothing of the program runs any more.

    The program reads and writes `folder`, which is emptied if a bound on files ended it. It reads and executes `reads`, the
    system's libraries and this Python, and may use `devices`. It starts in `directory`, or else in `folder`.

    check is called twice a second, and on_line with each line that the program prints; both may raise. A check of a long
    program also watches the free space of the disk (`storage.ensure_space`), because files without a name are not counted.
    output: the file that gets the standard output, in place of on_line.
    Unprotected: the machine does not keep a promise that is not in `given_up`. Unavailable: the program could not be started.
    found: the protections of the machine, if they are not to be found out.
    """
    kept = found or protections()
    kept.require(given_up)
    order = {
        "command": list(command),
        "environment": dict(environment),
        "folder": str(folder),
        "directory": str(directory or folder),
        "reads": [*_SYSTEM, *_PYTHON, *_libraries(environment), *map(str, reads)],
        "devices": [*_DEVICES, *map(str, devices)],
        "limits": asdict(limits),
        "means": asdict(kept.means),
    }
    with _Launcher(order, output) as launcher:
        lines = _Lines(on_line)
        bound = _Watch(launcher, lines, folder, limits, check).until_the_end()
    if bound == Bound.FILES:
        # Python cannot remove folders of any depth.
        subprocess.run(["find", folder, "-mindepth", "1", "-delete"], stderr=subprocess.DEVNULL, check=False)
    if bound is None and launcher.refused:
        raise Unavailable(launcher.refused)
    return outcome(limits, status=launcher.status, bound=bound, last_line=lines.last)


def nvidia_devices() -> list[Path]:
    """Return the devices of NVIDIA's driver, which CUDA opens."""
    return [*Path("/dev").glob("nvidia*"), *Path("/proc/driver").glob("nvidia*")]


def has_gpu() -> bool:
    """Return whether NVIDIA's driver shows a GPU to this machine's programs."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _libraries(environment: Mapping[str, str]) -> list[str]:
    return [path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path.startswith("/")]


class _Launcher:
    """The process of the launcher, and the socket over which it gets its order and says what became of it."""

    def __init__(self, order: dict[str, Any], output: IO[bytes] | None) -> None:
        self.link, its_link = socket.socketpair()
        with its_link:
            self.process = subprocess.Popen(
                [*LAUNCHER, str(its_link.fileno())],
                cwd="/",
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if output is None else output,
                stderr=subprocess.STDOUT if output is None else subprocess.PIPE,
                pass_fds=[its_link.fileno()],
                start_new_session=True,
            )
        pipe = self.process.stderr or self.process.stdout
        assert pipe is not None
        self.pipe = pipe
        self._order, self._said = marshal.dumps(order), b""

    def __enter__(self) -> "_Launcher":
        self._send(len(self._order).to_bytes(8) + self._order)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.process.wait()
        self.link.close()
        self.pipe.close()

    def end(self) -> None:
        """Ask the launcher to end the program; it ends when all is gone."""
        self._send(b"\n")

    def hear(self) -> bool:
        """Take in what the launcher says; return False when it has ended."""
        try:
            said = self.link.recv(1 << 16)
        except ConnectionResetError:  # it ended before it took in that it shall end
            said = b""
        self._said += said
        return bool(said)

    @property
    def refused(self) -> str:
        """Why the program was not started, empty if it was."""
        return self._answer("refused", "")

    @property
    def status(self) -> int:
        """The exit status of the program, or minus the number of its signal."""
        return int(self._answer("status", str(self.process.returncode)))

    def _answer(self, name: str, default: str) -> str:
        """Return the first answer of this name. The status of the program comes before that of the guard's child."""
        for line in self._said.decode().splitlines():
            word, _, answer = line.partition(" ")
            if word == name:
                return answer
        return default

    def _send(self, message: bytes) -> None:
        try:
            self.link.sendall(message)
        except OSError:
            pass  # it has ended


class _Lines:
    """The lines of a program, passed on as they come. Carriage returns end lines too, and empty lines are left out."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line, self._rest = on_line, b""
        self.last = ""
        self.bytes = 0

    def add(self, data: bytes) -> None:
        """Take in what was printed; no data at all ends the last line."""
        self.bytes += len(data)
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if not data or len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in filter(None, lines):
            self.last = line.decode(errors="replace")
            self._on_line(self.last)


class _Watch:
    """Waits for the end of a program, and brings it about where a bound is passed."""

    def __init__(
        self, launcher: _Launcher, lines: _Lines, folder: Path, limits: Limits, check: Callable[[], None]
    ) -> None:
        self._launcher, self._lines = launcher, lines
        self._folder, self._limits, self._check = folder, limits, check
        self._measured = self._checked = self._began = time.monotonic()
        self._running = True
        os.set_blocking(launcher.pipe.fileno(), False)

    def until_the_end(self) -> Bound | None:
        """Return the bound that ended the program, if one did."""
        bound = None
        with selectors.DefaultSelector() as ready:
            ready.register(self._launcher.pipe, selectors.EVENT_READ, self._read)
            ready.register(self._launcher.link, selectors.EVENT_READ, self._hear)
            while self._running:
                for key, _ in ready.select(_MEASURE_SECONDS):
                    if not key.data():
                        ready.unregister(key.fileobj)
                if bound is None and (bound := self._passed()):
                    self._lines = _Lines(lambda line: None)
                    self._launcher.end()
        self._launcher.process.wait()  # now nothing holds the pipe any more
        while self._read():
            pass
        return bound

    def _hear(self) -> bool:
        self._running = self._launcher.hear()
        return self._running

    def _read(self) -> bool:
        try:
            data = os.read(self._launcher.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        self._lines.add(data)
        return bool(data)

    def _passed(self) -> Bound | None:
        now = time.monotonic()
        if self._lines.bytes > self._limits.output_bytes:
            return Bound.OUTPUT
        if now - self._began > self._limits.wall_seconds:
            return Bound.WALL
        if now - self._measured < _MEASURE_SECONDS:
            return None
        passed = bound_passed_by_processes(self._launcher.process.pid, self._limits)
        if passed is None and now - self._checked >= _CHECK_SECONDS:
            self._check()
            passed = bound_passed_by_files(self._folder, self._limits)
            self._checked = time.monotonic()
        self._measured = time.monotonic()
        return passed
