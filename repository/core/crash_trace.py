"""Names the model that a process was working on when native code ended it, by the process's output.

Where a library aborts, no code of ours runs any more, but Python's faulthandler still prints the functions under way. The
server runs the work for a model in functions named by `frame_name`, which `manage.py up` or a person finds in its output.
Without a crash no line is written.
"""

import re
from typing import Literal

Doing = Literal["loading", "completing", "executing"]

# faulthandler shows 500 characters of a name.
_MAX_NAME = 200
_FRAME = re.compile(
    r"""^  File ".*", line \d+ in ((?:loading|completing|executing) version \d+ of model '.*' \(.*\))$""", re.M
)
_DUMP = re.compile(r"^Fatal Python error: ", re.M)  # not inside a line, where a child process logs one
_CURRENT = "Current thread "


def frame_name(doing: Doing, model: str, version: int, file: str) -> str:
    return f"{doing} version {version} of model '{model[:_MAX_NAME]}' ({file[:_MAX_NAME]})"


def works(output: str) -> list[str]:
    """Return the work of a process that died, by its last output, each as `frame_name` wrote it; [] without a trace.

    The thread that died is known unless a library made it; then all work under way is returned.
    """
    dump = output[_dump_at(output) :]
    current = dump.partition(_CURRENT)[2].partition("\n\n")[0]
    return list(dict.fromkeys(_FRAME.findall(current) or _FRAME.findall(dump)))


def last_words(output: str) -> str:
    """Return the last line before the stacks, often a library's failed assertion; "" without one."""
    at = _dump_at(output)
    lines = [line for line in output[:at].splitlines() if line.strip()]
    return lines[-1].strip() if lines and at < len(output) else ""


def _dump_at(output: str) -> int:
    """Return where the last dump begins; the output's length where there is none."""
    return max((found.start() for found in _DUMP.finditer(output)), default=len(output))
