"""Which model a process was working on when native code ended it: written to its output, and read from there.

Where a library aborts, no code of ours runs any more, but Python's faulthandler still prints the functions under way. The
server runs what belongs to a model in functions named by `frame_name`; whoever has its output, `manage.py up` or a person,
finds them there. Nothing is written while all is well.
"""

import re
from typing import Literal

Doing = Literal["loading", "completing", "executing"]

# faulthandler shows 500 characters of a name.
_MAX_NAME = 200
_FRAME = re.compile(
    r"""^  File ".*", line \d+ in ((?:loading|completing|executing) version \d+ of model '.*' \(.*\))$""", re.M
)
_DUMP = re.compile(r"^Fatal Python error: ", re.M)  # not at a line's begin: a model's process, whose output is logged
_CURRENT = "Current thread "


def frame_name(doing: Doing, model: str, version: int, file: str) -> str:
    return f"{doing} version {version} of model '{model[:_MAX_NAME]}' ({file[:_MAX_NAME]})"


def works(output: str) -> list[str]:
    """Return what a process that died was doing by its last output, each as `frame_name` wrote it; [] where it says nothing.

    The thread that died is known unless it was a library's own: then all work that was under way is told.
    """
    dump = output[_dump_at(output) :]
    current = dump.partition(_CURRENT)[2].partition("\n\n")[0]
    return list(dict.fromkeys(_FRAME.findall(current) or _FRAME.findall(dump)))


def last_words(output: str) -> str:
    """Return the last line before the stacks: what a library said when it gave up, often an assertion; "" without one."""
    at = _dump_at(output)
    lines = [line for line in output[:at].splitlines() if line.strip()]
    return lines[-1].strip() if lines and at < len(output) else ""


def _dump_at(output: str) -> int:
    """Return where the last dump begins; the output's length where there is none."""
    return max((found.start() for found in _DUMP.finditer(output)), default=len(output))
