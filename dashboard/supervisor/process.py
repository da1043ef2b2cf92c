"""One child process in its own session and process group; its output goes to a rotated log."""

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from dashboard.shared.log_files import RotatingLog
from dashboard.shared.model_logs import ModelLogs
from dashboard.supervisor.guardian import send
from repository.core import crash_trace
from repository.core.plain_text import PlainOutput

# Bytes of a run's output that are kept to explain its end. The stacks of a hundred threads are long.
KEPT_OUTPUT = 256 << 10

# A probe returns whether a process answers.
Probe = Callable[[], Awaitable[bool]]

# The signals to send, and how many seconds to wait after each. Then the process group is killed.
Stop = tuple[tuple[signal.Signals, float], ...]

# Waits for a byte on standard input, then becomes the command; it exits if the input closes first. A shell would drop
# environment variables whose names have dots.
_HELD = """
import os, sys
if os.read(0, 1):
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process to run. make_probe: called before each run for the probe of that run. says_ready: bytes in the output that show
    that the process has started."""

    name: str
    title: str
    command: tuple[str, ...]
    log: Path
    folder: Path
    model_logs: Path | None = None  # the folder of the models' logs, which are made from its output
    environment: dict[str, str] = field(default_factory=dict)
    make_probe: Callable[[], Probe] | None = None
    says_ready: bytes = b""
    stop: Stop = ((signal.SIGTERM, 10.0),)
    hung_after_s: float = 60.0  # the longest silence; START_FACTOR times as long before the first answer


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a child. output: the last KEPT_OUTPUT bytes of its output, as text."""

    code: int  # the exit status, or -N for signal N
    seconds: float
    output: str = ""

    @property
    def how(self) -> str:
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"was killed by signal {-self.code}"

    @property
    def work(self) -> str:
        """Its last work, such as " while loading version 1 of model 'x' (model.onnx)"; "" if that is unknown."""
        works = crash_trace.works(self.output) if self.code < 0 else []
        return f" while {' or '.join(works)}" if works else ""

    @property
    def last_words(self) -> str:
        """The last line of a process that failed, which is usually the reason; "" if there is none."""
        if self.code < 0:
            return crash_trace.last_words(self.output)
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1] if lines and self.code > 0 else ""


class Child:
    """One run of a ProcessSpec."""

    def __init__(self, spec: ProcessSpec, log: RotatingLog) -> None:
        self.spec = spec
        self._log = log
        self._model_logs = ModelLogs(spec.model_logs) if spec.model_logs else None
        self._began = 0.0
        self._process: asyncio.subprocess.Process | None = None
        self._output = -1
        self._plain = PlainOutput()  # because the output holds text of models and paths of clients
        self._kept_output: deque[bytes] = deque()
        self._kept_bytes = 0
        self.said_ready = not spec.says_ready

    async def start(self, announce: Callable[[int], None]) -> int:
        """Start the process, and return its id, which is also the id of its group.

        announce: called with the id before the command runs, so that the guardian knows every command that runs.
        """
        # asyncio's own pipe would delay `wait` until every descendant of the child had closed it.
        self._output, write_end = os.pipe()
        hold_end, release_end = os.pipe()
        os.set_blocking(self._output, False)
        self._began = time.monotonic()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _HELD, *self.spec.command),
                cwd=self.spec.folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.spec.environment},
                stdin=hold_end,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
            )
            announce(self._process.pid)
            os.write(release_end, b"\n")
        finally:
            for end in (write_end, hold_end, release_end):
                os.close(end)
        asyncio.get_running_loop().add_reader(self._output, self._copy_output)
        return self._process.pid

    def _copy_output(self) -> bool:
        """Copy output into the log. Return False if there is no output at present, or if the output has ended."""
        try:
            data = os.read(self._output, 64 << 10)
        except BlockingIOError:
            return False
        self._take(self._plain.feed(data) if data else self._plain.end())
        if not data:
            asyncio.get_running_loop().remove_reader(self._output)
        return bool(data)

    def _take(self, data: bytes) -> None:
        self._log.write(data)
        if self._model_logs is not None:
            self._model_logs.write(data)
        self._keep(data)
        self.said_ready = self.said_ready or self.spec.says_ready in data

    def _keep(self, data: bytes) -> None:
        self._kept_output.append(data)
        self._kept_bytes += len(data)
        while self._kept_bytes - len(self._kept_output[0]) > KEPT_OUTPUT:
            self._kept_bytes -= len(self._kept_output.popleft())

    async def wait_until_ended(self) -> Ending:
        """Wait until the process ends, and kill the rest of its group."""
        assert self._process is not None
        code = await self._process.wait()
        seconds = time.monotonic() - self._began
        self.kill()
        while self._copy_output():
            pass
        asyncio.get_running_loop().remove_reader(self._output)
        os.close(self._output)
        if self._model_logs is not None:
            self._model_logs.close()
        return Ending(code, seconds, b"".join(self._kept_output).decode(errors="replace"))

    async def stop(self) -> None:
        """Send the signals of the spec until the process ends, and finally SIGKILL to its group. Await `ended` meanwhile."""
        assert self._process is not None
        for number, seconds in self.spec.stop:
            try:
                self._process.send_signal(number)
                async with asyncio.timeout(seconds):
                    await self._process.wait()
            except ProcessLookupError:
                return
            except TimeoutError:
                continue
            return
        self.kill()

    def kill(self) -> None:
        """Kill the whole group immediately."""
        if self._process is not None:
            send(self._process.pid, signal.SIGKILL)
