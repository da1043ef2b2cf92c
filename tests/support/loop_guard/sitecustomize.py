"""Notes all calls of an event loop's thread that use files. Every Python with this folder in its path imports this module.

The file that LOOP_GUARD names gets a JSON line for each call: the call, its path, and the stack. Tests use this module through
`tests/support/guarded_loop.py`, which also says which files are allowed.
"""

import asyncio.events
import json
import os
import sys
from collections.abc import Callable
from typing import Any

_LOG = os.environ.get("LOOP_GUARD", "")
_EVENTS = {
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.listdir",
    "os.scandir", "fcntl.flock", "fcntl.lockf", "shutil.copyfile", "shutil.move", "shutil.rmtree", "subprocess.Popen",
    "socket.getaddrinfo", "time.sleep",
}  # fmt: skip
_SYNCS = ("fsync", "fdatasync", "sync")


def _note(what: str, path: object) -> None:
    if asyncio.events._get_running_loop() is None:
        return
    stack, frame = [], sys._getframe(2)
    while frame is not None:
        stack.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    line = json.dumps(
        {"what": what, "path": os.fsdecode(path) if isinstance(path, str | bytes) else repr(path), "stack": stack}
    )
    os.write(_descriptor, line.encode() + b"\n")


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS and not (event == "open" and isinstance(arguments[0], int)):  # a number means an open file
        _note(event, arguments[0] if arguments else "")


def _noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        _note(f"os.{name}", arguments[0] if arguments else "")
        return function(*arguments)

    return call


if _LOG:
    _descriptor = os.open(_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _name in _SYNCS:
        setattr(os, _name, _noted(_name, getattr(os, _name)))
    sys.addaudithook(_hook)
