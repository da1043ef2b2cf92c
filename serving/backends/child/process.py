"""A child process of the server: its start, messages, output and end. Linux only (memory files, pidfd)."""

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
from contextvars import copy_context
from pathlib import Path
from typing import IO

from serving.backends.channel.channel import Channel, ChannelError, Closed, ProtocolError, close_all
from serving.backends.channel.messages import Execute, Message, Received
from serving.backends.channel.packet_channel import PacketChannel
from serving.backends.channel.shared_memory import SharedMemoryMap, SharedMemoryPool
from serving.backends.environments.interpreter import Interpreter
from serving.core.errors import unsupported
from serving.core.log_context import OUTPUT
from serving.resources.process_activity import NONE, read_activity

log = logging.getLogger(__name__)
# The logger for the output of children: each record has the instance's name and a line, or the number of lost lines.
output_log = logging.getLogger(OUTPUT)

_MAIN = Path(__file__).parents[2] / "child_program" / "__main__.py"
_LINE_BYTES = 16 << 10
LINES_AT_ONCE = 5000
LINES_PER_S = 500
_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "V": logging.DEBUG}


class ChildDied(Exception):
    """The process ended, or was killed because it broke the protocol. The text says how it ended."""


class ChildProcess:
    """One process that runs serving/child_program, with its channels.

    The kernel kills the process when the thread that made this object ends, so that thread must live as long as the process.

    inputs, outputs: the shared memory that the server and the child write. freed: segments that the child may write again. The
    next batch contains their ids. channel: for batches. link: for all other messages. pidfd: readable when the process has
    ended.
    """

    def __init__(self, name: str, python: Interpreter) -> None:
        """Start the process. name: the name of the instance, for the log and the list of processes."""
        if not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
            raise unsupported("models in processes of their own need Linux")
        self.name = name
        self.inputs = SharedMemoryPool()
        self.outputs = SharedMemoryMap(writable=False)
        self.freed: deque[int] = deque()
        self.heartbeat = Heartbeat()
        self._killed = ""  # the reason why the process was killed
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        my_link, their_link = socket.socketpair()
        with theirs, their_link:
            self._process = _spawn(python, (theirs.fileno(), their_link.fileno(), self.heartbeat.descriptor), name)
        self.pidfd = os.pidfd_open(self._process.pid)
        self._end = select.poll()
        self._end.register(self.pidfd, select.POLLIN)
        self.channel = PacketChannel(mine)
        self._answer = select.poll()
        self._answer.register(mine, select.POLLIN)
        self._answer.register(self.pidfd, select.POLLIN)
        self.link = Channel(my_link, self.pidfd)
        self._ending = threading.Lock()  # held while the process is being ended, or must not be ended
        assert self._process.stdout is not None
        self._log = OutputLog(name, self._process.stdout)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return not self._end.poll(0)

    def listen(self, elapsed_s: float) -> float:
        """Return the seconds since the last sign of life. elapsed_s: time since the last call. Call it on one thread only."""
        if not self._ending.acquire(blocking=False):
            return 0.0
        try:
            if self._killed:  # CPU time that a killed process uses to exit is no sign of life
                return self.heartbeat.silent_s
            return self.heartbeat.listen(self.pid, elapsed_s) if self.pidfd >= 0 else 0.0
        finally:
            self._ending.release()

    def exchange(self, message: Message, timeout_s: float | None = None) -> Received:
        """Send a message, wait, and return the answer. Raises ChildDied or TimeoutError."""
        try:
            self.channel.send(message)
            return self._receive(timeout_s)
        except ProtocolError as error:
            raise self.kill_broken(error) from None
        except ChannelError:
            raise ChildDied(self.end()) from None

    def _receive(self, timeout_s: float | None) -> Received:
        while True:
            ready = [descriptor for descriptor, _ in self._answer.poll(None if timeout_s is None else timeout_s * 1000)]
            if not ready:
                raise TimeoutError
            if self.channel.fileno() not in ready:  # a dead child's last message is still read
                raise Closed("the process has ended")
            try:
                answer, descriptors = self.channel.receive()
            except BlockingIOError:  # the rest has not arrived yet
                continue
            close_all(descriptors)
            if not isinstance(answer, dict):
                raise ProtocolError("a message is not a JSON object")
            return answer

    def tell_again(self, message: Execute) -> None:
        """Let the next message contain the segment ids of an unsent message."""
        *_, freed, dropped = message
        self.freed.extend(freed)
        self.inputs.keep_dropped(dropped)

    def kill_broken(self, error: ProtocolError) -> ChildDied:
        """Kill a child that broke the protocol, and return the exception to raise."""
        self.end(grace_s=0)
        return ChildDied(f"the model's process was ended because it broke the protocol: {error}")

    def take_freed(self) -> list[int]:
        """Return the segments that the child may write again. Each segment is returned once."""
        freed = self.freed
        return [freed.popleft() for _ in range(len(freed))] if freed else []

    def finalize(self, grace_s: float) -> None:
        """Let the model finalize and the process exit. Kill the process if it takes longer than `grace_s`."""
        deadline = time.monotonic() + grace_s
        try:
            answer = self.exchange({"op": "finalize"}, grace_s)
        except ChildDied as died:
            log.warning("%s: %s while it finalized", self.name, died)
        except TimeoutError:
            log.warning("%s: finalize took longer than %g s; the process is killed", self.name, grace_s)
        else:
            if answer.get("op") != "finalized":
                log.warning("%s: the process did not finalize as expected", self.name)
        self.end(max(0.0, deadline - time.monotonic()))

    def end(self, grace_s: float = 1.0) -> str:
        """Wait until the process ends, kill its group after `grace_s`, and free its resources. Return how the process ended."""
        with self._ending:
            if self.pidfd >= 0:
                self._end.poll(grace_s * 1000)
                # The number of the process group is still valid, because the process is not reaped yet.
                # Killing the group also ends the children of the process.
                try:
                    os.killpg(self._process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                self._process.wait()
                self._free()
        return self._killed or how_it_ended(self._process.returncode)

    def _free(self) -> None:
        """Free the server's resources for the process, which has ended."""
        self._log.join()
        self.channel.close()
        self.link.close()
        self.inputs.close()
        self.outputs.clear()
        self.heartbeat.close()
        os.close(self.pidfd)
        self.pidfd = -1

    def last_words(self) -> str:
        """Return the last line that the process wrote, to explain the end of a child that sent no error message."""
        return self._log.last_line()

    def kill(self) -> None:
        """Kill the process. Callable only on threads that `_free` waits for."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def give_up(self, reason: str) -> None:
        """Kill the process, unless it is already being ended. Callable on threads that `_free` does not wait for. reason: how
        the process ended."""
        if self._ending.acquire(blocking=False):
            try:
                if self.pidfd >= 0:
                    self._killed = reason
                    with contextlib.suppress(ProcessLookupError):
                        self.kill()
            finally:
                self._ending.release()

    def wait_ended(self) -> str:
        """Wait until a process that is ending has ended. Return how it ended. `end` reaps it later. Callable only on threads
        that `_free` waits for."""
        end = select.poll()
        end.register(self.pidfd, select.POLLIN)
        if not end.poll(1000):
            return "the model's process closed its connection"
        if self._killed:
            return self._killed
        try:
            found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # `end` has reaped it
            return how_it_ended(self._process.wait())
        assert found is not None
        return how_it_ended(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)


class Heartbeat:
    """Watches a child process for signs of life: heartbeats of a thread, or work of the whole process.

    A thread of the child sends heartbeats while its model executes. But that thread cannot run while native code holds the
    interpreter's lock, perhaps for minutes. silent_s: the seconds without a sign of life at the last `listen`.
    """

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # the child has the same descriptor
        self.silent_s = 0.0
        self._activity = NONE  # at the last check without a heartbeat

    def listen(self, pid: int, elapsed_s: float) -> float:
        """Return the time since the last sign of life of the process `pid`. elapsed_s: the time since the last call."""
        self.silent_s = 0.0 if self._has_beaten() or self._has_worked(pid, elapsed_s) else self.silent_s + elapsed_s
        return self.silent_s

    def close(self) -> None:
        os.close(self.descriptor)

    def _has_beaten(self) -> bool:
        try:
            return os.eventfd_read(self.descriptor) > 0
        except BlockingIOError:
            return False

    def _has_worked(self, pid: int, elapsed_s: float) -> bool:
        """Return whether the process has worked: its main thread runs or waits for a CPU, or it used more than 1/20 of a CPU,
        or it read pages from a disk. Idle threads of libraries use less CPU. An import of a large library from a slow disk uses
        little CPU and holds the interpreter's lock."""
        before, self._activity = self._activity, read_activity(pid)
        now = self._activity
        return now.runnable or now.pages_read > before.pages_read or now.cpu_s - before.cpu_s > elapsed_s / 20


class OutputLog:
    """Logs the output of a child, line by line, under the instance's name. pb_utils.Logger marks a line's level with 0x1e.

    A child that writes too many lines loses some, but never waits. LINES_AT_ONCE lines are logged immediately, then LINES_PER_S
    lines per second. The number of lost lines is logged too.
    """

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self._name = name
        self._tail: deque[str] = deque(maxlen=1)
        self._may_log = float(LINES_AT_ONCE)
        self._counted_s = time.monotonic()  # when `_may_log` was last updated
        self._left_out = 0
        run = copy_context().run  # the thread's log lines are marked with the model
        self._thread = threading.Thread(target=run, args=(self._run, stream), name=f"{name}-log", daemon=True)
        self._thread.start()

    def last_line(self) -> str:
        return self._tail[-1] if self._tail else ""

    def join(self) -> None:
        """Wait briefly for the last lines of a process that has ended. Its own children may still hold its output open."""
        self._thread.join(1.0)

    def _run(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(_LINE_BYTES):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                level = logging.INFO
                if text.startswith("\x1e"):
                    level, text = _LEVELS.get(text[1:2], logging.INFO), text[2:].replace("\x1f", "\n")
                if text.strip():
                    self._tail.append(text.strip().rpartition("\n")[2])
                    if self._has_room():
                        output_log.log(level, "%s: %s", self._name, text)
        self._say_left_out()

    def _has_room(self) -> bool:
        """Return whether one more line may be logged, and count it."""
        now = time.monotonic()
        self._may_log = min(LINES_AT_ONCE, self._may_log + (now - self._counted_s) * LINES_PER_S)
        self._counted_s = now
        # After one line is dropped, lines are dropped until LINES_PER_S of them may be logged. This makes one long gap in place
        # of many short ones.
        if self._may_log < (LINES_PER_S if self._left_out else 1):
            self._left_out += 1
            return False
        self._say_left_out()
        self._may_log -= 1
        return True

    def _say_left_out(self) -> None:
        if self._left_out:
            left_out = f"{self._left_out} lines of its output were left out: it writes too many"
            output_log.warning("%s: %s", self._name, left_out)
        self._left_out = 0


def how_it_ended(status: int) -> str:
    """Return the sentence for an exit status. A negative status is the number of the signal that ended the process."""
    if status >= 0:
        return f"the model's process ended with exit status {status}"
    try:
        return f"the model's process was ended by signal {signal.Signals(-status).name}"
    except ValueError:
        return f"the model's process was ended by signal {-status}"


def _spawn(python: Interpreter, ends: tuple[int, ...], name: str) -> "subprocess.Popen[bytes]":
    # The child has its own process group, because a Ctrl-C for the server must not interrupt the child's last work.
    return subprocess.Popen(
        python.command(str(_MAIN), *map(str, ends), str(os.getpid()), name),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=ends,
        env=python.variables(os.environ),
        process_group=0,
    )
