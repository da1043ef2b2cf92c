"""Runs the load generator for one load, and yields its windows as they come."""

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from typing import IO, Any

from dashboard.loads.outcome import Outcome
from dashboard.loads.program import Plan, Window, plan_to_json
from dashboard.shared.environment import BASE_DIR
from dashboard.shared.exceptions import Unavailable

_POLL_S = 0.1
_REASON_CHARACTERS = 300
_NAN = float("nan")


def windows_of(plan: Plan, go_on: Callable[[], None]) -> Generator[Window]:
    """Yield the windows of a load, the warm-up first. The program ends with the generator.

    go_on: called all the time while the load runs; it may raise to end the load. Raises Unavailable, with the program's reason,
    if the server cannot be reached or does not follow its protocol.
    """
    with tempfile.TemporaryFile("w+") as errors, contextlib.ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-m", "dashboard.loads"],
            cwd=BASE_DIR,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        thread = threading.Thread(target=_exchange, args=(process.stdin, plan, process.stdout, lines), daemon=True)
        thread.start()
        stack.enter_context(process)
        stack.callback(thread.join)
        stack.callback(process.kill)  # the first of the three to be called
        while line := _next(lines, go_on):
            yield _window(line)
        if process.wait() != 0:
            errors.seek(0)
            reason = errors.read().strip()[-_REASON_CHARACTERS:]
            raise Unavailable(f"the load ended early: {reason or 'its program was ended'}")


def _exchange(sends: IO[str], plan: Plan, receives: IO[str], lines: "queue.SimpleQueue[str]") -> None:
    """Send the plan, and put each line of the program into the queue; "" marks the end."""
    try:
        with contextlib.suppress(BrokenPipeError):
            sends.write(plan_to_json(plan))
            sends.close()
        for line in receives:
            lines.put(line)
    except ValueError:  # the program was ended, and its pipes are closed
        pass
    finally:
        lines.put("")


def _next(lines: "queue.SimpleQueue[str]", go_on: Callable[[], None]) -> str:
    while True:
        go_on()
        with contextlib.suppress(queue.Empty):
            return lines.get(timeout=_POLL_S)


def _window(line: str) -> Window:
    row = json.loads(line)
    fields: dict[str, Any] = {name: _NAN if value is None else value for name, value in row["outcome"].items()}
    spread = _NAN if row["spread"] is None else row["spread"]
    return Window(row["load"], row["number"], row["stable"], Outcome(**fields), spread)
