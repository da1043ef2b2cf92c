"""Attempts of a worker that is killed again and again, each in a process of its own.

They are forked from a process that has imported the program once, because starting Django takes longer than most attempts.
"""

import json
import subprocess
import sys
from typing import Any

_LOOP = """
def _answer_each_line():
    import json, os, sys, tempfile, traceback
    print("ready", flush=True)
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as said:
            if (pid := os.fork()) == 0:
                try:
                    found, status = attempt(*json.loads(line)), 0
                except BaseException:
                    found, status = traceback.format_exc(), 1
                json.dump(found, said)
                said.flush()
                os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said.seek(0)
            print(json.dumps([status, json.loads(said.read() or "null")]), flush=True)

_answer_each_line()
"""


class Forks:
    """Runs the function `attempt` of a program, which opens no database before. It is ready when this is made."""

    def __init__(self, program: str, environment: dict[str, str]) -> None:
        command, pipe = [sys.executable, "-c", program + _LOOP], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)
        assert self._line() == "ready\n"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def run(self, *arguments: str | int) -> tuple[int, Any]:
        """Return how an attempt ended: 0, 1 or a negative signal; and what it returned, its traceback, or None."""
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        status, found = json.loads(self._line())
        return status, found

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
