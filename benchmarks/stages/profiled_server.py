"""`python -m serving` that profiles its event loop: SIGUSR1 starts the profile, a second SIGUSR1 stops it and writes a file.

The variable STAGES_FILE names the file; STAGES_MODE is "time" or "calls". A sample is taken at each millisecond of CPU time. It
adds the time that the loop's thread has used since the last sample to the innermost package of the server on the stack.
"""

import json
import os
import resource
import runpy
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = str(Path(__file__).resolve().parents[2]) + os.sep
SAMPLE_S = 0.001
LOOP = "loop"
_FIRST_INSTRUCTIONS = 6  # the bytes of bytecode before the first statement of a function


class Profile:
    """The counts since the last start of the profile: nanoseconds or calls, by package."""

    def __init__(self) -> None:
        self.running = False
        self._rooms: dict[CodeType, str] = {}
        self._found: Counter[str] = Counter()
        self._sampled_ns = 0
        self._process_ns = 0
        self._system_s = 0.0

    def toggle(self, *_: object) -> None:
        (self._end if self.running else self._begin)()
        self.running = not self.running

    def _begin(self) -> None:
        self._found.clear()
        self._sampled_ns = time.thread_time_ns()
        self._process_ns = time.process_time_ns()
        self._system_s = resource.getrusage(resource.RUSAGE_SELF).ru_stime
        if os.environ["STAGES_MODE"] == "time":
            signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
        else:
            sys.setprofile(self._count)

    def _end(self) -> None:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        process_ns = time.process_time_ns() - self._process_ns
        path = Path(os.environ["STAGES_FILE"])
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps({"rooms": self._found, "process_ns": process_ns}))
        unfinished.rename(path)

    def sample(self, _: int, frame: FrameType | None) -> None:
        now = time.thread_time_ns()
        self._found[self._where(frame)] += now - self._sampled_ns
        self._sampled_ns = time.thread_time_ns()

    def _where(self, frame: FrameType | None) -> str:
        if frame is not None and frame.f_lasti <= _FIRST_INSTRUCTIONS and not self._room(frame.f_back):
            return LOOP  # the loop has just called this function, and the signal belongs to the time before the call
        while frame is not None:
            if room := self._room(frame):
                return room
            frame = frame.f_back
        return LOOP

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call"):
            self._found[self._room(frame) or LOOP] += 1

    def _room(self, frame: FrameType | None) -> str:
        """Return the server's package of a frame; "" for a frame of other code or of this program."""
        if frame is None:
            return ""
        code = frame.f_code
        room = self._rooms.get(code)
        if room is None:
            inside = code.co_filename.removeprefix(ROOT)
            parts = inside.split(os.sep)[:-1]
            room = self._rooms[code] = "/".join(parts) if parts[:1] == ["serving"] and len(parts) > 1 else ""
        return room


def main() -> None:
    profile = Profile()
    signal.signal(signal.SIGUSR1, profile.toggle)
    signal.signal(signal.SIGPROF, profile.sample)
    sys.argv[0] = "serving"
    runpy.run_module("serving", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
