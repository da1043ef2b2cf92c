"""Starts the processes, restarts those that end, and stops all of them in order."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from django.utils import timezone

from dashboard.shared.log_files import RotatingLog
from dashboard.supervisor import guardian
from dashboard.supervisor.backoff import Backoff
from dashboard.supervisor.process import Child, Ending, Probe, ProcessSpec

PROBE_INTERVAL_S = 0.1
WATCH_INTERVAL_S = 5.0
# A starting process may be silent for this many times hung_after_s.
START_FACTOR = 5.0
# The longest time of one probe that counts. A longer time means that this process was paused, for example in a terminal.
ANSWER_S = 20.0
# A terminal, `make` and others may each forward the same Ctrl-C.
SAME_SIGNAL_S = 1.0


@dataclass(slots=True)
class Status:
    """The status of one process. state: starting, running, down (waiting to be restarted), stopped."""

    name: str
    state: str = "stopped"
    pid: int | None = None
    started_at: datetime | None = None
    restarts: int = 0
    reason: str = ""


# Called at every change of a status, with the kind of event (choices.EventKind) and one sentence; each may be "".
Report = Callable[[Status, str, str], None]


class Supervised:
    """One process across all its runs."""

    def __init__(self, spec: ProcessSpec, report: Report, guard: "GuardPipe") -> None:
        self.spec = spec
        self.status = Status(spec.name)
        self.live = asyncio.Event()
        self._report = report
        self._guard = guard
        self._log = RotatingLog(spec.log)
        self._backoff = Backoff()
        self._child: Child | None = None
        self._probe: Probe | None = None  # of the present run
        self._answered = False  # in its last run
        self._stopping = False
        self._end_reason = ""  # the reason why a person, or the probe, ends the present run
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Run the process, and start it again whenever it ends, until `stop` is called."""
        while not self._stopping:
            ending = await self._run_once()
            if not self._stopping:
                await self._wait_before_restart(ending)
                self.status.restarts += 1
        self._set("stopped", "stopped", f"The {self.spec.title} was stopped.")
        self._log.close()

    async def _run_once(self) -> Ending:
        self._child = child = Child(self.spec, self._log)
        self._probe = self.spec.make_probe and self.spec.make_probe()
        pid = await child.start(self._guard.started)
        self.status.pid, self.status.started_at = pid, timezone.now()
        self._set("starting")
        if self._stopping:  # `stop` was called during the start
            child.kill()
        probing = asyncio.create_task(self._watch_answers())
        try:
            return await child.wait_until_ended()
        finally:
            probing.cancel()
            self._answered = self.live.is_set()
            self.live.clear()
            self._guard.forget_group(pid)
            self.status.pid = None

    async def _watch_answers(self) -> None:
        """Record the first answer of the process, then check that it continues to answer."""
        began = asyncio.get_running_loop().time()
        if not await self._wait_for_silence(PROBE_INTERVAL_S, START_FACTOR * self.spec.hung_after_s, until_answer=True):
            return
        seconds = asyncio.get_running_loop().time() - began
        self.live.set()
        again = self.status.restarts > 0
        self._set(
            "running",
            "restarted" if again else "started",
            f"The {self.spec.title} {'is back' if again else 'started'}: it answered {seconds:.1f} s after its start.",
        )
        hung_after_s = self.spec.hung_after_s
        await self._wait_for_silence(min(WATCH_INTERVAL_S, hung_after_s / 4), hung_after_s, until_answer=False)

    async def _wait_for_silence(self, interval_s: float, patience_s: float, *, until_answer: bool) -> bool:
        """Probe the process every `interval_s` seconds. If it has not answered for `patience_s`, kill it and return False.

        until_answer: whether to return True at its first answer.
        """
        loop = asyncio.get_running_loop()
        silent_s = 0.0
        while silent_s < patience_s:
            began = loop.time()
            answers = await self._answers()
            if answers and until_answer:
                return True
            await asyncio.sleep(interval_s)
            silent_s = 0.0 if answers else silent_s + min(loop.time() - began, interval_s + ANSWER_S)
        self._end_reason = f"it had not answered for {patience_s:.0f} s"
        assert self._child is not None
        self._child.kill()
        return False

    async def _answers(self) -> bool:
        assert self._child is not None
        return self._child.said_ready and (self._probe is None or await self._probe())

    async def _wait_before_restart(self, ending: Ending) -> None:
        reason, self._end_reason = self._end_reason, ""
        delay = 0.0 if reason else self._backoff.delay(ending.seconds, answered=self._answered)
        if reason:
            self._set("down", "stopped", f"The {self.spec.title} was restarted, because {reason}.")
        else:
            end = f"{ending.how} after {_spell(ending.seconds)}{ending.work}"
            when = "immediately" if delay < 0.1 else f"in {delay:g} s"
            words = f" Its last words: {ending.last_words[:300]}" if ending.last_words else ""
            self._set("down", "crashed", f"The {self.spec.title} {end}; it is restarted {when}.{words}")
        self._wake.clear()
        try:
            async with asyncio.timeout(delay):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _set(self, state: str, kind: str = "", sentence: str = "") -> None:
        self.status.state = state
        if sentence:
            self.status.reason = sentence
        self._report(replace(self.status), kind, sentence)

    async def restart(self, reason: str) -> None:
        """Stop the present run with the signals of its spec. The task `run` then starts the next one."""
        self._backoff.forget()
        self._wake.set()
        if self._child is not None and self.status.pid is not None:
            self._end_reason = reason
            await self._child.stop()

    def restart_no_more(self) -> None:
        self._stopping = True
        self._wake.set()

    async def stop(self) -> None:
        self.restart_no_more()
        if self._child is not None and self.status.pid is not None:
            await self._child.stop()

    def kill(self) -> None:
        """Kill the present run without waiting for an orderly end."""
        if self._child is not None and self.status.pid is not None:
            self._child.kill()


class RunOnce:
    """A process that is not restarted. Its failure is reported, and stops no other process."""

    def __init__(self, spec: ProcessSpec, report: Report, guard: "GuardPipe") -> None:
        self._spec = spec
        self._report = report
        self._guard = guard

    async def run(self) -> None:
        """Run the process until it ends. If this task is cancelled, the process is stopped first."""
        log = RotatingLog(self._spec.log)
        child = Child(self._spec, log)
        pid = await child.start(self._guard.started)
        self._report(Status(self._spec.name, "running", pid, timezone.now()), "", "")
        ended = asyncio.create_task(child.wait_until_ended())
        try:
            self._report_end(await asyncio.shield(ended))
        finally:
            if not ended.done():
                await child.stop()
                await ended
            self._guard.forget_group(pid)
            log.close()

    def _report_end(self, ending: Ending) -> None:
        """Report `stopped` for success, `down` with a reason for a failure."""
        if ending.code == 0:
            self._report(Status(self._spec.name), "", "")
            return
        reason = ending.last_words[:300] or f"it {ending.how}"
        sentence = f"The {self._spec.title} failed: {reason}."
        self._report(Status(self._spec.name, "down", reason=reason), "", sentence)


class GuardPipe:
    """The guardian process, and its pipe, which closes when `up` ends. A guardian that ends or hangs is replaced."""

    def __init__(self, deadline_s: float, hung_after_s: float, report: Report) -> None:
        self._deadline_s = deadline_s
        self._hung_after_s = hung_after_s
        self._report = report
        self._groups: set[int] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._spawn()
        self._watching = asyncio.create_task(self._watch())

    def started(self, group: int) -> None:
        self._groups.add(group)
        self._send(f"+{group}")

    def forget_group(self, group: int) -> None:
        self._groups.discard(group)
        self._send(f"-{group}")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                async with asyncio.timeout(self._hung_after_s):
                    await self._process.wait()
            except TimeoutError:  # the process hangs, although it has no work left
                self._process.kill()
                await self._process.wait()

    # -- inside ----------------------------------------------------------------------------------------------------
    async def _spawn(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(Path(guardian.__file__)), str(self._deadline_s)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        for group in self._groups:
            self._send(f"+{group}")

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(f"{line}\n".encode())

    async def _watch(self) -> None:
        backoff = Backoff()
        while True:
            began = asyncio.get_running_loop().time()
            how = await self._until_silent()
            assert self._process is not None
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    self._process.kill()
            how = how or Ending(await self._process.wait(), 0.0).how
            sentence = f"The guardian of the processes {how}; it is started again."
            self._report(Status("guardian", "down", reason=sentence), "crashed", sentence)
            await asyncio.sleep(backoff.delay(asyncio.get_running_loop().time() - began, answered=False))
            await self._spawn()
            self._report(
                Status("guardian", "running", self._process.pid, restarts=1), "restarted", "The guardian is back."
            )

    async def _until_silent(self) -> str:
        """Probe the guardian from time to time until it gives no answer; return "" if it has ended, else the fault."""
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            self._send("?")
            try:
                # asyncio.wait_for would swallow a cancellation at the moment of the answer.
                async with asyncio.timeout(self._hung_after_s):
                    if not await self._process.stdout.readline():
                        return ""
            except TimeoutError:
                return f"had not answered for {self._hung_after_s:.0f} s"
            await _either(self._process.wait(), min(WATCH_INTERVAL_S, self._hung_after_s / 4))


class Supervisor:
    """All processes. stages: their names in the order of stopping; the processes of one tuple are stopped together. once: a
    process that runs once, when all the others answer."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        stages: Sequence[tuple[str, ...]],
        report: Report,
        once: ProcessSpec | None = None,
    ) -> None:
        grace = sum(max(sum(s for _, s in spec.stop) for spec in specs if spec.name in stage) for stage in stages)
        self._guard = GuardPipe(grace + 2.0, min(spec.hung_after_s for spec in specs), report)
        self.processes = {spec.name: Supervised(spec, report, self._guard) for spec in specs}
        self._once = RunOnce(once, report, self._guard) if once is not None else None
        self._stages = stages
        self._end = asyncio.Event()
        self._asked_at = 0.0

    async def run(self, on_live: Callable[[], Awaitable[None]]) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP, and then until all processes have ended. on_live: called once all answer."""
        self._catch_signals()
        await self._guard.start()
        runs = [asyncio.create_task(process.run()) for process in self.processes.values()]
        announcing = asyncio.create_task(self._announce(on_live))
        ending = asyncio.create_task(self._end.wait())
        try:
            await asyncio.wait([ending, *runs], return_when=asyncio.FIRST_COMPLETED)
        finally:
            announcing.cancel()
            ending.cancel()
            await self._stop_all()
            outcomes = await asyncio.gather(*runs, return_exceptions=True)
            await asyncio.gather(announcing, return_exceptions=True)
            await self._guard.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _announce(self, on_live: Callable[[], Awaitable[None]]) -> None:
        await asyncio.gather(*(process.live.wait() for process in self.processes.values()))
        await on_live()
        if self._once is not None:
            await self._once.run()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._end.is_set():
            self._end.set()
            self._asked_at = now
        elif now - self._asked_at > SAME_SIGNAL_S:  # a second Ctrl-C
            for process in self.processes.values():
                process.kill()

    async def _stop_all(self) -> None:
        for process in self.processes.values():
            process.restart_no_more()
        for stage in self._stages:
            await asyncio.gather(*(self.processes[name].stop() for name in stage))


async def _either(waiting: Awaitable[object], seconds: float) -> None:
    """Wait until the awaitable is done, at most `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await waiting


def _spell(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
