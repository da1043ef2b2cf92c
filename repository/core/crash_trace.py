"""Finds the model that a process was working on when native code killed it, from the output of the process.

After a library aborts, no Python code runs any more, but Python's faulthandler still prints the functions on all stacks. The
server runs the work for a model in functions named by `frame_name`. `manage.py up`, or a person, finds these names in the
output of the server. Without a crash no such line is written.
"""

import re
from typing import Literal

Doing = Literal["loading", "completing", "executing"]

# faulthandler shows at most 500 characters of a name.
_MAX_NAME = 200
_FRAME = re.compile(
    r"""^  File ".*", line \d+ in ((?:loading|completing|executing) version \d+ of model '.*' \(.*\))$""", re.M
)
# Only at the start of a line: inside a line, the words are the logged output of a child process.
_DUMP = re.compile(r"^Fatal Python error: ", re.M)
_CURRENT = "Current thread "


def frame_name(doing: Doing, model: str, version: int, file: str) -> str:
    return f"{doing} version {version} of model '{model[:_MAX_NAME]}' ({file[:_MAX_NAME]})"


def works(output: str) -> list[str]:
    """Return the work that a dead process did last, from its output, as the names of `frame_name`; [] if it has no trace.

    The work is that of the thread that crashed. If a library created that thread, the work of all threads is returned.
    """
    dump = output[_dump_at(output) :]
    current = dump.partition(_CURRENT)[2].partition("\n\n")[0]
    return list(dict.fromkeys(_FRAME.findall(current) or _FRAME.findall(dump)))


def last_words(output: str) -> str:
    """Return the last line before the stacks, often a library's failed assertion; "" if there is no such line."""
    at = _dump_at(output)
    lines = [line for line in output[:at].splitlines() if line.strip()]
    return lines[-1].strip() if lines and at < len(output) else ""


def _dump_at(output: str) -> int:
    """Return the offset of the last dump; the length of the output if there is no dump."""
    return max((found.start() for found in _DUMP.finditer(output)), default=len(output))
