"""A child process of the server: started, talked to, its output logged, ended. Linux only (memory files, pidfd).

ProcessDied      the process ended, or had to be ended because it broke the protocol; the text says how
"""

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Protocol

from serving.backends.channel.channel import Channel, ChannelError, ProtocolError, close_all
from serving.backends.channel.messages import Unchecked as Message
from serving.backends.channel.shared_memory import SharedMemoryMap, SharedMemoryPool
from serving.backends.child.readiness import ChildReadiness
from serving.backends.environments.child_environment import Interpreter
from serving.core.batch import Batch
from serving.core.errors import unsupported

log = logging.getLogger(__name__)

_MAIN = Path(__file__).parents[2] / "child_program" / "__main__.py"
_LINE_BYTES = 16 << 10
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "V": logging.DEBUG}
# The kernel kills a child when the *thread* that started it ends; this one lives as long as the server.
_spawner = ThreadPoolExecutor(1, "child-spawner")


class Calls(Protocol):
    """What answers the child's own calls, on threads of its own (see calls.py)."""

    readiness: ChildReadiness

    def begin(self, batch: Batch, requests: list[Message]) -> list[int]: ...

    def executed(self, keys: list[int]) -> None: ...

    def wait_for_streams(self) -> None: ...

    def overdue(self, bound_s: float) -> bool: ...

    def join(self) -> None: ...


class ProcessDied(Exception):
    pass


class ChildProcess:
    """`inputs` and `outputs` are the shared memory of both directions; `freed` the output segments to give back."""

    calls: Calls

    def __init__(self, name: str, python: Interpreter, calls: "Callable[[ChildProcess], Calls] | None" = None) -> None:
        if not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
            raise unsupported("models in processes of their own need Linux")
        self.name = name
        self.inputs = SharedMemoryPool()
        self.outputs = SharedMemoryMap(writable=False)
        self.freed: deque[int] = deque()
        self.silent_s = 0.0  # since its last sign of life, as far as `listen` was called
        self._worked = (0, 0.0)  # pages read from a disk, and seconds on a CPU, when it was last silent
        self._killed = ""  # why it had to be
        self._tail: deque[str] = deque(maxlen=5)
        self._beats = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        mine, theirs = socket.socketpair()
        my_link, their_link = socket.socketpair()
        with theirs, their_link:
            ends = (theirs.fileno(), their_link.fileno(), self._beats)
            self._process = _spawner.submit(_spawn, python, ends, name).result()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._bind(os.sched_getaffinity(0))
        self._end = select.poll()
        self._end.register(self._pidfd, select.POLLIN)
        self._channel = Channel(mine, self._pidfd)
        self.link = Channel(my_link, self._pidfd)  # on which the child calls by itself
        self._ended = threading.Lock()
        assert self._process.stdout is not None
        self._pump = threading.Thread(target=self._log, args=(self._process.stdout,), name=f"{name}-log", daemon=True)
        self._pump.start()
        if calls is not None:
            self.calls = calls(self)

    def _bind(self, cores: set[int]) -> None:
        """To the cores of the thread that asked for it, which need not be those of the one that started it."""
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(self.pid, cores)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return not self._end.poll(0)

    def listen(self, elapsed_s: float) -> float:
        """How long it has given no sign of life, `elapsed_s` after the last call. One thread calls this."""
        if not self._ended.acquire(blocking=False):  # it is being ended
            return 0.0
        try:
            if self._pidfd < 0 or self._has_beaten() or self._has_worked(elapsed_s):
                self.silent_s = 0.0
            else:
                self.silent_s += elapsed_s
            return self.silent_s
        finally:
            self._ended.release()

    def _has_beaten(self) -> bool:
        try:
            return os.eventfd_read(self._beats) > 0
        except BlockingIOError:
            return False

    def _has_worked(self, elapsed_s: float) -> bool:
        """Whether it had a twentieth of a CPU meanwhile, as less is what idle threads of a library take now and then; or pages
        from a disk: whoever imports a large library from a slow one holds the interpreter and computes little."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return False
        before, self._worked = self._worked, (int(fields[9]), (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS)
        return self._worked[0] > before[0] or self._worked[1] - before[1] > elapsed_s / 20

    def exchange(
        self,
        message: Message,
        descriptors: Sequence[int] = (),
        timeout_s: float | None = None,
    ) -> tuple[Message, list[int]]:
        """Send, and return the answer. ProcessDied, or TimeoutError."""
        try:
            self._channel.send(message, descriptors)
            return self._channel.receive(timeout_s)
        except ProtocolError as error:
            raise self.broke(error) from None
        except ChannelError:
            raise ProcessDied(self.end()) from None

    def broke(self, error: ProtocolError) -> ProcessDied:
        """End a child that cannot be trusted any more."""
        self.end(grace_s=0)
        return ProcessDied(f"the model's process was ended because it broke the protocol: {error}")

    def finalize(self, grace_s: float) -> None:
        """Let the model finalize and the process end by itself; kill it when that takes longer than the grace."""
        deadline = time.monotonic() + grace_s
        try:
            answer, received = self.exchange({"op": "finalize"}, timeout_s=grace_s)
        except ProcessDied as died:
            log.warning("%s: %s while it finalized", self.name, died)
        except TimeoutError:
            log.warning("%s: finalize took longer than %g s; the process is killed", self.name, grace_s)
        else:
            close_all(received)
            if answer.get("op") != "finalized":
                log.warning("%s: the process did not finalize as expected", self.name)
        self.end(max(0.0, deadline - time.monotonic()))

    def end(self, grace_s: float = 1.0) -> str:
        """Wait for the process to end, kill it and its group after the grace, free everything. A sentence of how it ended."""
        with self._ended:
            if self._pidfd >= 0:
                self._end.poll(grace_s * 1000)
                # Not yet reaped, its number is still its own: what it had started goes with it.
                try:
                    os.killpg(self._process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                self._process.wait()
                self._pump.join(1.0)
                if hasattr(self, "calls"):
                    self.calls.join()
                self._channel.close()
                self.link.close()
                self.inputs.close()
                self.outputs.clear()
                os.close(self._beats)
                os.close(self._pidfd)
                self._pidfd = -1
        return self._killed or how_it_ended(self._process.returncode)

    def last_words(self) -> str:
        """The last line that the process wrote, for a child that ended before it could say why."""
        return self._tail[-1] if self._tail else ""

    def kill(self) -> None:
        """From the threads of `calls`, which `end` waits for."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def give_up(self, reason: str) -> None:
        """From any other thread: kill it, unless it is being ended already. `reason`: the sentence of how it ended."""
        if self._ended.acquire(blocking=False):
            try:
                if self._pidfd >= 0:
                    self._killed = reason
                    with contextlib.suppress(ProcessLookupError):
                        self.kill()
            finally:
                self._ended.release()

    def wait_ended(self) -> str:
        """From those threads too: a sentence of how a process that is ending ended; it is left for `end` to reap."""
        end = select.poll()
        end.register(self._pidfd, select.POLLIN)
        if not end.poll(1000):
            return "the model's process closed its connection"
        if self._killed:
            return self._killed
        try:
            found = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # `end` has reaped it
            return how_it_ended(self._process.wait())
        assert found is not None
        return how_it_ended(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

    # -- inside ----------------------------------------------------------------------------------------------------
    def _log(self, stream: IO[bytes]) -> None:
        """What the child prints, line by line, under the instance's name; pb_utils.Logger marks its level with 0x1e."""
        with stream:
            while line := stream.readline(_LINE_BYTES):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                level = logging.INFO
                if text.startswith("\x1e"):
                    level, text = _LEVELS.get(text[1:2], logging.INFO), text[2:].replace("\x1f", "\n")
                if text.strip():
                    self._tail.append(text.strip())
                    log.log(level, "%s: %s", self.name, text)


def how_it_ended(status: int) -> str:
    if status >= 0:
        return f"the model's process ended with exit status {status}"
    try:
        return f"the model's process was ended by signal {signal.Signals(-status).name}"
    except ValueError:
        return f"the model's process was ended by signal {-status}"


def _spawn(python: Interpreter, ends: tuple[int, ...], name: str) -> "subprocess.Popen[bytes]":
    # A group of its own: a Ctrl-C meant for the server must not interrupt what it still wants to finish.
    return subprocess.Popen(
        # The name is for people who look at the list of processes.
        python.command(str(_MAIN), *map(str, ends), str(os.getpid()), name),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=ends,
        env=python.variables(os.environ),
        process_group=0,
    )
